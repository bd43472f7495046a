"""On which nodes the ranks of a test run, of those that a job of torchrun, srun or mpirun has. Pure.

The nodes of ranks are a tuple with the number of each rank's node: (0, 0, 1) has ranks 0 and 1 on node 0. A world takes
the ranks of the job in their order, on each node the first ones.
"""

from collections import Counter
from collections.abc import Iterable


def local_ranks(nodes: Iterable[int]) -> tuple[int, ...]:
    """Return the number of each rank among the ranks on its node."""
    seen: Counter[int] = Counter()
    found = []
    for node in nodes:
        found.append(seen[node])
        seen[node] += 1
    return tuple(found)


def ranks_of_job(nodes: tuple[int, ...], job: tuple[int, ...]) -> tuple[int, ...]:
    """Return the rank of the job that is each rank of a world, whose ranks are on `nodes`."""
    on_node: dict[int, list[int]] = {}
    for rank, node in enumerate(job):
        on_node.setdefault(node, []).append(rank)
    return tuple(on_node[node][local] for node, local in zip(nodes, local_ranks(nodes), strict=True))


def spread(size: int, wanted: int | None, job: tuple[int, ...]) -> tuple[int, ...] | str:
    """Return the nodes of a world of `size` ranks on `wanted` nodes of a job, or what the job lacks.

    Node 0, on which pytest runs, is always one of them. Each node gets as many ranks as the others, if it has them.
    Without `wanted`, the world has the first ranks of the job.
    """
    counts = Counter(job)
    if size > len(job):
        return f"{size} ranks are needed; this job has {len(job)}"
    if wanted is None:
        return job[:size]
    if wanted > size:
        return f"{size} rank{'s' * (size > 1)} cannot be on {wanted} nodes"
    if wanted > len(counts):
        return f"{_nodes(wanted)} needed; this job has {len(counts)}"
    others = sorted(counts.keys() - {0}, key=lambda node: (-counts[node], node))
    chosen = sorted([0, *others[: wanted - 1]])
    shares = _shares(size, [counts[node] for node in chosen])
    if shares is None:
        return f"{size} ranks on {wanted} node{'s' * (wanted > 1)} are needed; this job has {_largest(counts, chosen)}"
    return tuple(node for node, share in zip(chosen, shares, strict=True) for _ in range(share))


def no_nodes(wanted: int) -> str:
    """Say what a run without a job lacks for a test on several nodes."""
    return f"{_nodes(wanted)} needed; pytest runs on one, unless torchrun, srun or mpirun starts it on several"


def _nodes(wanted: int) -> str:
    return "1 node is" if wanted == 1 else f"{wanted} nodes are"


def _largest(counts: Counter[int], chosen: list[int]) -> str:
    return " + ".join(str(counts[node]) for node in chosen)


def _shares(size: int, room: list[int]) -> list[int] | None:
    """Deal ranks to nodes, in turn, as long as a node has room; return None if there is too little."""
    if not len(room) <= size <= sum(room):
        return None
    shares = [0] * len(room)
    while sum(shares) < size:
        for place, free in enumerate(room):
            if shares[place] < free and sum(shares) < size:
                shares[place] += 1
    return shares
