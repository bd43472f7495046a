"""Lets the submission accumulate gradients over micro-batches, and watches model, optimizer and scaler."""

import torch
from torch import nn

from conformance.components.gradient_accumulation.averaging_wrapper import Replicated, unsymmetric_loss
from conformance.components.gradient_accumulation.numbers import LEARNING_RATE, MOMENTUM, SCALE, WEIGHT_DECAY
from conformance.ranks.context import Context

Batches = list[tuple[torch.Tensor, torch.Tensor]]


def accumulate(context: Context) -> None:
    """After every step, answer with the parameters, the number of exchanges and of optimizer steps, and the scale.

    The answer also says whether the micro-batches and the modes of all modules are as they were before the step.
    """
    case, made = context.case, []
    network = nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 1)).double()
    network.load_state_dict({name: context.given[name] for name in network.state_dict()})
    model = Replicated(network, case.at)
    network[1].eval()  # as a norm that keeps its statistics while the rest trains
    modes = [module.training for module in model.modules()]
    groups = [{"params": layer.parameters()} for layer in (network[0], network[2])]
    optimizer = torch.optim.SGD(groups, lr=LEARNING_RATE, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY)
    optimizer.register_step_post_hook(lambda *_: made.append(1))
    scaler = torch.amp.GradScaler("cpu", init_scale=SCALE, growth_interval=1) if case.scaled else None
    for step in range(case.steps):
        model.start_over()
        made.clear()
        names = [f"{step}/{micro}" for micro in range(case.micro(step))]
        batches = [(context.given[f"x/{name}"], context.given[f"y/{name}"]) for name in names]
        handed, copies = list(batches), [(x.clone(), y.clone()) for x, y in batches]
        context.call("accumulate_and_step", model, optimizer, batches, unsymmetric_loss, scaler)
        context.answer[f"modes/{step}"] = torch.tensor(modes == [module.training for module in model.modules()])
        context.answer[f"left/{step}"] = torch.tensor(_is_as_before(batches, handed, copies))
        context.answer |= {f"parameter/{step}/{name}": p.clone() for name, p in model.module.state_dict().items()}
        counts = {"exchanges": model.exchanges, "forwards": model.forwards, "alive": model.most_alive}
        for name, count in {**counts, "steps": len(made)}.items():
            context.answer[f"{name}/{step}"] = torch.tensor(count)
        context.number(f"scale/{step}", scaler.get_scale() if scaler else 1.0)


def _is_as_before(batches: Batches, handed: Batches, copies: Batches) -> bool:
    """Whether the list holds the same pairs as before, with the same numbers."""
    same = all(
        torch.equal(now, then) for pairs in zip(handed, copies, strict=True) for now, then in zip(*pairs, strict=True)
    )
    return same and list(map(id, batches)) == list(map(id, handed))
