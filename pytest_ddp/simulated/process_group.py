"""The process group of simulated ranks, and the handles of its operations."""

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from pytest_ddp.observed.recording.call import Call
from pytest_ddp.operations.table import METHODS
from pytest_ddp.simulated.network import Network
from pytest_ddp.simulated.operation import Launch
from pytest_ddp.torch_internals import call_after_backward, runs_backward

NO_TIMEOUT = timedelta(0)


class SimulatedWork(dist.Work):
    """The handle of what a rank launched: of one operation, or of several that were coalesced."""

    def __init__(self, network: Network, launches: list[Launch]) -> None:
        super().__init__()
        self._network = network
        self._launches = launches
        self._future: torch.futures.Future[Any] | None = None

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:  # noqa: ARG002  simulated time stands still
        """Wait until the results have landed."""
        __tracebackhide__ = True
        for launch in self._launches:
            self._network.wait(launch)
        return True

    def synchronize(self) -> None:
        """Wait until the results have landed."""
        self.wait()

    def is_completed(self) -> bool:
        """Whether the results have landed; the schedule may say "not yet"."""
        return all(self._network.poll(launch) for launch in self._launches)

    def is_success(self) -> bool:
        """Whether the operation is complete."""
        return self.is_completed()

    def exception(self) -> None:
        """No operation fails once it is launched."""

    def result(self) -> list[torch.Tensor]:
        """Return the tensors with the results."""
        return self._results()

    def source_rank(self) -> int:
        """Return the rank in the group that a received message came from."""
        return self._network.source_of(self._launches[0])

    _source_rank = source_rank

    def get_future(self) -> torch.futures.Future[Any]:
        """Return a future that is done when the results have landed."""
        if self._future is None:
            self._future = torch.futures.Future()
            self._network.complete_with(self._launches, self._future, self._results)
        if runs_backward():  # the reducer of torch's DDP waits for it in C++, in a callback that runs after this one
            call_after_backward(self._wait_quietly)
        return self._future

    def _wait_quietly(self) -> None:
        self.wait()

    def _results(self) -> list[torch.Tensor]:
        return [tensor for launch in self._launches for tensor in launch.call.outputs]


class SimulatedGroup(dist.ProcessGroup):
    """One rank's side of a process group. C++ code (torch's DDP, functional collectives) calls these methods, too.

    Attributes:
        network: connects the ranks.
    """

    def __init__(self, network: Network, rank: int, size: int, store: dist.Store) -> None:
        super().__init__(rank, size)
        self._store = store
        self.network = network
        self._group_rank = rank
        self._group_size = size
        self._ranks: tuple[int, ...] = ()
        self._coalesced: list[Launch] | None = None
        self._name = self._description = ""

    def rank(self) -> int:
        """Return the rank in this group."""
        return self._group_rank

    def size(self) -> int:
        """Return how many ranks this group has."""
        return self._group_size

    def _set_group_name(self, name: str) -> None:
        self._name = name

    def _set_group_desc(self, description: str) -> None:
        self._description = description

    def getGroupName(self) -> str:  # noqa: N802  torch's name
        """Return the name of the group."""
        return self._name

    group_name = pg_name = property(getGroupName)  # torch's DDP asks for the second

    @property
    def group_desc(self) -> str:
        """What the group is for."""
        return self._description

    def getBackendName(self) -> str:  # noqa: N802  torch's name
        """Return the name of the backend."""
        return "sim"

    def name(self) -> str:
        """Return the name of the backend."""
        return "sim"

    def _get_backend(self, _device: torch.device) -> Any:
        return self

    supports_coalescing = False
    supports_splitting = True

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cpu")]

    def get_group_store(self) -> dist.Store:
        """Return the store that the ranks of the group share."""
        return self._store

    def split_group(  # noqa: PLR0917  as torch's
        self,
        new_ranks: list[int],
        timeout: timedelta | None = None,  # noqa: ARG002  simulated time stands still
        opts: Any = None,  # noqa: ARG002  there are none
        group_name: str | None = None,
        group_desc: str | None = None,
        device_types: list[torch.device] | None = None,  # noqa: ARG002  there is one
    ) -> "SimulatedGroup | None":
        """Return the group of some ranks of this group; None on the other ranks."""
        if self._group_rank not in new_ranks:
            return None
        group = SimulatedGroup(self.network, new_ranks.index(self._group_rank), len(new_ranks), self._store)
        group._name, group._description = group_name or "", group_desc or ""
        return group

    def _start_coalescing(self, _device: torch.device) -> None:
        self._coalesced = []

    def _end_coalescing(self, _device: torch.device) -> SimulatedWork:
        launches, self._coalesced = self._coalesced or [], None
        return SimulatedWork(self.network, launches)

    def _issue(self, method: str, args: tuple[Any, ...], keywords: dict[str, Any]) -> SimulatedWork:
        __tracebackhide__ = True
        self._ranks = self._ranks or self.network.same_ranks(tuple(dist.get_process_group_ranks(self)))
        launch = self.network.launch(Call(self.group_name, self._ranks, self, method, args, keywords))
        if self._coalesced is not None:
            self._coalesced.append(launch)
        work = SimulatedWork(self.network, [launch])
        if launch.call.operation.blocks:
            work.wait()
        return work


def _launching(method: str) -> Callable[..., SimulatedWork]:
    """Return a method that launches an operation."""

    def launch(group: SimulatedGroup, *args: Any, **keywords: Any) -> SimulatedWork:
        __tracebackhide__ = True
        return group._issue(method, args, keywords)  # noqa: SLF001  one of its methods

    launch.__name__ = method
    return launch


for _method in filter(partial(hasattr, dist.ProcessGroup), METHODS):
    setattr(SimulatedGroup, _method, _launching(_method))
