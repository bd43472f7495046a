"""Rounds are interleaved, ratios are taken within a round, and a noisy machine is reported."""

import os
import subprocess
import sys
from collections.abc import Callable
from subprocess import PIPE
from types import SimpleNamespace

import pytest

from reference.bench import method
from reference.bench.method import Spread, differences, interleave, noise, ratios, repeat_error, spread, watch_machine

PID = os.getpid()


def test_quartiles_lie_around_the_median() -> None:
    assert spread([5.0, 1.0, 2.0, 3.0, 4.0]) == Spread(2, 3, 4)
    assert spread([7.0]) == Spread(7, 7, 7)
    assert spread([1.0, 2.0, 3.0]).scaled(1000) == Spread(1500, 2000, 2500)


def test_a_ratio_is_taken_within_its_round() -> None:
    """A machine that is ten times slower in one round changes no ratio."""
    assert ratios([2.0, 20.0, 2.0], [1.0, 10.0, 1.0]) == Spread(2, 2, 2)
    assert differences([2.0, 20.0, 2.0], [1.0, 19.0, 1.0]) == Spread(1, 1, 1)


def test_the_repeat_error_compares_every_other_round() -> None:
    assert repeat_error([2.0, 30.0, 2.0, 33.0], [1.0, 10.0, 1.0, 11.0]) == pytest.approx(0.5)
    assert repeat_error([2.0], [1.0]) == 0


def test_another_variant_is_first_in_each_round() -> None:
    order: list[str] = []

    def repetition(name: str) -> Callable[[], float]:
        return lambda: order.append(name) or float(len(order))

    found = interleave({name: repetition(name) for name in "abc"}, rounds=3, warm_up=1)
    assert "".join(order) == "abc" + "abc" + "bca" + "cab"
    assert found == {"a": [4.0, 9.0, 11.0], "b": [5.0, 7.0, 12.0], "c": [6.0, 8.0, 10.0]}


def test_no_further_round_begins_after_the_time_is_over() -> None:
    assert interleave({"a": lambda: 1.0}, rounds=5, warm_up=0, seconds=0) == {"a": [1.0]}


def test_the_environment_says_where_numbers_were_measured() -> None:
    with watch_machine() as environment:
        found = environment().to_json()
    assert found["cores"] >= 1
    assert found["seconds"] > 0
    assert found["others"] >= 0


def test_only_the_cores_of_this_process_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others keep the cores 0 and 2 busy, which this process may not use."""
    clock = iter(range(1000))

    def cpu_times(*, percpu: bool) -> list[SimpleNamespace]:
        assert percpu
        now = 100 * next(clock)
        busy, idle = (SimpleNamespace(user=used, system=0, nice=0, steal=used) for used in (now, 0))
        return [busy, idle, busy]

    monkeypatch.setattr(method.psutil, "cpu_times", cpu_times)
    for mine, is_noisy in (({1}, False), ({0, 1}, True)):
        monkeypatch.setattr(method.os, "sched_getaffinity", lambda _, mine=mine: mine, raising=False)
        with watch_machine() as environment:
            found = environment()
        assert found.cores == len(mine)
        assert (found.others > 0, found.steal > 0) == (is_noisy, is_noisy)


BURN = "import time\nwhile time.process_time() < 0.3: pass\nprint('burnt', flush=True)\ninput()"


@pytest.mark.parametrize("is_in_job", [False, True])
def test_the_processes_of_the_benchmark_are_no_others(monkeypatch: pytest.MonkeyPatch, *, is_in_job: bool) -> None:
    """Those that it started; in a job, also those that the job's agent started: here this process is the agent."""
    monkeypatch.setattr(method, "in_job", lambda: is_in_job)
    monkeypatch.setattr(method.os, "getppid" if is_in_job else "getpid", lambda: PID)
    before = method._own()
    with subprocess.Popen([sys.executable, "-c", BURN], stdin=PIPE, stdout=PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "burnt\n"
        assert method._own() - before > 0.25
        process.communicate("\n")
    assert method._own() - before > 0.25  # it was waited for


ENVIRONMENT = {"cores": 2, "others": 0.05, "steal": 0.0, "load_before": 0.2, "load_after": 2.1}


def test_a_quiet_machine_is_reported_with_numbers() -> None:
    assert noise(ENVIRONMENT) == (
        "The machine was quiet: other processes used 0.05 of 2 cores, the hypervisor took 0.00, "
        "and the load average was 0.2 before and 2.1 after."
    )


@pytest.mark.parametrize("cause", ["others", "steal"])
def test_a_noisy_machine_is_reported(cause: str) -> None:
    assert noise({**ENVIRONMENT, cause: 0.5}).startswith("The machine was noisy")
