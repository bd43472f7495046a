"""A right accumulation."""

from contextlib import nullcontext


def accumulate_and_step(ddp_model, optimizer, microbatches, loss_fn, scaler=None):
    optimizer.zero_grad()
    samples = sum(len(x) for x, _ in microbatches)
    for index, (x, y) in enumerate(microbatches):
        is_last = index + 1 == len(microbatches)
        with nullcontext() if is_last else ddp_model.no_sync():
            loss = loss_fn(ddp_model(x), y) * (len(x) / samples)
            (scaler.scale(loss) if scaler else loss).backward()
    ddp_model.finish_gradient_synchronization()
    if scaler:
        scaler.step(optimizer)
        scaler.update()
    else:
        optimizer.step()
