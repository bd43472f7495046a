"""`@distributed` checks what is written in it where it is written."""

import pytest

from pytest_ddp import UsageError, distributed
from pytest_ddp.planning.request import Request


def asked(decorated) -> Request:
    (mark,) = decorated.pytestmark
    return Request.of(**mark.kwargs)


def test_bare_decorator_leaves_everything_to_the_settings():
    @distributed
    def test(): ...

    assert asked(test) == Request()


def test_explicit_values_are_kept():
    @distributed(
        world_size=[2, 4], backend="gloo", device="cpu", timeout=5, isolation="process", observe=True, group=False
    )
    def test(): ...

    assert asked(test) == Request((2, 4), "gloo", "cpu", 5, "process", observe=True, group=False)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"world_size": 0}, "takes an integer from 1, or a list of them; got 0"),
        ({"world_size": -1}, "takes an integer from 1, or a list of them; got -1"),
        ({"world_size": True}, "takes an integer from 1, or a list of them; got True"),
        ({"world_size": []}, r"takes an integer from 1, or a list of them; got \[\]"),
        ({"world_size": "2"}, "takes an integer from 1, or a list of them; got '2'"),
        ({"world_size": 2.0}, "takes an integer from 1, or a list of them; got 2.0"),
        ({"backend": "tcp"}, "takes one of gloo, nccl, mpi, ucc, sim; got 'tcp'"),
        ({"device": "tpu"}, "takes one of cpu, cuda, auto; got 'tpu'"),
        ({"isolation": "none"}, "takes one of warm, process; got 'none'"),
        ({"reduction": "star"}, r"distributed\(reduction=...\) takes one of rank_order, ring, tree; got 'star'"),
        ({"timeout": 0}, "takes seconds above 0; got 0"),
        ({"timeout": "1"}, "takes seconds above 0; got '1'"),
        ({"group": "mine"}, r"@distributed\(group=...\) takes True or False; got 'mine'"),
        ({"observe": "yes"}, r"@distributed\(observe=...\) takes True or False; got 'yes'"),
        ({"timeout": True}, "takes seconds above 0; got True"),
        ({"schedule": "1:0:2"}, "expected decisions such as 12:1,16:2 in rising order; got '1:0:2'"),
        ({"schedule": 3}, "takes a strategy such as pytest_ddp.strategies.schedules"),
        (
            {"size": 2},
            r"takes the keywords world_size, .*, nodes, schedule, faults, reduction; got distributed\(size=2\)",
        ),
    ],
)
def test_mistakes_are_refused_at_the_decorator(options, message):
    with pytest.raises(UsageError, match=message):
        distributed(**options)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (2, r"decorates a test function, .*; got 2: write @distributed\(world_size=2\)"),
        ([2, 4], r"got \[2, 4\]: write @distributed\(world_size=\[2, 4\]\)"),
        ("gloo", r"got 'gloo': write @distributed\(world_size=2\)"),
        (property(len), "decorates a test function, a test class or a fixture; got <property"),
        (print, "decorates a test function, a test class or a fixture; got <built-in function print>"),
    ],
)
def test_what_is_neither_test_nor_fixture_says_what_to_write(target, message):
    with pytest.raises(UsageError, match=message):
        distributed(target)


def test_a_static_method_may_be_decorated_from_outside():
    def test(): ...

    distributed(staticmethod(test))
    assert asked(test) == Request()
