"""What speaks against a run, one by one."""

import datetime as dt

import pytest

from pytest_ddp.gpu_gate.candidate import Ended
from pytest_ddp.gpu_gate.devices import Gpu
from pytest_ddp.gpu_gate.junit import Case
from pytest_ddp.gpu_gate.policy import ExpectedSkip, Flaky, Policy
from pytest_ddp.gpu_gate.verdict import Seen, judge

TODAY = dt.date(2026, 11, 28)
GPU = Gpu(0, "GPU-a", "H200", 1000, 10)
PASSED, FAILED, ERROR = Case("a.py::test_p", "passed"), Case("a.py::test_f", "failed", "boom"), Case("a.py", "error")
SKIPPED, XFAILED = Case("a.py::test_s", "skipped", "no GPU"), Case("a.py::test_x", "xfailed")
FORGIVES = Policy((Flaky("a.py::test_f", "ana", "#1", TODAY),), (ExpectedSkip("a.py::test_s", "no GPU", 2),))


def found(*cases, code=0, used=500, policy=None, least=1, left=(), full=()):
    seen = Seen(Ended(code, left), [GPU], {"GPU-a": used}, full)
    return [each.text for each in judge(cases, seen, policy or Policy(), min_executed=least, today=TODAY)]


def test_a_run_that_passed_on_a_gpu_is_green():
    assert found(PASSED, XFAILED, least=2) == []


@pytest.mark.parametrize(
    ("cases", "keywords", "texts"),
    [
        ((PASSED, FAILED), {"code": 1}, ["a.py::test_f failed"]),
        ((PASSED, ERROR), {"code": 1}, ["a.py has an error"]),
        ((PASSED, SKIPPED), {}, ["a.py::test_s was skipped, and no [[skip]] expects it: no GPU"]),
        ((PASSED,), {"least": 2}, ["1 tests were executed, and at least 2 are required"]),
        ((), {"code": 5}, ["0 tests were executed, and at least 1 are required", "pytest ended with exit code 5: *"]),
        ((PASSED,), {"code": None}, ["the tests did not end in time, and were killed"]),
        ((PASSED,), {"code": -11}, ["pytest ended with exit code -11: the end of the log says why"]),
        ((PASSED,), {"code": 1}, ["pytest ended with exit code 1, but its report has none: the end of the log says *"]),
        ((FAILED,), {"code": 0}, ["a.py::test_f failed", "pytest ended with exit code 0, but its report has failures"]),
        ((PASSED,), {"left": ("pid 7 python",)}, ["processes outlived the tests and were killed: pid 7 python"]),
        ((PASSED,), {"used": 20}, ["GPU 0 was never used: nvidia-smi saw no memory of it held while the tests ran"]),
        ((PASSED,), {"full": ["GPU 0 is full"]}, ["after the tests, GPU 0 is full"]),
    ],
)
def test_what_fails_the_gate(cases, keywords, texts):
    got = found(*cases, **keywords)
    assert len(got) == len(texts)
    assert all(text.startswith(expected.removesuffix("*")) for text, expected in zip(got, texts, strict=True))


def test_everything_skipped_says_why():
    skipped = [Case(f"a.py::test_{number}", "skipped", "no GPU") for number in range(3)]
    policy = Policy((), (ExpectedSkip("a.py", "no GPU", 2),))
    assert found(*skipped, policy=policy) == ["0 tests were executed, and at least 1 are required; 3 skipped: no GPU"]


def test_forgiven_failures_and_expected_skips_are_green():
    assert found(PASSED, FAILED, SKIPPED, code=1, policy=FORGIVES, least=2) == []


def test_the_policy_itself_can_fail_the_gate():
    assert [text[:40] for text in found(PASSED, policy=FORGIVES)] == [
        "[[flaky]] a.py::test_f fits no test of t",
        "[[skip]] a.py::test_s fits no test of th",
    ]


def test_a_gpu_beside_those_required_may_idle():
    seen = Seen(Ended(0), [GPU, Gpu(1, "GPU-b", "H200", 1000, 10)], {"GPU-a": 500, "GPU-b": 10})
    assert judge([PASSED], seen, Policy(gpus=1), min_executed=1, today=TODAY) == []
    assert len(judge([PASSED], seen, Policy(gpus=2), min_executed=1, today=TODAY)) == 1
