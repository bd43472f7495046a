"""pytest under torchrun on several nodes: what it reports when all is well."""

import pytest
from job_suites import ALL_KINDS, PLACES
from torchrun import PORT

pytestmark = [pytest.mark.nodes, pytest.mark.timeout(600)]
RESULTS = {
    "test_ranks_are_on_two_nodes": "PASSED",
    "test_fails_on_rank_3": "FAILED",
    "test_dies_on_rank_2": "FAILED",
    "test_is_observed": "PASSED",
    "test_deadlocks": "FAILED",
    "test_hangs_on_rank_3": "FAILED",
    "test_has_a_fixture": "PASSED",
    "test_examples_are_the_same_everywhere": "PASSED",
    "test_calls_functions_on_ranks": "PASSED",
    "test_wants_more_ranks_than_the_job_has": "SKIPPED",
    "test_the_last_one_passes": "PASSED",
}
SEEN = (
    "rank 3 of 4 (gloo, cpu) raised AssertionError: seen on node1",
    "rank 2 of 4 (gloo, cpu) was killed by SIGKILL",
    "rank 0 of 4 (gloo, cpu) deadlocked: it waits in barrier #1, which rank 1 never entered: it has returned",
    "rank 3 of 4 (gloo, cpu) was still running at its deadline of 3 s",
    "5 ranks are needed; this job has 4",
    "4 failed, 6 passed, 1 skipped",
)


def test_every_kind_of_test_runs_on_the_ranks_of_a_job(make_job):
    job = make_job(2, ALL_KINDS)
    job.start_all(2, 2)
    assert job.wait() == [1, 1], job.report
    assert job.results == RESULTS
    assert [text for text in SEEN if text not in job.report] == []
    assert "test session starts" not in job.agents[1].output
    assert job.left() == []


def test_nodes_may_have_different_numbers_of_ranks(make_job):
    job = make_job(3, PLACES.format(size=4))
    job.start_all(1, 2, 1, options=job.static)
    assert job.wait() == [0, 0, 0], job.report
    assert "4 ranks on 3 nodes" in job.report
    assert job.left() == []


@pytest.mark.long
def test_a_job_may_have_three_ranks_on_one_node_and_four_on_another(make_job):
    job = make_job(2, PLACES.format(size=7))
    job.start_all(3, 4, options=job.static)
    assert job.wait() == [0, 0], job.report
    assert "7 ranks on 2 nodes" in job.report
    assert job.left() == []


@pytest.mark.long
def test_a_node_that_starts_late_is_waited_for(make_job):
    job = make_job(2, PLACES.format(size=2))
    job.start(0, *job.static(0))
    while not job.nodes[1].reaches(job.nodes[0], PORT):  # the first agent is up, and waits
        assert job.agents[0].running(), job.report
    job.start(1, *job.static(1))
    assert job.wait() == [0, 0], job.report
    assert job.left() == []


@pytest.mark.long
def test_a_node_behind_a_slow_link_runs_the_same_tests(make_job):
    job = make_job(2, PLACES.format(size=2))
    job.nodes[1].delay(0.05)
    job.start_all(1, 1)
    assert job.wait() == [0, 0], job.report
    assert job.left() == []
