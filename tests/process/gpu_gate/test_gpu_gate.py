"""The gate fails when a GPU is missing, hidden, full, broken or idle, and when everything was skipped.

What is fake here: `nvidia-smi` is a script that reads its answers from files, and `fake_cuda` lets torch count GPUs. A
GPU is "in use" while the file `busy` exists. The gate, pytest, pytest-ddp and the ranks are real.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parents[3]
SMI = """#!/bin/sh
cd {folder}
[ -e gone ] && {{ echo "Unable to determine the device handle"; exit 9; }}
[ -e busy ] && used=800 && touch looked || used=$(cat used)
case "$1" in
    --query-gpu=index*) echo "0, GPU-fake, Fake H200, 1000, $used";;
    --query-gpu=uuid*) echo "GPU-fake, $used";;
    *) cat apps;;
esac
"""
USES_THE_GPU = """
import os, pathlib, time
import pytest
from pytest_ddp import distributed

@pytest.fixture(scope="session", autouse=True)
def _context():
    busy = pathlib.Path({folder!r}, "busy")
    busy.touch()
    while not busy.with_name("looked").exists():
        time.sleep(0.05)
    yield
    busy.unlink(missing_ok=True)

@pytest.mark.parametrize("number", range(2))
@distributed(world_size=1)
def test_on_ranks(number): assert "SECRET_TOKEN" not in os.environ
"""


class Machine:
    """A machine with one fake GPU, the candidate's folder, and what the gate left."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.candidate, self.out = folder, folder / "candidate", folder / "out"
        self.variables = os.environ | {"FAKE_GPUS": "1", "SECRET_TOKEN": "hunter2", "PATH": f"{folder}:{os.defpath}"}
        self.variables.pop("CUDA_VISIBLE_DEVICES", None)
        self.variables.pop("GITHUB_ACTIONS", None)
        self.candidate.mkdir()
        (folder / "used").write_text("3")
        (folder / "apps").write_text("")
        (folder / "nvidia-smi").write_text(SMI.format(folder=folder))
        (folder / "nvidia-smi").chmod(0o755)
        plugin = folder / "site" / "fake_cuda-1.dist-info"
        plugin.mkdir(parents=True)
        (plugin / "METADATA").write_text("Metadata-Version: 2.1\nName: fake-cuda\nVersion: 1\n")
        (plugin / "entry_points.txt").write_text("[torch.backends]\nfake = fake_cuda:install\n")
        path = [str(ROOT), str(ROOT / "tests" / "on_ranks"), str(plugin.parent)]
        self.variables["PYTHONPATH"] = os.pathsep.join(path)

    def command(self, suite: str, *options: str) -> list[str]:
        (self.candidate / "test_suite.py").write_text(suite.format(folder=str(self.folder)))
        command = [sys.executable, "-m", "pytest_ddp.gpu_gate", "--candidate", str(self.candidate), "--wait=0"]
        command += [f"--out={self.out}", "--pass=PYTHONPATH", "--pass=FAKE_*", "--max-held=100", *options]
        return [*command, "--", "-p", "no:cacheprovider", "-p", "no:randomly"]

    def gate(self, suite: str, *options: str) -> tuple[int, str]:
        """Return the gate's exit code and its findings."""
        command = self.command(suite, *options)
        done = subprocess.run(command, env=self.variables, capture_output=True, text=True, check=False)
        self.said = done.stdout + done.stderr
        if not (self.out / "verdict.json").exists():
            return done.returncode, done.stderr
        verdict = json.loads((self.out / "verdict.json").read_text())
        assert verdict["exit_code"] == done.returncode, self.said
        return done.returncode, "\n".join(verdict["findings"])


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


def test_a_run_on_the_gpu_is_green_and_knows_no_secret(machine):
    machine.variables["GITHUB_STEP_SUMMARY"] = str(machine.folder / "page.md")
    machine.variables["GITHUB_ACTIONS"] = "true"
    assert machine.gate(USES_THE_GPU, "--min-executed=2") == (0, "")
    assert "2 passed" in (machine.out / "log.txt").read_text()
    assert (machine.folder / "page.md").read_text().startswith("## GPU gate: passed (exit code 0)\n\n2 executed, 2 pas")
    lines = machine.said.splitlines()
    token = lines[0].removeprefix("::stop-commands::")
    assert len(token) == 32
    assert f"::{token}::" in lines[1:]
    assert (machine.out / "junit.xml").read_bytes().startswith(b"<?xml")


def test_a_machine_without_a_gpu(machine):
    """What an earlier run left in the folder is gone: nobody takes its report for that of this run."""
    (machine.folder / "nvidia-smi").unlink()
    machine.out.mkdir()
    (machine.out / "junit.xml").write_text("<testsuites/>")
    code, text = machine.gate(USES_THE_GPU)
    assert (code, text[:30]) == (3, "there is no nvidia-smi here: t")
    assert sorted(path.name for path in machine.out.iterdir()) == ["summary.md", "verdict.json"]


def test_a_gpu_that_is_hidden(machine):
    machine.variables["CUDA_VISIBLE_DEVICES"] = ""
    assert machine.gate(USES_THE_GPU) == (
        3,
        "1 GPUs are required: nvidia-smi shows 1, and CUDA_VISIBLE_DEVICES='' leaves 0 of them",
    )


def test_fewer_gpus_than_required(machine):
    assert machine.gate(USES_THE_GPU, "--gpus=2") == (3, "2 GPUs are required: nvidia-smi shows 1")


def test_a_gpu_that_is_full(machine):
    (machine.folder / "used").write_text("900")
    (machine.folder / "apps").write_text("GPU-fake, 4242, /usr/bin/trainer, 890")
    assert machine.gate(USES_THE_GPU) == (
        3,
        "GPU 0 (Fake H200): 900 of 1000 MiB held by pid 4242 /usr/bin/trainer (890 MiB); the limit is 100 MiB",
    )
    assert "pid 4242 /usr/bin/trainer" in (machine.out / "summary.md").read_text()


def test_a_gpu_that_the_candidates_torch_does_not_find(machine):
    """nvidia-smi shows a GPU, and the real torch finds none: it is built for CPUs, or the device is not passed on."""
    machine.variables["FAKE_GPUS"] = "0"
    code, text = machine.gate(USES_THE_GPU)
    assert code == 3
    assert text.startswith("1 GPUs are required, but torch 2.")
    assert text.endswith(" of the candidate finds 0")


def test_a_gpu_that_does_not_compute(machine):
    machine.variables["FAKE_BROKEN"] = "1"
    code, text = machine.gate(USES_THE_GPU)
    assert (code, text[:71]) == (3, "the candidate's Python did not compute on a GPU: RuntimeError: CUDA err")


def test_everything_is_skipped(machine):
    suite = USES_THE_GPU.replace("@distributed", "@pytest.mark.skip(reason='no GPU')\n@distributed")
    code, text = machine.gate(suite, "--min-executed=2")
    assert code == 1
    assert "test_suite.py::test_on_ranks[0] was skipped, and no [[skip]] expects it: no GPU" in text
    assert "0 tests were executed, and at least 2 are required; 2 skipped: no GPU" in text
    assert "FAILED: 0 executed and 2 skipped, --ddp-min-executed requires 2" in (machine.out / "log.txt").read_text()


@pytest.mark.long
def test_no_test_is_selected(machine):
    code, text = machine.gate("")
    assert code == 1
    assert "0 tests were executed, and at least 1 are required" in text


def test_plain_tests_are_no_distributed_tests_and_an_idle_gpu_is_no_gpu_test(machine):
    code, text = machine.gate("def test_it(): print('::error::fake')")
    assert code == 1
    assert "pytest ended with exit code 1, but its report has none: the end of the log says why" in text
    assert "GPU 0 was never used: nvidia-smi saw no memory of it held while the tests ran" in text


def test_a_failure_in_quarantine_is_shown_and_does_not_fail_the_gate(machine):
    suite = USES_THE_GPU + "\ndef test_flaky(): assert 0\n"
    file = machine.folder / "quarantine.toml"
    file.write_text(
        '[[flaky]]\ntest = "test_suite.py::test_flaky"\nowner = "ana"\nreason = "#1"\nexpires = 2999-01-01\n'
    )
    assert machine.gate(suite, f"--quarantine={file}") == (0, "")
    assert "| test\\_suite.py::test\\_flaky | failed | ana | 2999-01-01 |" in (machine.out / "summary.md").read_text()


def test_a_quarantine_file_that_is_wrong_stops_the_gate(machine):
    file = machine.folder / "quarantine.toml"
    file.write_text("[[flaky]]\n")
    code, text = machine.gate(USES_THE_GPU, f"--quarantine={file}")
    assert code == 2
    assert "quarantine.toml: [[flaky]] has the keys test, owner, reason, expires; got " in text


@pytest.mark.long
def test_memory_and_processes_that_outlive_the_tests(machine):
    """The process that the candidate leaves is killed, so that the next job finds the GPU free."""
    suite = USES_THE_GPU.replace("busy.unlink(missing_ok=True)", "pass") + (
        "\ndef test_leaves():\n    import subprocess\n"
        "    subprocess.Popen(['sleep', '600'], start_new_session=True, stdout=subprocess.DEVNULL)\n"
    )
    code, text = machine.gate(suite)
    assert code == 1
    assert "processes outlived the tests and were killed: pid " in text
    assert "after the tests, GPU 0 (Fake H200): 800 of 1000 MiB held by no process that nvidia-smi shows here" in text
    assert not [each for each in psutil.process_iter(["cmdline"]) if each.info["cmdline"] == ["sleep", "600"]]


@pytest.mark.long
def test_tests_that_do_not_end(machine):
    suite = USES_THE_GPU + "\ndef test_hangs(): time.sleep(600)\n"
    code, text = machine.gate(suite, "--timeout=25")
    assert code == 1
    assert "the tests did not end in time, and were killed" in text


@pytest.mark.long
def test_a_gpu_that_is_lost_during_the_tests(machine):
    suite = USES_THE_GPU + "\ndef test_loses():\n    pathlib.Path({folder!r}, 'gone').touch(); time.sleep(600)\n"
    assert machine.gate(suite) == (3, "nvidia-smi ended with exit code 9: Unable to determine the device handle")


@pytest.mark.long
def test_a_cancelled_gate_ends_the_tests(machine):
    suite = USES_THE_GPU + "\ndef test_hangs():\n    pathlib.Path({folder!r}, 'pid').write_text(str(os.getpid()))\n"
    suite += "    time.sleep(600)\n"
    gate = subprocess.Popen(machine.command(suite), env=machine.variables, stdout=subprocess.DEVNULL)
    written = machine.folder / "pid"
    while not (written.exists() and written.read_text()):
        assert gate.poll() is None
        time.sleep(0.05)
    tests = psutil.Process(int(written.read_text()))
    gate.send_signal(signal.SIGTERM)
    assert gate.wait(60) == 128 + signal.SIGTERM
    assert not tests.is_running()
