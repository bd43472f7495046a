"""What the pool leaves to be done when the controller ends."""

import subprocess
import sys

import pytest

ENDS = """
from pytest_ddp.pool.launcher import shared_launcher

shared_launcher()  # registers what runs at the end
import triton
"""


def test_a_controller_that_has_loaded_triton_ends_without_reports_of_leaks():
    pytest.importorskip("triton", reason="comes with CUDA builds of torch")
    ended = subprocess.run([sys.executable, "-c", ENDS], capture_output=True, text=True, check=True, timeout=120)
    assert ended.stderr == ""
