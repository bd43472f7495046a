"""A submission that breaks a rank fails itself: nothing that it does is reported as an error in the grader."""

import textwrap
from typing import Any

import pytest

from conformance.execution.outcome import Broken, is_of_submission, why_no_answer
from conformance.ranks.boundary import boundary
from conformance.submissions.location import Location
from pytest_ddp.errors import UsageError
from pytest_ddp.outcomes.outcome import Died, Raised, TimedOut
from pytest_ddp.rank.worker import Failed

HERE = Location("here", "adapters", "/here/adapters.py", "/here", ("/here",))
BODY = """
    import json, os, signal, stat, threading
    import torch
    import torch.distributed as dist

    class Wrapper(torch.nn.Module):
        def __init__(self, module):
            super().__init__()
            self.module = module
            for parameter in module.parameters():
                dist.broadcast(parameter.data, 0)

        def forward(self, *inputs, **options):
            return self.module(*inputs, **options)

        def nothing(self): ...

    def get_naive_ddp(module):
        return Wrapper(module)

    def naive_ddp_on_after_backward(ddp_model, optimizer):
        for parameter in ddp_model.parameters():
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad)
                parameter.grad /= dist.get_world_size()

    get_flat_ddp, flat_ddp_on_after_backward = get_naive_ddp, naive_ddp_on_after_backward
    """

WRITES = """
    for fd in range(3, 64):
        if os.path.exists(f"/dev/fd/{fd}") and stat.S_ISSOCK(os.fstat(fd).st_mode):
            os.write(fd, b"x" * 900)
    """


def with_method(text: str) -> str:
    """The right submission, whose wrapper has a method more."""
    return BODY.replace("def nothing(self): ...", text)


def at_import(text: str) -> str:
    """The right submission, with more lines that run when it is imported."""
    return textwrap.dedent(BODY) + textwrap.dedent(text)


def first_message(grade_path, path, component="naive_ddp"):
    """What is said of the first check that fails."""
    report = grade_path(path, components=[component], world_size=2, examples=2, core=True)
    failed = [check for check in report.components[0].checks if check.status != "passed"]
    assert failed[0].status == "failed", failed[0]
    return failed[0].message


@pytest.mark.parametrize(
    ("method", "words"),
    [
        (
            "def named_parameters(self, *_, **__): raise KeyError(1)",
            "KeyError in a look at the parameters of the wrapped",
        ),
        ("def modules(self): raise KeyError(1)", "KeyError in a look at the parameters of the wrapped model"),
        ("__class__ = property(lambda self: 1 / 0)", "ZeroDivisionError in a look at"),
        ("def __del__(self): os._exit(3)", "exited with code 3"),
    ],
)
def test_code_that_runs_when_an_object_is_looked_at_or_deleted_is_the_submissions(grade_path, submit, method, words):
    assert words in first_message(grade_path, submit(with_method(method)))


@pytest.mark.parametrize(
    ("raised", "words"),
    [
        ("type('Odd', (Exception,), {'__str__': lambda self: 1 / 0})", "Odd in on_after_backward, at step 1 of"),
        ("type('Odd', (Exception,), {'__traceback__': None})", "raised Odd in on_after_backward, at step 1 of"),
        ("type('Odd', (Exception,), {'__dict__': property(lambda self: 1 / 0)})", "raised Odd in on_after_backward"),
        ("ValueError('\\ud800')", r"\ud800"),
        ("next(one for one in Exception.__subclasses__() if one.__name__ == 'SkipRun')('no')", "raised SkipRun"),
        (
            "next(one for one in Exception.__subclasses__() if one.__name__ == 'Failed')('', '', '', b'')",
            "raised Failed",
        ),
        ("GeneratorExit", "raised GeneratorExit"),
        ("StopIteration", "raised StopIteration"),
    ],
)
def test_no_exception_is_odd_enough(grade_path, submit, raised, words):
    raising = BODY.replace("for parameter in ddp_model", f"raise {raised}\n        for parameter in ddp_model")
    assert words in first_message(grade_path, submit(raising))


def test_an_attribute_whose_look_up_raises_is_not_offered(held_to, submit):
    raising = with_method("""def __getattr__(self, name):
            return self._modules[name] if name in ("module", "named_parameters") else {}[name]""")
    assert held_to(submit(raising), "naive_ddp", "gradients_averaged", world_size=2).status == "passed"


def test_a_group_that_is_destroyed_at_deletion_fails_the_component_that_destroys_it_and_no_other(grade_path, submit):
    destroying = """
        class Destroying(Wrapper):
            def __init__(self, module):
                super().__init__(module)
                self.cycle = [self]  # only a garbage collection deletes it

            def __del__(self):
                dist.destroy_process_group()

        def get_flat_ddp(module):
            return Destroying(module)
        """
    path = submit(at_import(destroying))
    report = grade_path(path, components=["flat_ddp", "naive_ddp"], world_size=2, examples=2, core=True)
    flat, naive = report.components
    assert (flat.status, naive.status) == ("failed", "passed")
    message = flat.checks[0].message
    assert "the submission has destroyed the default process group" in message
    assert "in __del__" in message


def test_functions_that_a_submission_replaces_do_not_answer_for_it(grade_path, submit):
    replaced = """
        torch.equal = torch.allclose = lambda *_, **__: True
        json.dumps = lambda *_, **__: '{"status": "passed"}'
        json.loads = lambda *_, **__: {}
        get_naive_ddp = lambda module: module
        """
    assert "is not rank 0's" in first_message(grade_path, submit(at_import(replaced)))


def test_a_parameter_that_is_sharded_is_refused_in_a_sentence(grade_path, submit):
    sharded = """
        from torch.distributed.fsdp import fully_shard as get_naive_ddp
        naive_ddp_on_after_backward = print
        """
    assert "a data-parallel wrapper keeps each parameter whole" in first_message(grade_path, submit(at_import(sharded)))


def test_a_signal_handler_that_raises_at_any_time_is_the_submissions(grade_path, submit):
    alarm = """
        def ring(*_):
            raise RuntimeError("an alarm")
        signal.signal(signal.SIGALRM, ring)
        dist.get_world_size() > 1 and signal.setitimer(signal.ITIMER_REAL, 0.01, 0.002)
        """
    message = first_message(grade_path, submit(at_import(alarm)))
    assert "an alarm" in message or "exited with code" in message, message


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("def __getattr__(name): raise KeyError(name)\ndel get_flat_ddp", "KeyError: 'get_flat_ddp'"),
        ("os.closerange(3, 64)", "importing them ended the process: it "),
        (WRITES, "they write to the connection between the rank and the judge"),
        ("raise ValueError('\\ud800')", r"ValueError: \ud800"),
    ],
)
def test_adapters_that_break_their_rank_do_not_import(first_failed, submit, text, words):
    with pytest.raises(UsageError) as refused:
        first_failed(submit(at_import(text)), "naive_ddp")
    assert words in str(refused.value)


def test_an_import_that_does_not_end_is_told_with_the_line_where_it_stood():
    stack = 'Thread 1:\n  File "/here/adapters.py", line 7 in wait\n  File "/elsewhere/x.py", line 1 in look\n'
    hung = TimedOut(rank=0, timeout=120.0, stack=stack)
    assert why_no_answer(hung, HERE) == (
        "importing them did not end within 120 s; --import-seconds N allows more\n"
        '  File "/here/adapters.py", line 7 in wait'
    )
    assert why_no_answer(Died(rank=0, signal="SIGSEGV"), HERE) == (
        "importing them ended the process: it was killed by SIGSEGV"
    )


@pytest.mark.parametrize(
    ("raised", "theirs"),
    [
        (Raised(rank=0, kind="KeyError", message="", traceback="", body=b"{}"), True),
        (Raised(rank=0, kind="ProtocolError", message="", traceback=""), True),
        (Raised(rank=0, kind="KeyError", message="", traceback='File "/here/adapters.py", line 1'), True),
        (Raised(rank=0, kind="KeyError", message="", traceback="KeyError: its frames could not be written"), True),
        (Raised(rank=0, kind="KeyboardInterrupt", message="", traceback='File "/elsewhere/x.py", line 1'), True),
        (Raised(rank=0, kind="KeyError", message="", traceback='File "/elsewhere/x.py", line 1'), False),
    ],
)
def test_what_is_raised_outside_the_boundary_is_ours_unless_the_submission_had_a_part_in_it(raised, theirs):
    assert is_of_submission(raised, HERE) is theirs


@pytest.mark.parametrize(
    "body",
    [b"no JSON", b"[]", b'{"stage": "forward"}', b'{"stage": "forward", "step": "1", "refused": true, "lacking": ""}'],
)
def test_a_body_that_a_hostile_rank_made_up_says_nothing(body):
    broken = Broken((Raised(rank=0, kind="KeyError", message="", traceback="", body=body),))
    assert (broken.place, broken.refusal) == (None, "")


UNPRINTABLE = r"""
class Meta(type):
    @property
    def __name__(cls):
        return "bad \udc80 name"

class Bad(Exception, metaclass=Meta): ...

def fail():
    raise Bad("bad \udc80 message")
"""
NAMELESS = UNPRINTABLE.replace("return", "return 1 / 0 or")


@pytest.mark.parametrize(("text", "kind"), [
    (UNPRINTABLE, r"bad \udc80 name"),
    (NAMELESS, "an exception without a name"),
])  # fmt: skip
def test_all_that_is_told_of_an_exception_can_be_written_to_a_file(text, kind):
    made = dict[str, Any]()
    exec(compile(text, "/here/\udc80.py", "exec"), made)  # noqa: S102  its file has a name that no file here can have
    with pytest.raises(Failed) as caught, boundary(HERE):
        made["fail"]()
    failed = caught.value
    assert failed.kind == kind
    assert failed.message == r"bad \udc80 message"
    assert r"/here/\udc80.py" in failed.text
    (failed.kind + failed.message + failed.text).encode()
