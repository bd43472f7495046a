"""An extended property may be refused by an exception: only who does it wrongly without a word fails."""

from dataclasses import replace
from pathlib import Path

import pytest
from way import CONTROLS, Way

from conformance.components.registry import COMPONENTS
from conformance.execution.executor import Executor
from conformance.execution.fork_servers import ranks_from
from conformance.judging.run_check import run_check
from conformance.submissions.location import locate

EXAMPLE = Path(__file__).parents[3] / "examples" / "correct"
WRAPPER = """
import torch.distributed as dist

class Strict:
    def __init__(self, module):
        self.module = module
        for parameter in module.parameters():
            dist.broadcast(parameter.data, src=0)

    def __call__(self, *inputs, **options):
        return self.module(*inputs, **options)

def get_naive_ddp(module):
    return Strict(module)

def naive_ddp_on_after_backward(ddp_model, optimizer):
    for name, parameter in ddp_model.module.named_parameters():
        if parameter.requires_grad:
            if parameter.grad is None:
                COPE
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
"""


def test_a_refusal_is_not_run_and_says_why(grade_path):
    (graded,) = grade_path(EXAMPLE, components=["sharded_optimizer"], examples=1).components
    saving = next(one for one in graded.checks if one.id == "state_dict[round_trip]")
    assert graded.status == "passed"
    assert saving.status == "not_run"
    assert saving.message.startswith("refused, as it may be: RuntimeError: ShardedOptimizer cannot be saved")


@pytest.mark.parametrize(
    ("cope", "status", "words"),
    [
        pytest.param(
            "raise NotImplementedError(f'{name} was not used')",
            "not_run",
            "refused, as it may be: NotImplementedError",
            id="refused",
        ),
        pytest.param("{}['by accident']", "failed", "KeyError", id="crashed"),
        pytest.param("continue", "failed", "", id="silently wrong", marks=pytest.mark.long),
    ],
)
def test_crashing_and_being_silently_wrong_is_not_refusing(held_to, submit, cope, status, words):
    folder = submit(WRAPPER.replace("COPE", cope))
    unused, loading = (
        held_to(folder, "naive_ddp", check) for check in ("trains[used_on_some_ranks]", "trains[loaded_weights]")
    )
    assert (unused.check.level, unused.status) == ("extended", status)
    assert words in unused.message
    assert (loading.status, loading.message) == ("not_run", "the wrapped model has no `state_dict`")


def test_what_is_core_may_not_be_refused(held_to, submit):
    adapters = WRAPPER.replace("if parameter.requires_grad:", "if parameter.dim() == 0: raise TypeError('0-dim')")
    adapters = adapters.replace("            if parameter.grad is None:\n                COPE\n", "        else:\n")
    scalar = held_to(submit(adapters), "naive_ddp", "trains[scalar_parameter]")
    assert (scalar.check.level, scalar.status) == ("core", "failed")


def test_what_torchs_own_sharding_refuses_is_refused(grade_path, submit):
    way = Way("torchs_own", "sharded", "fsdp")
    (graded,) = grade_path(submit(way.adapters, **CONTROLS), components=["fsdp"], examples=1).components
    scalar = next(one for one in graded.checks if one.id == "trains[scalar_parameter]")
    assert (graded.status, scalar.status) == ("passed", "not_run")
    assert "refused, as it may be: ValueError: fully_shard doesn't support scalar parameters" in scalar.message


LIBRARY = """
    import torch
    import torch.distributed as dist

    class Wrapper(torch.nn.Module):
        def __init__(self, module):
            super().__init__()
            self.module = module
            for tensor in (*module.parameters(), *module.buffers()):
                dist.broadcast(tensor.data, 0)

        def forward(self, *inputs, **options):
            return self.module(*inputs, **options)

        def finish(self):
            for parameter in self.module.parameters():
                if parameter.grad is None:
                    REFUSES
                dist.all_reduce(parameter.grad)
                parameter.grad /= dist.get_world_size()
    """
WRAPS_LIBRARY = """
    import pathlib, sys
    sys.path.append(str(pathlib.Path(__file__).parents[1]))
    from a_library.wrapper import Wrapper as get_naive_ddp

    def naive_ddp_on_after_backward(ddp_model, optimizer):
        ddp_model.finish()
    """


@pytest.mark.parametrize(
    ("refuses", "libraries", "status"),
    [
        ("raise NotImplementedError('no gradient')", (), "failed"),
        ("raise NotImplementedError('no gradient')", ("a_library",), "not_run"),
        ("assert False, 'no gradient'", ("a_library",), "not_run"),
        ("assert False", ("a_library",), "failed"),
    ],
)
def test_a_library_refuses_for_the_submission_if_it_is_named(launcher, submit, refuses, libraries, status):
    folder = submit(WRAPS_LIBRARY, a_library__wrapper=LIBRARY.replace("REFUSES", refuses))
    (folder / "a_library").rename(folder.parent / "a_library")
    check = next(check for check in COMPONENTS["naive_ddp"].checks if check.id == "trains[used_on_some_ranks]")
    with ranks_from(launcher) as ranks:
        executor = Executor(ranks, replace(locate(str(folder)), libraries=libraries), "1")
        found = run_check(COMPONENTS["naive_ddp"], check, executor, world_size=2, seed=1, examples=1)
    assert (found.check.level, found.status) == ("extended", status), found.message
