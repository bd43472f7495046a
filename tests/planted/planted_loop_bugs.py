"""Bugs planted in the right submissions of accumulation and checkpoints."""

from bug import Bug

_ACCUMULATION = "gradient_accumulation"
_CHECKPOINT = "checkpoint"
_FINISHED_AND_STEPPED = """    ddp_model.finish_gradient_synchronization()
    if scaler:
        scaler.step(optimizer)
"""
_STEPPED_IF_FINITE = """    finite = all(p.grad is None or p.grad.isfinite().all() for p in ddp_model.parameters())
    ddp_model.finish_gradient_synchronization()
    if scaler:
        scaler.unscale_(optimizer)
        if finite:
            optimizer.step()
"""
LOOP_BUGS = [
    Bug(
        _ACCUMULATION,
        "    ddp_model.finish",
        "        optimizer.step()\n    ddp_model.finish",
        "one_optimizer_step",
        "optimizer steps; expected 1",
    ),
    Bug(_ACCUMULATION, " / len(microbatches)", "", "equals_one_big_batch", "losses summed over micro-batches"),
    Bug(_ACCUMULATION, "if is_last else", "if False else", "equals_one_big_batch", "each rank trains alone"),
    Bug(
        _ACCUMULATION,
        "        is_last =",
        "        optimizer.zero_grad()\n        is_last =",
        "equals_one_big_batch",
        "only the last micro-batch used",
    ),
    Bug(_ACCUMULATION, "optimizer.zero_grad()", "pass", "steps_start_afresh", "zero_grad"),
    Bug(_ACCUMULATION, "if is_last else", "if True else", "one_exchange_of_gradients", "no_sync"),
    Bug(_ACCUMULATION, "index + 1 ==", "index + 1 >= -1 +", "one_exchange_of_gradients", "no_sync"),
    Bug(_ACCUMULATION, "scaler.step(optimizer)", "optimizer.step()", "scaler_used", "No inf checks were recorded"),
    Bug(_ACCUMULATION, "scaler.update()", "pass", "scaler_used", "already been called since the last update"),
    Bug(_ACCUMULATION, "    optimizer.zero", "    scaler = None\n    optimizer.zero", "scaler_used", "scaler.update()"),
    Bug(
        _ACCUMULATION,
        "scaler.step(optimizer)",
        "scaler.unscale_(optimizer)\n        optimizer.step()",
        "overflow_skips_the_step",
        "is to be skipped",
    ),
    Bug(
        _ACCUMULATION,
        "    optimizer.zero_grad()\n",
        "    for p in optimizer.param_groups[0]['params']:\n        p.grad = None\n",
        "steps_start_afresh",
        "zero_grad",
    ),
    Bug(
        _ACCUMULATION,
        "            (scaler.scale(loss) if scaler else loss).backward()\n",
        "            total = total + loss if index else loss\n"
        "    (scaler.scale(total) if scaler else total).backward()\n",
        "one_micro_batch_at_a_time",
        "followed by its backward",
    ),
    Bug(
        _ACCUMULATION,
        "    for index,",
        "    import torch\n    microbatches = [tuple(map(torch.cat, zip(*microbatches)))]\n    for index,",
        "one_micro_batch_at_a_time",
        "called the wrapper 1 times",
    ),
    Bug(
        _ACCUMULATION,
        "        with nullcontext() if is_last else ddp_model.no_sync():\n"
        "            loss = loss_fn(ddp_model(x), y) / len(microbatches)\n",
        "        loss = loss_fn(ddp_model(x), y) / len(microbatches)\n"
        "        with nullcontext() if is_last else ddp_model.no_sync():\n",
        "forward_through_the_wrapper",
        "inside `with ddp_model.no_sync():` as well",
    ),
    Bug(
        _ACCUMULATION,
        "loss_fn(ddp_model(x), y)",
        "loss_fn(ddp_model.module(x), y)",
        "forward_through_the_wrapper",
        "exchanged 0 times",
    ),
    Bug(
        _ACCUMULATION,
        "    ddp_model.finish_gradient_synchronization()\n",
        "",
        "finishes_before_the_step",
        "before the step",
    ),
    Bug(
        _ACCUMULATION,
        "    ddp_model.finish",
        "    microbatches.clear()\n    ddp_model.finish",
        "leaves_the_micro_batches",
        "has changed the list",
    ),
    Bug(
        _ACCUMULATION,
        "    ddp_model.finish",
        "    y.zero_()\n    ddp_model.finish",
        "leaves_the_micro_batches",
        "or a tensor in it",
    ),
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
        "saves_to_any_disk",
        "cross-device link",
    ),
    Bug(_CHECKPOINT, "if scaler:", "if False:", "scaler_comes_back", "scaler.load_state_dict"),
    Bug(_CHECKPOINT, "if dist.get_rank() == 0:", "if True:", "one_rank_writes", "expected rank 0 alone"),
    Bug(
        _CHECKPOINT,
        "state = torch.load(path)",
        "state = torch.load(path)\n    assert state['ranks'] == dist.get_world_size()",
        "another_world_size",
        "AssertionError",
    ),
    Bug(_CHECKPOINT, 'f"{path}.{dist.get_rank()}"', "path", "survives_a_failed_save", ""),
    Bug(
        _CHECKPOINT,
        "        torch.save(state, new)\n        Path(new).replace(path)\n",
        "        import io\n\n        data = io.BytesIO()\n        torch.save(state, data)\n"
        "        Path(path).write_bytes(data.getvalue())\n",
        "survives_a_failed_save",
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
        "survives_a_failed_save",
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
    Bug(_CHECKPOINT, "    dist.barrier()\n", "    dist.barrier()\n    model.eval()\n", "saving_leaves_training_alone"),
    Bug(
        _CHECKPOINT,
        "    dist.barrier()\n",
        "    dist.barrier()\n    model.requires_grad_(False)\n",
        "saving_leaves_training_alone",
        "does not require grad",
    ),
    Bug(
        _CHECKPOINT,
        "        Path(new).replace(path)\n",
        "        any(old.unlink() for old in Path(path).parent.glob('b*.pt'))\n        Path(new).replace(path)\n",
        "other_files_stay",
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
        _ACCUMULATION,
        "loss_fn(ddp_model(x), y)",
        "loss_fn(y, ddp_model(x))",
        "equals_one_big_batch",
        "the loss's arguments swapped",
    ),
    Bug(
        _ACCUMULATION,
        "    ddp_model.finish",
        "    if scaler:\n        scaler.unscale_(optimizer)\n    ddp_model.finish",
        "finishes_before_the_step",
        "such as `scaler.unscale_`",
    ),
    Bug(
        _ACCUMULATION,
        _FINISHED_AND_STEPPED,
        _STEPPED_IF_FINITE,
        "looks_for_overflow_when_finished",
        "ranks disagree on the step",
    ),
]
