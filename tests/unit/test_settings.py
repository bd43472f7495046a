"""Settings are read once, and every value that cannot be has a message that names its origin."""

import pytest

from pytest_ddp.errors import UsageError
from pytest_ddp.settings import Settings


def read(**given: str) -> Settings:
    return Settings.read(lambda name: (given[name], f"--ddp-{name}") if name in given else None)


def test_defaults():
    assert read() == Settings(world_size=(2,), backend=None, device="cpu", timeout=60.0)


def test_everything_can_be_set():
    given = read(world_size="1,2,4", backend="gloo", device="auto", timeout="2.5")
    assert given == Settings((1, 2, 4), "gloo", "auto", 2.5)


def test_counts_and_flags_are_parsed():
    given = read(seed="7", leaks="error", strict="yes", require_cuda="2", min_executed="3")
    assert given == Settings(seed=7, leaks="error", strict=True, require_cuda=2, min_executed=3)
    assert not read(strict="off").strict


def test_ranks_on_ray_nodes_have_a_number_for_each_node():
    given = read(launcher="ray", ray_ranks="4,2", ray_address="10.0.0.1:6379")
    assert given == Settings(launcher="ray", ray_ranks=(4, 2), ray_address="10.0.0.1:6379")


def test_names_of_classes_are_separated_by_commas_or_spaces():
    assert read(adopt="One, Two Three,Four") == Settings(adopt=("One", "Two", "Three", "Four"))


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("world_size", "0", "--ddp-world_size: a world has at least 1 rank; got 0"),
        ("world_size", "2,-1", "--ddp-world_size: a world has at least 1 rank; got -1"),
        ("world_size", "two", "--ddp-world_size: expected a world size such as 2, or several such as 1,2,4; got 'two'"),
        ("backend", "glou", "--ddp-backend: expected one of gloo, nccl, mpi, ucc, sim; got 'glou'"),
        ("device", "gpu", "--ddp-device: expected one of cpu, cuda, auto; got 'gpu'"),
        ("timeout", "0", "--ddp-timeout: expected a number of seconds above 0; got '0'"),
        ("timeout", "nan", "--ddp-timeout: expected a number of seconds above 0; got 'nan'"),
        ("timeout", "soon", "--ddp-timeout: expected a number of seconds above 0; got 'soon'"),
        ("seed", "-1", "--ddp-seed: expected an integer from 0; got '-1'"),
        ("min_executed", "some", "--ddp-min_executed: expected an integer from 0; got 'some'"),
        ("leaks", "maybe", "--ddp-leaks: expected one of warn, error, off; got 'maybe'"),
        ("adopt", "a.B", "--ddp-adopt: expected names of classes such as MultiProcessTestCase; got 'a.B'"),
        ("launcher", "slurm", "--ddp-launcher: expected one of here, ray; got 'slurm'"),
        ("strict", "very", "--ddp-strict: expected true or false; got 'very'"),
    ],
)
def test_mistakes_are_named_with_where_they_were_made(name, text, message):
    with pytest.raises(UsageError) as error:
        read(**{name: text})
    assert str(error.value) == message
