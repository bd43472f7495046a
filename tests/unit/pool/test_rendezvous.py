"""A reserved port is free for the test, and given to nobody else."""

import gc
import socket
import subprocess
import sys

import pytest

from pytest_ddp.pool.rendezvous import reserve_port

SERVES = """
import sys, torch.distributed as dist
store = dist.TCPStore("127.0.0.1", int(sys.argv[1]), 1, is_master=True)
store.set("key", "value")
assert store.get("key") == b"value"
"""


class Holder:
    """Stands for the object that needs the port."""


def test_a_store_can_listen_on_a_reserved_port():
    holder = Holder()
    port, _ = reserve_port(holder)
    subprocess.run([sys.executable, "-c", SERVES, str(port)], check=True)


def test_a_port_is_reserved_as_long_as_its_holder_exists():
    holder = Holder()
    port, _ = reserve_port(holder)
    with socket.socket() as other:
        with pytest.raises(OSError, match="already in use"):
            other.bind(("", port))
        del holder
        gc.collect()
        other.bind(("", port))


def test_no_port_is_reserved_twice():
    holders = [Holder() for _ in range(50)]
    assert len({reserve_port(holder)[0] for holder in holders}) == 50


def test_a_port_can_be_released_before():
    holder = Holder()
    port, release = reserve_port(holder)
    release()
    with socket.socket() as other:
        other.bind(("", port))
    del holder
