"""How the processes of a job find the controller: rank 0 writes its addresses and a secret into the job's store."""

import json
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from pytest_ddp.errors import LaunchError
from pytest_ddp.hosts.connection import Refused
from pytest_ddp.hosts.hosts import Hosts
from pytest_ddp.hosts.job_process import JobProcess
from pytest_ddp.hosts.messages import Goodbye
from pytest_ddp.hosts.network import own_addresses
from pytest_ddp.hosts.serving import serve_host

if TYPE_CHECKING:
    from torch.distributed import TCPStore

# Nodes of a cluster may start minutes after one another.
JOIN_SECONDS = 600.0
_RETRY_SECONDS = 0.5
_NO_STORE = "rank 0 cannot open the store of this job at {}:{}: {}; choose another MASTER_PORT, alike for all processes"
_STORE_SECONDS = 10.0  # of one attempt: meanwhile a process does not notice that it is not wanted any more


def gather(us: JobProcess, report: Callable[[Sequence[int]], None]) -> Hosts:
    """Be the controller of a job: wait until all its other processes have connected.

    Raises:
        LaunchError: some did not come, and the message names them; or the port of the job's store is taken.
    """
    try:
        store = _store(us, is_master=not us.has_store)
    except RuntimeError as error:  # torch's DistNetworkError
        raise LaunchError(_NO_STORE.format(*us.master, str(error).partition("\n")[0])) from error
    hosts = Hosts.listen()
    try:
        here = {"addresses": own_addresses(us.master[0]), "port": hosts.port, "secret": hosts.secret.hex()}
        store.set(_key(us), json.dumps(here))
        hosts.wait_for(range(1, us.size), JOIN_SECONDS, report, lambda hello: (hello.process,))
    except BaseException:
        hosts.close(1)
        raise
    return hosts


def serve(us: JobProcess, variables: dict[str, str], is_wanted: Callable[[], bool]) -> Goodbye:
    """Be a rank host of a job until its controller says goodbye.

    Raises:
        LaunchError: the controller cannot be found.
    """
    end = time.monotonic() + JOIN_SECONDS
    while is_wanted() and time.monotonic() < end:
        try:
            here = json.loads(_store(us, is_master=False).get(_key(us)))
        except Exception:  # noqa: BLE001  torch raises several types: rank 0 may not have opened the store yet
            time.sleep(_RETRY_SECONDS)
            continue
        secret = bytes.fromhex(here["secret"])
        for address in here["addresses"]:
            try:
                return serve_host(
                    (address, here["port"]),
                    secret,
                    node=us.node,
                    ranks=us.ranks,
                    process=us.rank,
                    environment=variables,
                    is_wanted=is_wanted,
                )
            except (OSError, Refused):  # an address of no use here, or one from before the job was started again
                continue
        time.sleep(_RETRY_SECONDS)
    raise LaunchError(f"rank {us.rank} did not find rank 0 of the job within {JOIN_SECONDS:g} s")


def _key(us: JobProcess) -> str:
    return f"pytest-ddp/{us.name}/{us.attempt}"


def _store(us: JobProcess, *, is_master: bool) -> "TCPStore":
    from torch.distributed import TCPStore  # noqa: PLC0415  imported in a job only

    limit = timedelta(seconds=JOIN_SECONDS if is_master else _STORE_SECONDS)
    return TCPStore(*us.master, is_master=is_master, wait_for_workers=False, timeout=limit)
