"""Faults of nodes while torchrun runs tests on them: each is reported, and ends the job cleanly (docs/nodes.md)."""

import pytest
from job_suites import PLACES, TRAINS
from torchrun import PORT

pytestmark = [pytest.mark.nodes, pytest.mark.timeout(600)]
LOST = {
    "test_trains_until_the_fault": "FAILED",
    "test_after_the_fault": "ERROR",
    "test_on_rank_0_alone": "PASSED",
}


def kill_pytest(job, number):
    for process in job.pytest_on(number):
        process.kill()


# Each makes node 1 useless.
FAULTS = {
    "its link is cut": lambda job: job.nodes[1].cut(),
    "its power is cut": lambda job: job.nodes[1].power_off(),
    "its agent is killed": lambda job: job.agents[1].kill(),
    "its pytest is killed": lambda job: kill_pytest(job, 1),
}
CASES = [fault if "link" in fault else pytest.param(fault, marks=pytest.mark.long) for fault in FAULTS]


@pytest.fixture
def training(make_job):
    """Return a job of two nodes whose ranks are in a test that never ends."""
    job = make_job(2, TRAINS.format(size=2))
    job.start_all(1, 1)
    job.wait_until_tests_begin(2)
    return job


@pytest.mark.parametrize("fault", CASES)
def test_a_node_that_is_lost_costs_the_tests_on_it(training, fault):
    FAULTS[fault](training)
    assert training.agents[0].wait() == 1
    assert training.results == LOST
    assert "node 1 (node1) was lost" in training.report
    assert training.left(training.nodes[0]) == []
    training.wait_until_no_test_is_left()


@pytest.mark.long
def test_when_the_agent_of_rank_0_is_killed_the_run_is_interrupted_on_all_nodes(training):
    """The store of the job is lost with it."""
    training.agents[0].kill()
    assert training.agents[1].wait() != 0
    training.wait_until_no_test_is_left()
    assert "KeyboardInterrupt" in training.report


@pytest.mark.long
def test_when_pytest_of_rank_0_is_killed_the_job_ends_on_all_nodes(training):
    kill_pytest(training, 0)
    assert training.wait() == [1, 1]
    assert training.left() == []


@pytest.mark.long
def test_a_port_that_is_taken_is_reported(make_job):
    job = make_job(2, PLACES.format(size=2))
    job.nodes[0].take_port(PORT)
    job.start(0, *job.static(0))
    assert job.wait() == [1]
    assert "address already in use" in job.report.lower()
