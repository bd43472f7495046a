"""Two thousand mixed tests in one run: every outcome counted, nothing leaks."""

import json
from pathlib import Path

import psutil
import pytest
from soak_suite import CONFTEST, OUTCOMES, modules

GROWTH_LIMIT = 50.0  # MiB
SLACK = 40  # descriptors and threads of groups whose destruction is still under way; a leak would be thousands


@pytest.mark.long
@pytest.mark.timeout(900)
def test_two_thousand_mixed_tests_leak_nothing(pytester, tmp_path, monkeypatch):
    temporary, shared = tmp_path / "temporary", Path("/dev/shm")
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(**modules())
    before = set(shared.iterdir())
    result = pytester.runpytest_subprocess("-q", "--tb=line", "-p", "no:cacheprovider", f"--basetemp={tmp_path}/base")
    result.assert_outcomes(**OUTCOMES)
    held = json.loads((pytester.path / "held.json").read_text(encoding="utf-8"))
    assert len(held) == 20
    check(held)
    assert not [path for path in temporary.iterdir() if not path.name.startswith("torchinductor_")]  # torch's own cache
    assert set(shared.iterdir()) <= before
    assert not [pid for processes in held for pid, *_ in processes if psutil.pid_exists(pid)]


def check(held: list[list[list[float]]]) -> None:
    """Compare what the controller and ranks 0, 2 and 3, which no test kills, held early and late."""
    stories = {"the controller": [processes[0] for processes in held]}
    lasting = set.intersection(*({rank[0] for rank in processes[1:]} for processes in held))
    assert len(lasting) == 3, "of four ranks all but rank 1 last"
    for pid in lasting:
        stories[f"the rank of process {pid:.0f}"] = [
            rank for processes in held for rank in processes[1:] if rank[0] == pid
        ]
    for what, story in stories.items():
        print(what, "descriptors, threads, MiB:", *(story[index][1:] for index in (0, len(story) // 2, -1)))
        (_, fds, threads, memory), (_, last_fds, last_threads, last_memory) = story[0], story[-1]
        assert last_fds <= fds + SLACK, f"descriptors of {what}"
        assert last_threads <= threads + SLACK, f"threads of {what}"
        assert last_memory <= memory + GROWTH_LIMIT, f"memory of {what}"
    for processes in held:
        assert len(processes) <= 1 + 4 + 2, "more processes than a pool of 4 and a pair of its own"
