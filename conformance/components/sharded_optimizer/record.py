"""The component `sharded_optimizer`."""

from conformance.components.component import Component, training_numbers
from conformance.components.sharded_optimizer.table import CHECKS
from conformance.diagnosis.gradients import diagnose
from conformance.protocol.messages import Observation
from conformance.scenarios.scenario import Scenario
from conformance.submissions.contract import Contract, Function

SHARDED_OPTIMIZER = Component(
    contract=Contract(
        "sharded_optimizer",
        "optimizer",
        Function("get_sharded_optimizer", ("params", "optimizer_cls"), keywords=True),
    ),
    about="An optimizer of which each rank keeps the state of a share of the parameters.",
    exercise="conformance.ranks.train:train",
    numbers=training_numbers,
    simplest=Scenario(world_size=1, replicated=True),
    answer=Observation,
    checks=CHECKS,
    diagnose=diagnose,
)
