"""Bugs in a training step of several micro-batches, with and without a gradient scaler."""

from bug import Bug

_ACCUMULATION = "gradient_accumulation"
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
_CLEARED = "    optimizer.zero_grad()\n"
_CLEARED_IF_FINITE = """    params = [p for group in optimizer.param_groups for p in group["params"]]
    if all(p.grad is None or p.grad.isfinite().all() for p in params):
        optimizer.zero_grad()
"""
_LOSS = """            loss = loss_fn(ddp_model(x), y) * (len(x) / samples)
            (scaler.scale(loss) if scaler else loss).backward()
"""
_DIVIDED_IN_FLIGHT = f"""{_LOSS.replace(" * (len(x) / samples)", "")}    for p in ddp_model.parameters():
        p.grad /= len(microbatches)
"""
_SHARE = " * (len(x) / samples)"
_FINISH = "    ddp_model.finish_gradient_synchronization()\n"
BUGS = [
    Bug(
        _ACCUMULATION,
        "    ddp_model.finish",
        "        optimizer.step()\n    ddp_model.finish",
        "one_optimizer_step",
        "optimizer steps; expected 1",
    ),
    Bug(_ACCUMULATION, _SHARE, "", "training_equals_one_process", "losses summed over micro-batches"),
    Bug(_ACCUMULATION, "if is_last else", "if False else", "training_equals_one_process", "each rank trains alone"),
    Bug(
        _ACCUMULATION,
        "        is_last =",
        "        optimizer.zero_grad()\n        is_last =",
        "training_equals_one_process",
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
        "leaves out steps with infinite gradients",
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
        "            loss = loss_fn(ddp_model(x), y) * (len(x) / samples)\n",
        "        loss = loss_fn(ddp_model(x), y) * (len(x) / samples)\n"
        "        with nullcontext() if is_last else ddp_model.no_sync():\n",
        "one_exchange_of_gradients[forward_or_scaler]",
        "inside `with ddp_model.no_sync():` as well",
    ),
    Bug(
        _ACCUMULATION,
        "loss_fn(ddp_model(x), y)",
        "loss_fn(ddp_model.module(x), y)",
        "one_exchange_of_gradients[forward_or_scaler]",
        "averaged gradients 0 times",
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
        "arguments_stay",
        "has changed the list",
    ),
    Bug(
        _ACCUMULATION,
        "    ddp_model.finish",
        "    y.zero_()\n    ddp_model.finish",
        "arguments_stay",
        "or a tensor in it",
    ),
    Bug(
        _ACCUMULATION,
        "loss_fn(ddp_model(x), y)",
        "loss_fn(y, ddp_model(x))",
        "training_equals_one_process",
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
        "finishes_before_the_step",
        "after the last backward",
    ),
    Bug(
        _ACCUMULATION,
        _SHARE,
        ' / ddp_model.__dict__.setdefault("count", len(microbatches))',
        "fewer_in_the_last_step",
        "what this call gets",
    ),
    Bug(
        _ACCUMULATION,
        _LOSS,
        _LOSS.replace(_SHARE, "") + '            optimizer.param_groups[0]["lr"] = 0.1 / len(microbatches)\n'
        '            optimizer.param_groups[1]["lr"] = 0.1 / len(microbatches)\n',
        "training_equals_one_process",
        "is not what one process on all of them gives",
    ),
    Bug(_ACCUMULATION, _SHARE, " / len(microbatches)", "trains[uneven_batches]", "its share of the samples"),
    Bug(_ACCUMULATION, _LOSS, _DIVIDED_IN_FLIGHT, "finishes_before_the_step", "not done when backward returns"),
    Bug(_ACCUMULATION, _CLEARED, f"{_CLEARED}    ddp_model.train()\n", "modes_stay", "in evaluation mode"),
    Bug(_ACCUMULATION, _CLEARED, _CLEARED_IF_FINITE, "overflow_skips_the_step", "was left out as well"),
    Bug(
        _ACCUMULATION,
        "if is_last else",
        "if is_last or scaler else",
        "one_exchange_of_gradients[forward_or_scaler]",
        "no_sync",
    ),
    Bug(
        _ACCUMULATION,
        _FINISH,
        f"    if scaler is None:\n    {_FINISH}",
        "finishes_before_the_step",
        "not done when backward returns",
    ),
    Bug(
        _ACCUMULATION,
        "index + 1 == len(microbatches)",
        "index == 0",
        "training_equals_one_process",
        "the first micro-batch exchanged",
    ),
    Bug(
        _ACCUMULATION,
        _LOSS,
        f"{_LOSS}        if scaler and not is_last:\n"
        "            scaler._check_inf_per_device(optimizer)\n            scaler.update()\n",
        "scaler_used",
        "the scale changes between micro-batches",
    ),
]
