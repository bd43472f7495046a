"""A simulated failure replays from its choices and from its seed, in this process and in others."""

import json
import os
import subprocess
import sys

import pytest
import schedule_bugs
from schedule_bugs import BUGS, replay

from pytest_ddp.simulated.exploration import explore_randomly


@pytest.fixture(scope="module")
def findings():
    """Each bug as it was found at random, as it was shrunk, and as its seed finds it."""
    cases = []
    for bug in BUGS:
        finding = explore_randomly(bug, 3).finding
        schedules = [list(finding.found), list(finding.choices), *([finding.seed] if finding.seed else [])]
        cases += [[bug.__name__, 3, schedule] for schedule in schedules]
    return cases


def replays_in_another_process(cases, hash_seed):
    environment = os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, schedule_bugs.__file__]
    ended = subprocess.run(
        command, input=json.dumps(cases), env=environment, capture_output=True, text=True, check=True
    )
    return json.loads(ended.stdout)


@pytest.mark.parametrize("times", [2, pytest.param(100, marks=pytest.mark.long)])
def test_each_failure_replays_in_this_process_and_in_another(findings, times):
    expected = [replay(*case) for case in findings]
    for _ in range(times):
        assert [replay(*case) for case in findings] == expected
    assert replays_in_another_process(findings * times, hash_seed="1") == expected * times


def test_the_seed_is_that_of_the_choices(findings):
    by_bug = {}
    for name, world_size, schedule in findings:
        by_bug.setdefault(name, []).append(replay(name, world_size, schedule))
    assert all(endings[0] == endings[2] for endings in by_bug.values() if len(endings) > 2)
    assert any(len(endings) > 2 for endings in by_bug.values())
