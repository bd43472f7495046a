"""The black box, the trimming of stacks, collectives as text, modules that mention tests, the public face."""

import tempfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pytest_ddp
from pytest_ddp.items import mentions_distributed
from pytest_ddp.pool.rank_process import trim_stacks
from pytest_ddp.protocol.flight_recorder import SLOT, SLOTS, FlightRecorder
from pytest_ddp.rank.collective_hooks import Collective


@given(st.lists(st.text(alphabet=st.characters(exclude_characters="\0", codec="utf-8"), max_size=40), max_size=80))
def test_the_black_box_keeps_the_last_entries_in_order(entries):
    with tempfile.TemporaryFile() as file:
        box, other = FlightRecorder.map(file.fileno()), FlightRecorder.map(file.fileno())
        for entry in entries:
            box.write(entry)
        assert tuple(other.read()) == tuple(
            entry.encode()[:SLOT].decode(errors="replace") for entry in entries[-SLOTS:]
        )
        box.clear()
        assert tuple(other.read()) == ()


def test_stacks_lose_the_harness_below_the_users_frames_and_threads_of_ours():
    dump = """Thread 0x1 (most recent call first):
  File "/x/pytest_ddp/group.py", line 3 in _destroy

Current thread 0x2 (most recent call first):
  File "/x/pytest_ddp/observed/work.py", line 8 in wait
  File "/lib/torch/c10d.py", line 1 in all_reduce
  File "/home/me/test_mine.py", line 7 in test_it
  File "/lib/_pytest/python.py", line 9 in pytest_pyfunc_call
  File "/home/me/run.py", line 1 in main
"""
    assert trim_stacks(dump).splitlines() == [
        "Current thread 0x2 (most recent call first):",
        '  File "/lib/torch/c10d.py", line 1 in all_reduce',
        '  File "/home/me/test_mine.py", line 7 in test_it',
    ]


def test_collectives_as_text():
    assert str(Collective("barrier", "0", 3)) == "barrier #3"
    many = Collective("all_reduce", "0", 1, ((2, 3), (), (1,), (9,)), "float64")
    assert str(many) == "all_reduce #1 float64[2, 3] + [] + [1] + ..."
    assert str(Collective("recv", "2", 3, members=(0, 1, 4), peer=4)) == "recv #3 from rank 4 in group 2 (0-1,4)"
    assert str(Collective("barrier", "mine", 1, members=None)) == "barrier #1 in group mine"


def test_everything_public_is_there():
    assert all(hasattr(pytest_ddp, name) for name in pytest_ddp.__all__)


@pytest.mark.parametrize(
    ("text", "mentioned"),
    [
        ("from pytest_ddp import distributed", True),
        ("@pytest.mark.distributed", True),
        ("import torch.distributed", False),
        ("from pytest_ddp.errors import UsageError", False),
        (None, False),
    ],
)
def test_a_module_mentions_distributed_tests_by_our_name_or_the_marker(tmp_path, text, mentioned):
    module = tmp_path / "test_it.py"
    if text is not None:
        module.write_text(text)
    assert mentions_distributed(module) == mentioned
