"""The trimming of stacks, modules that mention tests, the public face."""

import pytest

import pytest_ddp
from pytest_ddp.items import mentions_distributed
from pytest_ddp.pool.stack_dumps import trim_stacks


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


def test_a_module_mentions_the_base_classes_that_are_adopted(tmp_path):
    module = tmp_path / "test_it.py"
    module.write_text("class TestIt(MultiProcessTestCase): ...")
    assert not mentions_distributed(module)
    assert not mentions_distributed(module, ("DistributedTest",))
    assert mentions_distributed(module, ("DistributedTest", "MultiProcessTestCase"))
