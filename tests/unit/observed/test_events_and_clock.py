"""Entries as text, the clock, names of parameters, the gradients of a graph, and lines of the program."""

import gc
import weakref
from pathlib import Path

import torch
from torch import nn

from pytest_ddp.observed import Entry, GradientReady, Moment
from pytest_ddp.observed.inspection.collectives import Collectives
from pytest_ddp.observed.recording.autograd import accumulators
from pytest_ddp.observed.recording.call_site import caller
from pytest_ddp.observed.recording.record import Clock, Record
from pytest_ddp.planning.world import World


def test_an_entry_as_text():
    reduced = Entry("all_reduce", "0", (0, 1), ((2, 3), ()), dtype="float32", sequence=7, line="train.py:31")
    assert str(reduced) == "all_reduce #7 float32[2, 3] + [] (train.py:31)"
    assert str(Entry("send", "0", (0, 1), ((4,),), dtype="int64", peer=1, sequence=2)) == "send #2 to rank 1 int64[4]"
    assert str(Entry("recv", "0", (0, 1), peer=None, sequence=1)) == "recv #1"
    assert str(Entry("recv", "0", (0, 1), peer=3, sequence=1)) == "recv #1 from rank 3"


def test_sends_and_receives_are_point_to_point():
    assert [Entry(op, "0", (0,)).point_to_point for op in ("send", "recv", "barrier")] == [True, True, False]


def test_the_clock_reports_the_innermost_backward():
    clock = Clock()
    outer = clock.begin_backward("a.py:1", 3)
    outer.ready = 2
    inner = clock.begin_backward("b.py:2", 1)
    assert clock.tick() == Moment(1, 2, 0, 1)
    clock.running.remove(inner)
    assert clock.tick() == Moment(2, 1, 2, 3)
    clock.running.remove(outer)
    assert clock.tick() == Moment(3)


def names(record: Record, *parameters: torch.Tensor) -> list[str]:
    """Return the names that the record's events give to parameters whose gradients are ready."""
    backward = record.backward_began(len(parameters))
    for parameter in parameters:
        record.gradient_ready(backward, parameter)
    return [event.parameter for event in record.events if isinstance(event, GradientReady)]


def test_names_keep_no_parameter_alive():
    record, model = Record(), nn.Linear(2, 3)
    Collectives(record).name(model)
    assert names(record, *model.parameters()) == ["weight", "bias"]
    weight = weakref.ref(model.weight)
    del model
    gc.collect()
    assert weight() is None


def test_a_parameter_without_a_name_is_described_by_its_shape():
    assert names(Record(), torch.zeros(2, 3)) == ["parameter [2, 3]"]


def test_a_new_tensor_does_not_get_the_name_of_a_deleted_one():
    record, gone = Record(), torch.zeros(1)
    record.names[gone] = "gone"
    place = id(gone)
    del gone
    later = [torch.zeros(2) for _ in range(100)]
    assert place in map(id, later)  # else this test tests nothing
    assert set(names(record, *later)) == {"parameter [2]"}


def run(outputs, *, inputs=(), accumulate_grad=True):
    return accumulators(outputs, None, False, False, inputs, allow_unreachable=True, accumulate_grad=accumulate_grad)


def test_the_gradients_that_backward_will_compute():
    first, second, unused = (torch.ones(2, requires_grad=True) for _ in range(3))
    loss = (first * second + first).sum() + unused.detach().sum()
    assert {id(node.variable) for node in run((loss,))} == {id(first), id(second)}
    assert [node.variable for node in run((loss,), inputs=(second,))] == [second]
    assert run((loss,), accumulate_grad=False) == []
    assert [node.variable for node in run((first,))] == [first]
    assert run((torch.ones(2),)) == []
    edge = torch.autograd.graph.get_gradient_edge(loss)
    assert len(run((edge,))) == 2


def test_the_line_is_relative_to_the_working_directory(monkeypatch, tmp_path):
    monkeypatch.chdir(Path(__file__).parent)
    line, called = caller()
    assert line.startswith("test_events_and_clock.py:")
    assert called == ""
    monkeypatch.chdir(tmp_path)
    assert caller()[0].startswith(f"{__file__}:")


def test_the_line_has_the_full_path_if_the_working_directory_is_deleted(monkeypatch, tmp_path):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert caller()[0].startswith(__file__)


def test_an_observed_world_as_text():
    assert str(World(2, observe=True)) == "2 ranks, gloo, cpu, observed"
    assert World(2, observe=True) != World(2)
