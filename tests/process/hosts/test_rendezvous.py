"""How the processes of a job find their controller."""

import socket

import pytest

from pytest_ddp.errors import LaunchError
from pytest_ddp.hosts.job_process import JobProcess
from pytest_ddp.hosts.rendezvous import gather


def test_a_port_of_the_store_that_is_taken_is_named():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        us = JobProcess(0, 2, "a", (0,), taken.getsockname()[:2])
        with pytest.raises(
            LaunchError, match=rf"store of this job at 127\.0\.0\.1:{us.master[1]}: .*another MASTER_PORT"
        ):
            gather(us, lambda _: None)
