"""Lets the submission accumulate gradients over micro-batches, and watches model, optimizer and scaler."""

from typing import Any

import torch
from torch import nn

from conformance.components.gradient_accumulation.averaging_wrapper import Replicated, unsymmetric_loss
from conformance.components.gradient_accumulation.case import LEARNING_RATE, MOMENTUM, SCALE, WEIGHT_DECAY
from conformance.ranks.context import Context


class Scaler(torch.amp.GradScaler):
    """A scaler that counts its updates before a step."""

    def start_over(self) -> None:
        """Begin a step."""
        self.updates = self.early_updates = 0

    def step(self, *args: Any, **options: Any) -> float | None:
        """Step the optimizer."""
        self.early_updates = self.updates
        return super().step(*args, **options)

    def update(self, *args: Any, **options: Any) -> None:
        """Update the scale."""
        self.updates += 1
        super().update(*args, **options)


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
    scaler = Scaler("cpu", init_scale=SCALE, growth_interval=1) if case.scaled else None
    for step in range(case.steps):
        model.start_over()
        if scaler:
            scaler.start_over()
        made.clear()
        names = [f"{step}/{micro}" for micro in range(case.micro(step))]
        batches = [(context.given[f"x/{name}"], context.given[f"y/{name}"]) for name in names]
        before = [(pair, [tensor.clone() for tensor in pair]) for pair in batches]
        context.call("accumulate_and_step", model, optimizer, batches, unsymmetric_loss, scaler)
        same = (
            now is pair and all(map(torch.equal, now, copy)) for now, (pair, copy) in zip(batches, before, strict=False)
        )
        found = {
            "steps": len(made),
            "exchanges": model.exchanges,
            "forwards": model.forwards,
            "alive": model.most_alive,
            "early_updates": scaler.early_updates if scaler else 0,
            "same_modes": modes == [module.training for module in model.modules()],
            "same_batches": len(batches) == len(before) and all(same),
        }
        context.answer |= {f"{step}/{name}": torch.tensor(value) for name, value in found.items()}
        context.answer |= {f"{step}/parameter/{name}": p.clone() for name, p in network.state_dict().items()}
        context.number(f"{step}/scale", scaler.get_scale() if scaler else 1.0)
