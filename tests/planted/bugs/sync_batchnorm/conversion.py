"""Bugs in how a model is converted: its state, its modes, other norms."""

from bug import Bug

_NORM = "sync_batchnorm"
_OPTIONS = "affine, track = module.weight is not None, module.running_mean is not None"
BUGS = [
    Bug(
        _NORM, "        new.load_state_dict(module.state_dict())\n", "", "conversion_keeps_state", "conversion changed"
    ),
    Bug(_NORM, "y if self.weight is None else", "", "without_weight_and_bias", ""),
    Bug(_NORM, _OPTIONS, "affine = track = module.running_mean is not None", "without_weight_and_bias", "Missing key"),
    Bug(_NORM, _OPTIONS, "affine = track = module.weight is not None", "without_weight_and_bias", "Unexpected key"),
    Bug(
        _NORM,
        _OPTIONS,
        "affine, track = module.weight is not None, True",
        "without_running_statistics",
        "Missing key",
    ),
    Bug(_NORM, "requires_grad_(p.requires_grad)", "requires_grad_(True)", "frozen_weight_and_bias", "it was frozen"),
    Bug(_NORM, ".train(module.training)", "", "conversion_keeps_the_mode", "in evaluation mode when it was converted"),
    Bug(
        _NORM,
        "convert_sync_batchnorm(child, known))\n    return module",
        "of_children(child, known))\n    return module\n\n\nof_children = convert_sync_batchnorm\n\n\n"
        "def convert_sync_batchnorm(module):\n    of_children(module)\n    return module",
        "norm_at_the_top",
        "Return the converted norm",
    ),
    Bug(
        _NORM,
        "isinstance(module, nn.modules.batchnorm._BatchNorm)",
        "isinstance(module, nn.modules.batchnorm._NormBase)",
        "other_norms_stay",
        "`_NormBase`",
    ),
    Bug(
        _NORM,
        "    for name, child in module.named_children():\n",
        "    if isinstance(module, nn.InstanceNorm2d):\n        module.__class__ = SyncBatchNorm\n"
        "    for name, child in module.named_children():\n",
        "other_norms_stay",
        "`_NormBase`",
    ),
    Bug(
        _NORM,
        "    if module in known:\n        return known[module]\n",
        "",
        "shared_norm_stays_shared",
        "one norm at two places",
    ),
]
