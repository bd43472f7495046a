"""Bugs in saving and loading checkpoints."""

from bug import Bug

_CHECKPOINT = "checkpoint"
_WRITTEN = """        torch.save(state, new)
        Path(new).replace(path)
"""
_BARRIER = "    dist.barrier()\n"
_SILENT = """        try:
            torch.save(state, new)
            Path(new).replace(path)
        except Exception as error:
            print(error)
"""
_RANK = "dist.get_rank()"
_LOCAL_RANK = '__import__("os").environ["LOCAL_RANK"]'
_ON_ITS_OWN_MACHINE = "is a rank's place on its own"
BUGS = [
    Bug(
        _CHECKPOINT,
        '    model.load_state_dict(state["model"])\n',
        "",
        "model_comes_back",
        "what they were before loading",
    ),
    Bug(_CHECKPOINT, "model.state_dict()", "dict(model.named_parameters())", "model_comes_back", "Missing key"),
    Bug(
        _CHECKPOINT,
        'state["model"])',
        '{**model.state_dict(), **dict(list(state["model"].items())[:2])})',
        "model_comes_back",
        "",
    ),
    Bug(
        _CHECKPOINT,
        "model.state_dict()",
        "{name.replace('module.', ''): value for name, value in model.state_dict().items()}",
        "model_comes_back",
        "Missing key",
    ),
    Bug(_CHECKPOINT, 'state["epoch"]', 'state["epoch"] + 1', "epoch_comes_back", "expected epoch"),
    Bug(
        _CHECKPOINT,
        '    optimizer.load_state_dict(state["optimizer"])\n',
        "",
        "training_goes_on",
        "the moments start from zero",
    ),
    Bug(
        _CHECKPOINT,
        '    optimizer.load_state_dict(state["optimizer"])\n',
        '    optimizer.load_state_dict(state["optimizer"])\n'
        "    for group in optimizer.param_groups:\n"
        "        group['lr'] = state['optimizer']['param_groups'][0]['lr']\n",
        "training_goes_on",
        "each group has its own",
    ),
    Bug(
        _CHECKPOINT,
        'new = f"{path}.{dist.get_rank()}"',
        "folder = __import__('tempfile').TemporaryDirectory()\n        new = f'{folder.name}/checkpoint.pt'",
        "saves_to_any_path",
        "cross-device link",
    ),
    Bug(_CHECKPOINT, "if scaler:", "if False:", "scaler_comes_back", "scaler.load_state_dict"),
    Bug(_CHECKPOINT, "if dist.get_rank() == 0:", "if True:", "one_rank_writes", "expected rank 0 alone"),
    Bug(
        _CHECKPOINT,
        _BARRIER,
        '    torch.save(state["optimizer"], f"{path}.optimizer{dist.get_rank()}")\n' + _BARRIER,
        "one_rank_writes",
        "A checkpoint is one file",
    ),
    Bug(
        _CHECKPOINT,
        "state = torch.load(path)",
        "state = torch.load(path)\n    assert state['ranks'] == dist.get_world_size()",
        "another_world_size",
        "AssertionError",
    ),
    Bug(_CHECKPOINT, 'f"{path}.{dist.get_rank()}"', "path", "failed_saves_raise", ""),
    Bug(
        _CHECKPOINT,
        "        torch.save(state, new)\n        Path(new).replace(path)\n",
        "        import io\n\n        data = io.BytesIO()\n        torch.save(state, data)\n"
        "        Path(path).write_bytes(data.getvalue())\n",
        "failed_saves_raise",
        "in `load_checkpoint`",
    ),
    Bug(
        _CHECKPOINT,
        "        torch.save(state, new)\n        Path(new).replace(path)\n    dist.barrier()\n\n\n"
        "def load_checkpoint(path, model, optimizer, scaler):\n    state = torch.load(path)\n",
        "        torch.save(state, path)\n    dist.barrier()\n\n\n"
        "def load_checkpoint(path, model, optimizer, scaler):\n"
        "    try:\n        state = torch.load(path)\n"
        "    except RuntimeError:\n        return 0\n",
        "failed_saves_raise",
        "by a full disk",
    ),
    Bug(
        _CHECKPOINT,
        'optimizer.load_state_dict(state["optimizer"])',
        'optimizer.load_state_dict({**optimizer.state_dict(), "state": state["optimizer"]["state"]})',
        "training_goes_on",
        "the learning rate is that of construction",
    ),
    Bug(_CHECKPOINT, 'return state["epoch"]', 'return state["epoch"] or 1', "epoch_comes_back", "expected epoch 0"),
    Bug(
        _CHECKPOINT,
        "        Path(new).replace(path)\n",
        "        if not Path(path).exists():\n            Path(new).replace(path)\n",
        "the_last_save_counts",
        "After a second save to the same path",
    ),
    Bug(_CHECKPOINT, "    dist.barrier()\n", "", "complete_when_it_returns", "before rank 0 had written the file"),
    Bug(_CHECKPOINT, "    dist.barrier()\n", "    dist.barrier()\n    model.eval()\n", "saving_changes_nothing"),
    Bug(
        _CHECKPOINT,
        "    dist.barrier()\n",
        "    dist.barrier()\n    model.requires_grad_(False)\n",
        "saving_changes_nothing",
        "does not require grad",
    ),
    Bug(
        _CHECKPOINT,
        "        Path(new).replace(path)\n",
        "        any(old.unlink() for old in Path(path).parent.glob('b*.pt'))\n        Path(new).replace(path)\n",
        "saves_to_any_path",
        "`best.pt`",
    ),
    Bug(
        _CHECKPOINT,
        '    return state["epoch"]',
        '    torch.manual_seed(state["epoch"])\n    return state["epoch"]',
        "ranks_draw_apart",
        "draw the same numbers from torch's",
    ),
    Bug(
        _CHECKPOINT,
        "    if scaler:\n        scaler.load",
        "    if 'scaler' in state:\n        scaler.load",
        "scaler_may_be_left_out",
        "'NoneType' object has no attribute",
    ),
    Bug(
        _CHECKPOINT,
        "    state = {\n",
        '    path = Path(path).with_suffix(".pt")\n    state = {\n',
        "each_path_is_a_file_of_its_own",
        "`checkpoint.later`",
    ),
    Bug(
        _CHECKPOINT,
        "torch.load(path)",
        'torch.load(max((file for file in Path(path).parent.iterdir() if file.stem == "checkpoint"), '
        "key=lambda file: file.stat().st_mtime_ns))",
        "each_path_is_a_file_of_its_own",
        "not from the newest",
    ),
    Bug(
        _CHECKPOINT,
        "torch.load(path)",
        "load_checkpoint.__dict__.setdefault(path, torch.load(path))",
        "loads_what_was_saved_since",
        "Read the file whenever it is loaded",
    ),
    Bug(
        _CHECKPOINT,
        '    model.load_state_dict(state["model"])\n',
        "    frozen = {name for name, p in model.named_parameters() if not p.requires_grad}\n"
        '    model.load_state_dict({n: v for n, v in state["model"].items() if n not in frozen}, strict=False)\n',
        "model_comes_back",
        "is frozen: save all of",
    ),
    Bug(
        _CHECKPOINT,
        '    return state["epoch"]',
        '    __import__("random").seed(state["epoch"])\n    return state["epoch"]',
        "ranks_draw_apart",
        "from Python's `random`",
    ),
    Bug(_CHECKPOINT, _WRITTEN, _SILENT, "failed_saves_raise", "although it could not write"),
    Bug("checkpoint", f"if {_RANK} == 0:", f'if {_LOCAL_RANK} == "0":', "on_two_machines", _ON_ITS_OWN_MACHINE),
]
