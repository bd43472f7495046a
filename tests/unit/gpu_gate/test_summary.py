"""The verdict as Markdown, as annotations and as JSON; the candidate's texts stay texts."""

import datetime as dt
import json

from pytest_ddp.gpu_gate.devices import Gpu, Holder
from pytest_ddp.gpu_gate.junit import Case
from pytest_ddp.gpu_gate.policy import ExpectedSkip, Flaky, Policy
from pytest_ddp.gpu_gate.summary import Verdict, annotations, to_json, to_markdown
from pytest_ddp.gpu_gate.verdict import Finding

BAD = Case("a.py::test_f", "failed", "assert 1 == 2\n100%", "a.py", 7)
KNOWN = Case("a.py::test_k", "failed", "hangs", "a.py", 9)
SKIPPED = Case("a.py::test_s", "skipped", "2 ranks on cuda need 2 GPUs")
POLICY = Policy(
    (Flaky("a.py::test_k", "ana", "#1", dt.date(2026, 12, 1)),), (ExpectedSkip("a.py::test_s", "2 GPUs", 2),)
)
VERDICT = Verdict(
    1,
    [Finding("a.py::test_f failed", BAD)],
    [BAD, KNOWN, SKIPPED],
    [Gpu(0, "GPU-a", "H200", 1000, 5, (Holder("7", "python", 5),))],
    "torch 2.15.0 computes on H200",
    POLICY,
)


def test_the_page_has_what_failed_what_is_forgiven_and_the_machine():
    page = to_markdown(VERDICT)
    assert page.startswith("## GPU gate: failed (exit code 1)\n\n2 executed, 2 failed, 1 skipped\n")
    assert "- a.py::test\\_f failed\n" in page
    assert "| a.py::test\\_k | failed | ana | 2026-12-01 | \\#1 |\n" in page
    assert "### Expected skips\n\n- a.py::test\\_s: 2 ranks on cuda need 2 GPUs\n" in page
    assert (
        "- GPU 0 \\(H200\\): 5 of 1000 MiB held by pid 7 python \\(5 MiB\\)\n- torch 2.15.0 computes on H200\n" in page
    )
    assert to_markdown(Verdict()).startswith("## GPU gate: passed (exit code 0)\n")


def test_a_long_list_is_cut():
    page = to_markdown(Verdict(1, [Finding(f"number {number}") for number in range(60)]))
    assert "- number 49\n- and 10 more\n" in page


def test_texts_of_the_candidate_are_no_markup():
    page = to_markdown(Verdict(1, [Finding("x\n# [a](http://b) <img src=c> `d` |e")]))
    assert "- x \\# \\[a\\]\\(http://b\\) &lt;img src=c&gt; \\`d\\` \\|e\n" in page


def test_annotations_stand_at_the_line_and_hold_one_command_each():
    hostile = Finding("::set-env name=A::b\n::error::c", Case("x", "failed", "", "a,b:c.py", 0))
    assert list(annotations(Verdict(1, [*VERDICT.findings, hostile], VERDICT.cases, policy=POLICY))) == [
        "::error title=GPU gate,file=a.py,line=7::a.py::test_f failed%0Aassert 1 == 2%0A100%25",
        "::error title=GPU gate,file=a%2Cb%3Ac.py,line=1::::set-env name=A::b%0A::error::c",
        "::warning title=GPU gate,file=a.py,line=9::a.py::test_k failed; it is in quarantine%0Ahangs",
    ]


def test_the_json_has_the_counts():
    verdict = json.loads(to_json(VERDICT))
    assert verdict["verdict"] == "failed"
    assert verdict["counts"] == {"executed": 2, "failed": 2, "skipped": 1}
    assert verdict["forgiven"] == ["a.py::test_k"]
    assert verdict["gpus"][0]["holders"] == [{"pid": "7", "name": "python", "mib": 5}]
