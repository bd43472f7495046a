"""What the gate reads of nvidia-smi, and which GPUs CUDA_VISIBLE_DEVICES leaves."""

import pytest

from pytest_ddp.gpu_gate import devices
from pytest_ddp.gpu_gate.devices import Gpu, Holder, UnfitError, query, usable, visible, wait_until_free

GPUS = [Gpu(0, "GPU-aa1", "H200", 1000, 5), Gpu(1, "GPU-bb2", "H200", 1000, 900, (Holder("7", "python", 890),))]


@pytest.fixture
def answers(monkeypatch):
    """The lines that nvidia-smi writes, by the beginning of the query."""
    lines = {
        "--query-gpu=index": ["0, GPU-aa1, NVIDIA H200, 1000, 5", "1, GPU-bb2, A, B, 1000, 900"],
        "--query-compute": ["GPU-bb2, 7, python -c, x, 890", "GPU-bb2, 8, [Not Found], [N/A]"],
        "--query-gpu=uuid": ["GPU-aa1, 5", "GPU-bb2, [N/A]"],
    }
    monkeypatch.setattr(devices, "_ask", lambda query: next(lines[key] for key in lines if query.startswith(key)))
    return lines


@pytest.mark.usefixtures("answers")
def test_memory_and_its_holders_are_read():
    first, second = query()
    assert first == Gpu(0, "GPU-aa1", "NVIDIA H200", 1000, 5)
    assert second == Gpu(
        1, "GPU-bb2", "A, B", 1000, 900, (Holder("7", "python -c, x", 890), Holder("8", "[Not Found]", None))
    )
    assert str(second) == (
        "GPU 1 (A, B): 900 of 1000 MiB held by pid 7 python -c, x (890 MiB), pid 8 [Not Found] (unknown size)"
    )
    assert str(first).endswith("held by no process that nvidia-smi shows here")
    assert devices.held_mib() == {"GPU-aa1": 5}


def test_memory_that_is_not_known_is_no_free_memory(answers):
    answers["--query-gpu=index"] = ["0, GPU-aa1, NVIDIA H200, 1000, [N/A]"]
    with pytest.raises(UnfitError, match=r"does not say how much memory of GPU 0 is held: \[N/A\] \(is MIG on\?\)"):
        query()
    answers["--query-gpu=index"] = []
    with pytest.raises(UnfitError, match="nvidia-smi shows no GPU"):
        query()


@pytest.mark.parametrize(
    ("setting", "indices"),
    [
        (None, [0, 1]),
        ("1,0", [1, 0]),
        ("1", [1]),
        (" 0 , 1", [0, 1]),
        ("GPU-bb", [1]),
        ("", []),
        ("-1,0", []),
        ("0,7,1", [0]),
        ("GPU", []),
        ("MIG-aa1", []),
    ],
)
def test_cuda_visible_devices_names_the_gpus(setting, indices):
    assert [gpu.index for gpu in visible(GPUS, setting)] == indices


@pytest.mark.usefixtures("answers")
def test_too_few_gpus_are_said_with_what_hides_them():
    assert len(usable(2, None)) == 2
    with pytest.raises(UnfitError, match=r"3 GPUs are required: nvidia-smi shows 2$"):
        usable(3, None)
    with pytest.raises(
        UnfitError, match=r"1 GPUs .*: nvidia-smi shows 2, and CUDA_VISIBLE_DEVICES='' leaves 0 of them"
    ):
        usable(1, "")


def test_the_gate_waits_for_memory_that_is_given_back():
    looks = iter([GPUS, GPUS[:1]])
    assert wait_until_free(lambda: next(looks), 100, 0.01) == (GPUS[:1], [])


def test_memory_that_is_not_given_back_is_told_with_its_holder():
    _, full = wait_until_free(lambda: GPUS, 100, 0)
    assert full == ["GPU 1 (H200): 900 of 1000 MiB held by pid 7 python (890 MiB); the limit is 100 MiB"]


def test_a_command_that_is_missing_or_fails_is_said(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UnfitError, match=r"there is no nvidia-smi here: .* no NVIDIA driver, or the container"):
        query()
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho 'Driver/library version mismatch'; exit 18\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    with pytest.raises(UnfitError, match="exit code 18: Driver/library version mismatch"):
        query()
