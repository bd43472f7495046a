"""The data-parallel wrappers."""

from conformance.components.component import Component, training_numbers
from conformance.components.wrapper.aspects import ASPECTS
from conformance.components.wrapper.table import wrapper_checks
from conformance.diagnosis.gradients import diagnose
from conformance.protocol.messages import Observation
from conformance.scenarios.scenario import Scenario
from conformance.submissions.contract import Contract, Function


def _wrapper(name: str, about: str, *more: str, batch_start: bool = False) -> Component:
    called_with = ("ddp_model", "optimizer")
    return Component(
        contract=Contract(
            name,
            "wrapper",
            Function(f"get_{name}", ("module", *more)),
            Function(f"{name}_on_after_backward", called_with),
            Function(f"{name}_on_train_batch_start", called_with) if batch_start else None,
        ),
        about=about,
        exercise="conformance.ranks.train:train",
        numbers=training_numbers,
        simplest=Scenario(world_size=1),
        answer=Observation,
        checks=wrapper_checks(name),
        aspects=ASPECTS[name],
        start="initial_broadcast",
        carries=("runs_to_the_end", "trains[one_rank]", "gradients_averaged"),
        diagnose=diagnose,
    )


WRAPPERS = (
    _wrapper("naive_ddp", "Averages each gradient after backward, one by one."),
    _wrapper("flat_ddp", "Averages all gradients after backward, as one flat tensor per dtype."),
    _wrapper("ddp_individual_parameters", "Averages each gradient as soon as backward has computed it."),
    _wrapper(
        "ddp_bucketed",
        "Averages buckets of gradients, each as soon as backward has filled it.",
        "bucket_size_mb",
        batch_start=True,
    ),
    _wrapper("ddp", "Averages gradients while backward computes others, in whatever way."),
)
