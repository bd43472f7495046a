"""Each simulated rank has random numbers, an environment, a working directory and filters of warnings of its own."""

# ruff: noqa: NPY002  numpy's global random numbers are what is tested

import os
import random
import sys
import warnings
from io import StringIO

import numpy as np
import pytest
import torch
import torch.distributed as dist

from pytest_ddp.simulated import simulate


def sys_stdout():
    return getattr(sys.stdout, "getvalue", str)()


def in_turn(change, read):
    """Let every rank change something, then every rank read it."""

    def run():
        change(dist.get_rank())
        dist.barrier()
        found = read()
        dist.barrier()
        return found

    before = read()
    run = simulate(run, 3)
    run.raise_problem()
    assert read() == before
    return run.results


@pytest.mark.parametrize(
    ("change", "read"),
    [
        (torch.manual_seed, lambda: torch.get_rng_state().numpy().tobytes()),
        (random.seed, random.getstate),
        (np.random.seed, lambda: str(np.random.get_state())),
        (lambda rank: np.random.randn(rank + 1), lambda: str(np.random.get_state())),
        (lambda rank: os.environ.update(VALUE_OF_RANK=str(rank)), lambda: os.environ.get("VALUE_OF_RANK")),
        (lambda rank: os.environb.update({b"VALUE_OF_RANK": b"%d" % rank}), lambda: os.environ.get("VALUE_OF_RANK")),
        (lambda rank: warnings.filterwarnings("ignore", f"rank {rank}"), lambda: str(warnings.filters)),
        (lambda rank: setattr(sys, "stdout", StringIO(f"{rank}")), sys_stdout),
    ],
    ids=["torch", "random", "numpy", "numpy's normal numbers", "environ", "environb", "warnings", "stdout"],
)
def test_each_rank_has_its_own(change, read):
    assert len(set(in_turn(change, read))) == 3


def test_each_rank_has_a_working_directory(tmp_path):
    for rank in range(3):
        (tmp_path / str(rank)).mkdir()
    found = in_turn(lambda rank: os.chdir(tmp_path / str(rank)), os.getcwd)
    assert found == [str(tmp_path / str(rank)) for rank in range(3)]


def test_each_rank_has_a_default_dtype():
    dtypes = [torch.float16, torch.float32, torch.float64]
    assert in_turn(lambda rank: torch.set_default_dtype(dtypes[rank]), torch.get_default_dtype) == dtypes


def test_ranks_begin_with_the_state_of_the_process():
    torch.manual_seed(3)
    random.seed(3)
    np.random.seed(3)
    expected = torch.rand(1).item(), random.getrandbits(32), np.random.randn()
    torch.manual_seed(3)
    random.seed(3)
    np.random.seed(3)
    run = simulate(lambda: (dist.barrier(), torch.rand(1).item(), random.getrandbits(32), np.random.randn())[1:], 3)
    assert run.results == [expected] * 3


def test_the_second_normal_number_of_a_pair_belongs_to_its_rank():
    def draw():
        np.random.seed(dist.get_rank())
        first = np.random.randn()
        dist.barrier()
        second = np.random.randn()
        dist.barrier()
        return first, second, np.random.randn()

    def alone(seed):
        generator = np.random.RandomState(seed)
        return generator.randn(), generator.randn(), generator.randn()

    assert simulate(draw, 3).results == [alone(seed) for seed in range(3)]


def test_the_environment_has_the_variables_of_torchrun():
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
    assert simulate(lambda: [os.environ[name] for name in names], 2).results == [
        ["0", "0", "2", "2"],
        ["1", "1", "2", "2"],
    ]


def test_warnings_that_a_rank_catches_are_its_own():
    def catch():
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            dist.barrier()
            warnings.warn(f"rank {dist.get_rank()}", stacklevel=1)
            dist.barrier()
        return [str(one.message) for one in caught]

    before = list(warnings.filters), warnings.showwarning
    assert simulate(catch, 3).results == [["rank 0"], ["rank 1"], ["rank 2"]]
    assert (list(warnings.filters), warnings.showwarning) == before


def test_c_code_sees_the_environment_of_the_process_again(monkeypatch):
    monkeypatch.setenv("VALUE_OF_RANK", "process")
    simulate(lambda: os.environ.update(VALUE_OF_RANK="rank"), 2)
    with os.popen("echo $VALUE_OF_RANK") as output:  # noqa: S605,S607  a process that inherits the environment
        assert output.read() == "process\n"
