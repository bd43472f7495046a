"""Communication from a thread of the submission's own: overlap is told from standing still, as with handles."""

from dataclasses import replace

import pytest

from conformance.components.registry import COMPONENTS
from conformance.execution.executor import Executor
from conformance.execution.fork_servers import ranks_from
from conformance.grading.grade import Grading, grade_check
from conformance.grading.report import CheckReport
from conformance.submissions.location import locate

WRAPPER = """
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist
from torch import nn


class Threaded(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module, self.thread, self.sent = module, ThreadPoolExecutor(1), []
        for tensor in [*module.parameters(), *module.buffers()]:
            dist.broadcast(tensor.data, src=0)
        for p in module.parameters():
            if p.requires_grad:
                p.register_post_accumulate_grad_hook(self.on_gradient)

    def forward(self, *args, **kwargs):
        return self.module(*args, **kwargs)

    def on_gradient(self, p):
        p.grad /= dist.get_world_size()
        {hook}

    def finish(self):
        {finish}
        for sent in self.sent:
            sent.result()
        self.sent.clear()


def get_ddp_individual_parameters(module): return Threaded(module)
def ddp_individual_parameters_on_after_backward(ddp_model, optimizer): ddp_model.finish()
"""
SENT = "self.sent.append(self.thread.submit(dist.all_reduce, p.grad))"
WAITS_AT_ONCE = f"{SENT}; self.sent[-1].result()"
SENDS_ALL = f"for p in [p for p in self.parameters() if p.grad is not None]: {SENT}"


COMPONENT = "ddp_individual_parameters"
(OVERLAPS,) = [replace(check, requires=()) for check in COMPONENTS[COMPONENT].checks if check.id == "overlaps_backward"]


@pytest.fixture
def overlap(launcher, submit):
    def judge(hook: str, finish: str = "pass") -> CheckReport:
        folder = submit(WRAPPER.format(hook=hook, finish=finish))
        with ranks_from(launcher) as ranks:
            executor = Executor(ranks, locate(str(folder)), "1")
            return grade_check(COMPONENT, OVERLAPS, executor, Grading(1, 3, (COMPONENT,), 10), {})

    return judge


def test_a_thread_that_sends_while_backward_goes_on_overlaps(overlap):
    report = overlap(SENT)
    assert report.status == "passed", report.message


@pytest.mark.long
@pytest.mark.parametrize(
    ("hook", "finish", "message"),
    [
        pytest.param(WAITS_AT_ONCE, "pass", "backward stands still for each collective that it launches", id="waits"),
        pytest.param("pass", SENDS_ALL, "was launched while backward", id="sends late"),
    ],
)
def test_a_thread_that_backward_waits_for_does_not(overlap, hook, finish, message):
    failed = overlap(hook, finish)
    assert failed.status == "failed"
    assert message in failed.message


POLLS = """
import queue
import threading

import torch.distributed as dist
from torch import nn


class Polling(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module, self.jobs, self.done = module, queue.Queue(), queue.Queue()
        for tensor in [*module.parameters(), *module.buffers()]:
            dist.broadcast(tensor.data, src=0)
        threading.Thread(target=self.send, daemon=True).start()

    def forward(self, *args, **kwargs):
        return self.module(*args, **kwargs)

    def send(self):
        while True:
            try:
                job = self.jobs.get_nowait()
            except queue.Empty:
                continue
            dist.all_reduce(job)
            self.done.put(job)

    def finish(self):
        for p in self.parameters():
            p.grad /= dist.get_world_size()
            self.jobs.put(p.grad)
            self.done.get()


def get_naive_ddp(module): return Polling(module)
def naive_ddp_on_after_backward(ddp_model, optimizer): ddp_model.finish()
"""


@pytest.mark.long
def test_a_thread_that_takes_the_interpreter_all_the_time_is_no_hang(held_to, submit):
    held = held_to(submit(POLLS), "naive_ddp", "results_are_waited_for", examples=3)
    assert held.status == "passed", held.message
