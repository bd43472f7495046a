"""A component needs a record and nothing else: `rank_sum`, which is not in the registry, is held to its check."""

import re
import textwrap
from pathlib import Path

import pytest
import torch
from rank_sum_component import RankSumCase

from conformance.checks.aspect import Aspect
from conformance.checks.check import Check, Violation
from conformance.checks.trial import CaseTrial
from conformance.components.component import Component
from conformance.execution.asked import for_each_rank
from conformance.execution.executor import Executor
from conformance.execution.fork_servers import ranks_from
from conformance.judging.run_check import run_check
from conformance.strategies.building_blocks import SEEDS, worlds
from conformance.submissions.contract import Function, part
from conformance.submissions.location import locate

PAGE = Path(__file__).parents[2] / "CONTRIBUTING.md"
RIGHT = """
import torch
import torch.distributed as dist

def rank_sum(value):
    total = torch.tensor(value, dtype=torch.float64)
    dist.all_reduce(total)
    return float(total)
"""


def numbers(_: RankSumCase, seed: int, rank: int) -> dict[str, torch.Tensor]:
    return {"value": torch.tensor(float(seed % 100 + rank), dtype=torch.float64)}


def sum_of_all_ranks(trial: CaseTrial) -> None:
    wanted = sum(float(given["value"]) for given in trial.given)
    for rank, answer in enumerate(trial.answers):
        if float(answer["sum"]) != wanted:
            raise Violation(f"On rank {rank}, the sum is {float(answer['sum']):g}; expected {wanted:g}.")


SUM = Check(
    "sum_of_all_ranks",
    "Every rank gets the sum of the values of all ranks.",
    lambda bounds: worlds(bounds).flatmap(lambda size: SEEDS.map(lambda seed: RankSumCase(size, seed))),
    sum_of_all_ranks,
    "numbers",
)
RANK_SUM = Component(
    contract=part("rank_sum", Function("rank_sum", ("value",))),
    about="Adds up a number over all ranks.",
    exercise="rank_sum_component:add_up",
    numbers=for_each_rank(numbers),
    simplest=RankSumCase(world_size=2),
    checks=(SUM,),
    aspects=(Aspect("the sum of all ranks", 1, ("sum_of_all_ranks",), essential=True),),
)


def test_contributing_shows_it_in_few_lines_outside_of_its_folder():
    section = PAGE.read_text(encoding="utf-8").partition("## How to add a component")[2]
    diff = section.partition("```diff\n")[2].partition("```")[0]
    parts = {part.split()[0]: part for part in re.split(r"^--- ", diff, flags=re.MULTILINE)[1:]}
    added = {name: re.findall(r"^\+ ?(.*)$", part.partition("\n")[2], re.MULTILINE) for name, part in parts.items()}
    assert sum(map(len, added.values())) <= 30
    text = re.sub(r"^\+", "", parts["tests/conformance/parts/rank_sum.py"].partition("\n")[2], flags=re.MULTILINE)
    assert text.split() == RIGHT.split()
    assert all((PAGE.parent / name).exists() for name in added if "rank_sum" not in name)


@pytest.fixture
def held(launcher, submit):
    def hold(adapters):
        with ranks_from(launcher) as ranks:
            executor = Executor(ranks, locate(str(submit(adapters))), "1")
            assert executor.look([RANK_SUM.contract]).defined == ["rank_sum"]
            implemented = executor.is_implemented(RANK_SUM)
            return implemented, run_check(RANK_SUM, SUM, executor, world_size=3, seed=1, examples=3)

    return hold


def test_the_right_one_passes(held):
    implemented, result = held(RIGHT)
    assert (implemented, result.status) == (True, "passed")


def test_a_wrong_one_fails_on_the_smallest_case(held):
    _, result = held(RIGHT.replace("dist.all_reduce(total)", "pass"))
    assert result.status == "failed"
    assert result.scenario == RankSumCase(world_size=2)
    assert result.message.startswith("On rank 0, the sum is ")


def test_one_that_raises_not_implemented_error_is_not_submitted(held):
    implemented, _ = held("def rank_sum(value):\n    raise NotImplementedError\n")
    assert not implemented


def test_one_that_raises_not_implemented_error_later_is_submitted_and_fails(held):
    adapters = """
    class Sum:
        def __float__(self):
            raise NotImplementedError

    def rank_sum(value):
        return Sum()
    """
    implemented, result = held(textwrap.dedent(adapters))
    assert (implemented, result.status) == (True, "failed")
