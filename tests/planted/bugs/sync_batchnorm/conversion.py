"""Bugs in how a model is converted: its state, its modes, other norms."""

from bug import Bug

_NORM = "sync_batchnorm"
_OPTIONS = "affine, track = module.weight is not None, module.running_mean is not None"
BUGS = [
    Bug(
        _NORM, "        new.load_state_dict(module.state_dict())\n", "", "conversion_keeps_state", "conversion changed"
    ),
    Bug(_NORM, "y if self.weight is None else", "", "conversion[options]", ""),
    Bug(_NORM, _OPTIONS, "affine = track = module.running_mean is not None", "conversion[options]", "Missing key"),
    Bug(_NORM, _OPTIONS, "affine = track = module.weight is not None", "conversion[options]", "Unexpected key"),
    Bug(
        _NORM,
        _OPTIONS,
        "affine, track = module.weight is not None, True",
        "conversion[options]",
        "Missing key",
    ),
    Bug(_NORM, "requires_grad_(p.requires_grad)", "requires_grad_(True)", "trains[frozen_parameters]", "it was frozen"),
    Bug(_NORM, ".train(module.training)", "", "trains[evaluation_mode]", "in evaluation mode when it was converted"),
    Bug(
        _NORM,
        "convert_sync_batchnorm(child, known))\n    return module",
        "of_children(child, known))\n    return module\n\n\nof_children = convert_sync_batchnorm\n\n\n"
        "def convert_sync_batchnorm(module):\n    of_children(module)\n    return module",
        "conversion[models]",
        "Return the converted norm",
    ),
    Bug(
        _NORM,
        "isinstance(module, nn.modules.batchnorm._BatchNorm)",
        "isinstance(module, nn.modules.batchnorm._NormBase)",
        "conversion[models]",
        "`_NormBase`",
    ),
    Bug(
        _NORM,
        "    for name, child in module.named_children():\n",
        "    if isinstance(module, nn.InstanceNorm2d):\n        module.__class__ = SyncBatchNorm\n"
        "    for name, child in module.named_children():\n",
        "conversion[models]",
        "`_NormBase`",
    ),
    Bug(
        _NORM,
        "    if module in known:\n        return known[module]\n",
        "",
        "conversion[models]",
        "one norm at two places",
    ),
]
