"""A deadlock of a submission costs no deadline."""

import pytest

from conformance.components.evaluation.case import EvaluationCase
from conformance.components.registry import COMPONENTS
from conformance.diagnosis.crashes import advise_on_crash, describe_crash
from conformance.execution.executor import Executor
from conformance.execution.fork_servers import ranks_from
from conformance.execution.outcome import Broken, Observed
from conformance.scenarios.scenario import Scenario
from conformance.submissions.location import locate
from pytest_ddp.outcomes.outcome import Deadlocked, TimedOut

WAITS_FOR_OTHERS = """
    import torch.distributed as dist

    def get_naive_ddp(module):
        return module

    def naive_ddp_on_after_backward(ddp_model, optimizer):
        if dist.get_rank() == 0:
            dist.barrier()

    def evaluate(model, batches):
        naive_ddp_on_after_backward(model, None)
        return 1.0
    """


# Rank 0 waits for rank 1, which has returned. As rank 2 is busy, only an observed group tells so before the deadline.
WAITS_BESIDE_A_BUSY_RANK = """
    import threading
    import torch.distributed as dist

    def get_naive_ddp(module):
        return module

    def naive_ddp_on_after_backward(ddp_model, optimizer):
        if dist.get_rank() == 0:
            dist.barrier()
        if dist.get_rank() == 2:
            threading.Event().wait()
    """

TAKES_LONG_TO_IMPORT = """
    import time

    time.sleep(1)

    def get_naive_ddp(module):
        return module

    def naive_ddp_on_after_backward(ddp_model, optimizer):
        pass
    """


EVALUATIONS = EvaluationCase(2, sizes=((1,), (1,))), EvaluationCase(2, sizes=((2,), (1,)))
TRAININGS = Scenario(world_size=2), Scenario(world_size=3)


@pytest.mark.parametrize(("component", "asked"), [("naive_ddp", TRAININGS), ("evaluation", EVALUATIONS)])
def test_a_deadlock_of_a_component_waits_for_no_deadline(launcher, submit, component, asked):
    first, second = asked
    with ranks_from(launcher) as ranks:
        executor = Executor(ranks, locate(str(submit(WAITS_FOR_OTHERS))), "7")
        runs = [(executor.run(COMPONENTS[component], case), case) for case in (first, second)]
    for deadlocked, case in runs:
        assert isinstance(deadlocked, Broken)
        assert isinstance(deadlocked.root, Deadlocked)
        assert "rank 0" in describe_crash(deadlocked, case)
        assert "waits in barrier" in describe_crash(deadlocked, case)
    assert len({advise_on_crash(deadlocked, case, executor.location) for deadlocked, case in runs}) == 1
    assert advise_on_crash(*runs[0], executor.location)


def test_a_component_that_has_hung_is_observed_afterwards(launcher, submit, monkeypatch):
    first, second = Scenario(world_size=3), Scenario(world_size=4)
    with ranks_from(launcher) as ranks:
        executor = Executor(ranks, locate(str(submit(WAITS_BESIDE_A_BUSY_RANK))), "7")
        with monkeypatch.context() as patched:
            patched.setattr("conformance.execution.deadlines._FIRST_RUN_SECONDS", 1.0)
            hung = executor.run(COMPONENTS["naive_ddp"], first)
        assert isinstance(hung, Broken)
        assert isinstance(hung.root, TimedOut)
        assert "Rank 2 did not come back from line" in advise_on_crash(hung, first, executor.location)
        assert executor.watched == {"naive_ddp"}
        deadlocked = executor.run(COMPONENTS["naive_ddp"], second)
    assert isinstance(deadlocked, Broken)
    assert isinstance(deadlocked.root, Deadlocked)
    assert "waits in barrier" in describe_crash(deadlocked, second)


def test_an_import_that_takes_long_is_no_hang(launcher, submit, monkeypatch):
    monkeypatch.setattr("conformance.execution.deadlines._FIRST_RUN_SECONDS", 0.5)
    monkeypatch.setattr("conformance.execution.deadlines._SLOWER_IMPORT", 100.0)
    with ranks_from(launcher) as ranks:
        executor = Executor(ranks, locate(str(submit(TAKES_LONG_TO_IMPORT))), "7")
        assert not executor.look([]).error
        ran = executor.run_afresh(COMPONENTS["naive_ddp"], Scenario(world_size=2))
    assert isinstance(ran, Observed), ran
