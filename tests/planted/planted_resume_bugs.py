"""Bugs planted in the right accumulation and checkpoint: what shows in a later call, or where something goes wrong."""

from bug import Bug

_ACCUMULATION = "gradient_accumulation"
_CHECKPOINT = "checkpoint"
_CLEARED = "    optimizer.zero_grad()\n"
_CLEARED_IF_FINITE = """    params = [p for group in optimizer.param_groups for p in group["params"]]
    if all(p.grad is None or p.grad.isfinite().all() for p in params):
        optimizer.zero_grad()
"""
_LOSS = """            loss = loss_fn(ddp_model(x), y) / len(microbatches)
            (scaler.scale(loss) if scaler else loss).backward()
"""
_DIVIDED_IN_FLIGHT = f"""{_LOSS.replace(" / len(microbatches)", "")}    for p in ddp_model.parameters():
        p.grad /= len(microbatches)
"""
_WRITTEN = """        torch.save(state, new)
        Path(new).replace(path)
"""
_SILENT = """        try:
            torch.save(state, new)
            Path(new).replace(path)
        except Exception as error:
            print(error)
"""
RESUME_BUGS = [
    Bug(
        _ACCUMULATION,
        " / len(microbatches)",
        ' / ddp_model.__dict__.setdefault("count", len(microbatches))',
        "fewer_in_the_last_step",
        "of this call",
    ),
    Bug(
        _ACCUMULATION,
        _LOSS,
        _LOSS.replace(" / len(microbatches)", "")
        + '            optimizer.param_groups[0]["lr"] = 0.1 / len(microbatches)\n'
        '            optimizer.param_groups[1]["lr"] = 0.1 / len(microbatches)\n',
        "equals_one_big_batch",
        "is not what one process on all of them gives",
    ),
    Bug(_ACCUMULATION, _LOSS, _DIVIDED_IN_FLIGHT, "finishes_before_the_step", "not done when backward returns"),
    Bug(_ACCUMULATION, _CLEARED, f"{_CLEARED}    ddp_model.train()\n", "leaves_the_modes", "in evaluation mode"),
    Bug(_ACCUMULATION, _CLEARED, _CLEARED_IF_FINITE, "overflow_skips_the_step", "was left out as well"),
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
    Bug(_CHECKPOINT, _WRITTEN, _SILENT, "failed_saves_raise", "although saving had failed"),
]
