"""A right evaluation."""

import torch
import torch.distributed as dist


def evaluate(model, batches):
    was_training = model.training
    model.eval()
    counts = torch.zeros(2, dtype=torch.float64)
    with torch.no_grad():
        for x, y in batches:
            counts += torch.tensor([(model(x).argmax(1) == y).sum(), len(y)])
    dist.all_reduce(counts)
    model.train(was_training)
    return float(counts[0] / counts[1])
