"""The header says how ranks are started, as far as it is known before the tests."""

import pytest

from pytest_ddp.reporting.run_summary import header
from pytest_ddp.settings import Settings


@pytest.mark.parametrize(
    ("device", "visible", "started"),
    [
        ("cpu", "0,1", "ranks forked;"),
        ("auto", "", "ranks forked;"),
        ("auto", "-1", "ranks forked;"),
        ("auto", "0,1", "2 GPUs; ranks forked, on GPUs in fresh interpreters;"),
        ("cuda", "0", "1 GPU; ranks in fresh interpreters;"),
    ],
)
@pytest.mark.skipif("sys.platform != 'linux'", reason="elsewhere ranks are fresh interpreters always")
def test_how_ranks_are_started_depends_on_the_device(monkeypatch, device, visible, started):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert started in header(Settings(device=device))
