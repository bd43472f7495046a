"""A harness that starts a process per rank for each test."""

import os
import socket
import traceback

import pytest
import torch.distributed as dist
import torch.multiprocessing as mp


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class DistributedTest:
    """A test class whose tests run in `world_size` processes."""

    is_dist_test = True
    world_size = 2
    init_distributed = True
    backend = "gloo"
    exec_timeout = 120

    def __call__(self, item):
        size, arguments = self.world_size, {name: item.funcargs[name] for name in item._fixtureinfo.argnames}
        for mark in item.iter_markers("world_size"):
            size = mark.args[0]
            break
        for count in size if isinstance(size, list) else [size]:
            self._launch(count, item.originalname, arguments)

    def _launch(self, count, name, arguments):
        context = mp.get_context("spawn")
        results, port = context.SimpleQueue(), free_port()
        processes = [
            context.Process(target=self._run, args=(rank, count, port, name, arguments, results))
            for rank in range(count)
        ]
        for process in processes:
            process.start()
        outcomes = [results.get() for _ in processes]
        for process in processes:
            process.join(self.exec_timeout)
        for kind, text in outcomes:
            if kind == "skipped":
                pytest.skip(text)
            assert kind == "passed", text

    def _run(self, rank, count, port, name, arguments, results):
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), LOCAL_RANK=str(rank))
        os.environ["WORLD_SIZE"] = str(count)
        try:
            if self.init_distributed:
                dist.init_process_group(self.backend)
            getattr(self, name)(**arguments)
            results.put(("passed", ""))
        except pytest.skip.Exception as skip:
            results.put(("skipped", str(skip)))
        except BaseException:
            results.put(("failed", traceback.format_exc()))
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()
