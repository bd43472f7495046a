"""The first two targets of a grade: does the submission import, and which components does it have?"""

import os
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from json import loads
from typing import Any
from unittest.mock import patch

from conformance.protocol.messages import Probe, Task
from conformance.ranks import stand_ins
from conformance.ranks.boundary import boundary, in_words
from conformance.ranks.lacks import lacking
from conformance.ranks.loading import is_own, load, missing, with_stubs, wrong_signature
from conformance.ranks.run import carry_out
from conformance.ranks.torch_builtins import noticing
from conformance.submissions.contract import Contract
from conformance.submissions.location import Location


def look(payload: bytes) -> bytes:
    """Import the adapters and look at their functions, on one rank; return an encoded `Probe`."""
    asked = loads(payload)
    location = Location.from_json(asked["submission"])
    contracts = [Contract.from_json(plain) for plain in asked["contracts"]]
    with boundary(location):
        return _look(location, contracts).encode()


def _look(location: Location, contracts: list[Contract]) -> Probe:
    try:
        adapters = load(location)
    except BaseException as error:  # noqa: BLE001  a submission may raise anything at import
        what, where = in_words(error, location)
        return Probe(error="\n".join(filter(None, [what, lacking(error, location), where])))
    absent = [(contract, missing(adapters, contract)) for contract in contracts]
    defined = [contract for contract, lacks in absent if not lacks]
    signatures = [(contract.name, wrong_signature(adapters, f)) for contract in defined for f in contract.functions]
    return Probe(
        defined=[contract.name for contract in defined],
        missing={contract.name: lacks for contract, lacks in absent if 0 < len(lacks) < len(contract.functions)},
        wrong_signatures=[(name, sentence) for name, sentence in signatures if sentence],
        stubs=sorted(stand_ins.packages.allowed),
    )


def attempt(payload: bytes) -> bytes:
    """Carry out an encoded `Task` to learn whether the component is implemented; return an encoded `Probe`.

    The task is carried out twice: `noticing` sees only modules that were imported before.
    """
    task = Task.decode(payload)
    with boundary(task.submission):
        return _attempt(task).encode()


def _attempt(task: Task) -> Probe:
    if missing(load(task.submission, task.stubs), task.contract):
        return Probe(unimplemented="a function is missing")
    unimplemented, borrowed = "", set[str]()
    for _ in range(2):
        with noticing() as used:
            unimplemented = _raises_not_implemented(task) or unimplemented
        borrowed |= used
    return Probe(
        unimplemented=unimplemented,
        stubs=sorted(stand_ins.packages.allowed),
        borrowed=sorted(borrowed),
    )


def _raises_not_implemented(task: Task) -> str:
    """Carry out a task; say which adapter function raises NotImplementedError in the submission's own code.

    What an adapter function returned may raise it later: a `forward` or a `step` that does is submitted, and wrong.
    """
    raised: list[tuple[str, NotImplementedError]] = []
    with suppress(BaseException), _noting(task, raised):  # the checks will see any other exception, and report it
        with_stubs(lambda: carry_out(task), task.submission)
    for name, error in raised:
        last = traceback.extract_tb(error.__traceback__)[-1]
        if is_own(last.filename, task.submission):
            file = os.path.relpath(last.filename, task.submission.root or "/")
            return f"`{name}` raises NotImplementedError ({file}, line {last.lineno})"
    return ""


@contextmanager
def _noting(task: Task, raised: list[tuple[str, NotImplementedError]]) -> Iterator[None]:
    """Note each NotImplementedError that leaves an adapter function during the block."""
    adapters = load(task.submission, task.stubs)

    def noted(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            try:
                return real(*args, **options)
            except NotImplementedError as error:
                raised.append((name, error))
                raise

        return call

    with ExitStack() as stack:
        for wanted in (*task.contract.functions, *(f for one in task.contract.wrappers for f in one.functions)):
            stack.enter_context(patch.object(adapters, wanted.name, noted(wanted.name, getattr(adapters, wanted.name))))
        yield
