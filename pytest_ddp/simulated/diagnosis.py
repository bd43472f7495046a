"""Says what is wrong with the operations of simulated ranks."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import torch

from pytest_ddp.operations.matching import broken_rule
from pytest_ddp.operations.table import RECV, SEND
from pytest_ddp.operations.wait_graph import Need, Position, needs_of, wait_text
from pytest_ddp.planning.world import rank_list
from pytest_ddp.simulated.operation import Launch, memory_range
from pytest_ddp.simulated.problems import (
    Deadlock,
    LostMessage,
    Mismatch,
    Problem,
    SharedTensor,
    TensorWithGaps,
    UnfinishedCollective,
)
from pytest_ddp.simulated.scheduler import Rank

if TYPE_CHECKING:
    from pytest_ddp.operations.fingerprint import Fingerprint

_LINES_SHOWN = 8
_REFUSED_BY_GLOO = frozenset({SEND, RECV, "all_to_all_single"})
_CORRUPTED_BY_GLOO = frozenset(
    {"all_reduce", "all_reduce_coalesced", "broadcast", "reduce", "scatter", "all_to_all_single"}
)


def gaps(launch: Launch) -> TensorWithGaps | None:
    """Say which tensor of a launch has gaps between its elements, if gloo would corrupt it; tried with torch 2.15."""
    name = launch.call.operation.name
    tensors = (*launch.inputs, *launch.outputs) if name in _REFUSED_BY_GLOO | _CORRUPTED_BY_GLOO else ()
    if all(one.layout != torch.strided or one.is_contiguous() for one in tensors):
        return None
    if name in _REFUSED_BY_GLOO and not all(one.is_contiguous() for one in launch.inputs or tensors):
        raise ValueError("Tensors must be contiguous")  # gloo's words
    for tensor in tensors:
        if not is_dense(tensor):
            shape, strides = list(tensor.shape), list(tensor.stride())
            text = (
                f"rank {launch.rank} calls {launch.fingerprint()} with a tensor of shape {shape} and strides {strides}"
            )
            return TensorWithGaps(f"{text}: its elements do not lie side by side. gloo corrupts it", (launch.rank,))
    return None


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether the elements of a tensor lie side by side, in any order."""
    if tensor.layout != torch.strided or tensor.is_contiguous():
        return True
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1 and stride != expected:
            return tensor.numel() == 0
        expected *= size
    return True


def mismatch(launch: Launch, first: Launch) -> Mismatch | None:
    """Say how the launches of two ranks do not match."""
    mine, theirs = launch.fingerprint(), first.fingerprint()
    rule = broken_rule(mine, theirs)
    if launch.call.ranks != first.call.ranks:
        rule = "all ranks must make the same groups in the same order"
    elif not rule and _strides(launch) != _strides(first) and "shapes" in launch.call.operation.must_match:
        rule = f"their strides differ, {_strides(launch)} and {_strides(first)}: gloo would mix up the elements"
    if not rule:
        return None
    text = f"rank {mine.rank} calls {mine}, where rank {theirs.rank} called {theirs}; {rule}"
    return Mismatch(text, (theirs.rank, mine.rank))


def _strides(launch: Launch) -> list[tuple[int, ...]]:
    return [tensor.stride() for tensor in launch.inputs if tensor.layout == torch.strided]


def shared(launches: Sequence[Launch]) -> SharedTensor | None:
    """Say which two ranks give overlapping memory, and one of them as a result, to one operation."""
    first = [(launch, launch.outputs[:1]) for launch in launches]
    dense = [(launch, one) for launch, ones in first for one in ones if one.layout == torch.strided]
    written = sorted((*memory_range(one), launch.rank) for launch, one in dense)
    for (_, end, rank), (start, _, other) in pairwise(written):
        if start < end and rank != other:
            launch = next(launch for launch in launches if launch.rank == rank)
            text = f"ranks {rank} and {other} give the same memory to {launch.fingerprint()}"
            return SharedTensor(
                f"{text}. Ranks that are processes share none: make tensors on each rank", (rank, other)
            )
    return None


def deadlock(ranks: Sequence[Rank], unmatched: Iterable[Launch]) -> tuple[dict[Rank, str], Deadlock]:
    """Return what each rank waits for that has lost its peer by its failure, and the deadlock of all that wait."""
    positions = _positions(ranks, unmatched)
    needs = needs_of(positions)
    waiting = [rank for rank in ranks if rank.waits_in is not None]
    texts = _texts(waiting, positions, needs)
    failed = {rank.number for rank in ranks if rank.over == "failed"}
    lost = {rank: f"rank {rank.number} {texts[rank]}" for rank in waiting if failed & _lacks(needs, rank)}
    alike: dict[str, list[int]] = {}
    for rank in waiting:
        alike.setdefault(texts[rank], []).append(rank.number)
    lines = [_line(numbers, text) for text, numbers in alike.items()][:_LINES_SHOWN]
    more = [f"... and {len(alike) - _LINES_SHOWN} more"] if len(alike) > _LINES_SHOWN else []
    return lost, Deadlock("\n".join(lines + more), tuple(rank.number for rank in waiting))


def _texts(waiting: Sequence[Rank], positions: dict[int, Position], needs: dict[int, Need]) -> dict[Rank, str]:
    """Say what each rank waits for; ranks that wait in one collective at one line wait for the same."""
    known: dict[object, str] = {}
    texts = {}
    for rank in waiting:
        waits_in = positions[rank.number].waits_in
        if waits_in is None:
            texts[rank] = f"waits for {rank.waits_in}"
            continue
        same = waits_in._replace(rank=-1) if waits_in.is_same_on_all_ranks else rank
        if same not in known:
            known[same] = wait_text(rank.number, positions, needs=needs)
        texts[rank] = known[same]
    return texts


def _line(numbers: Sequence[int], text: str) -> str:
    return f"{rank_list(numbers)} {text if len(numbers) == 1 else 'wait' + text.removeprefix('waits')}"


def _lacks(needs: dict[int, Need], rank: Rank) -> frozenset[int]:
    return needs[rank.number].lacks if rank.number in needs else frozenset()


def at_the_end(messages: Iterable[Launch], collectives: Iterable[dict[int, Launch]]) -> Problem | None:
    """Say what was launched and never matched."""
    for launch in messages:
        what = "is never received" if launch.call.operation.name == SEND else "never gets a message"
        return LostMessage(f"rank {launch.rank} launched {launch.fingerprint()}, which {what}", (launch.rank,))
    for launches in collectives:
        launch = next(iter(launches.values()))
        absent = rank_list([rank for rank in launch.call.ranks if rank not in launches])
        text = f"rank {launch.rank} launched {launch.fingerprint()}, which {absent} never entered"
        return UnfinishedCollective(text, tuple(launches))
    return None


def _positions(ranks: Sequence[Rank], unmatched: Iterable[Launch]) -> dict[int, Position]:
    entered: dict[int, list[Fingerprint]] = defaultdict(list)
    for launch in unmatched:
        entered[launch.rank].append(launch.fingerprint())
    return {
        rank.number: Position(
            rank.number,
            tuple(entered[rank.number]),
            rank.waits_in.fingerprint() if isinstance(rank.waits_in, Launch) else None,
            rank.over,
        )
        for rank in ranks
    }
