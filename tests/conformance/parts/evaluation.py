"""A right evaluation."""

import torch
import torch.distributed as dist


def evaluate(model, batches):
    modes = {module: module.training for module in model.modules()}
    model.eval()
    counts = torch.zeros(2, dtype=torch.float64)
    with torch.no_grad():
        for x, y in batches:
            counts += torch.tensor([(model(x).argmax(1) == y).sum(), len(y)])
    dist.all_reduce(counts)
    for module, training in modes.items():
        module.training = training
    return float(counts[0] / counts[1])
