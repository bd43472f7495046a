"""The first two targets of a grade: does the submission import, and which components does it have?"""

import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from json import loads
from typing import Any
from unittest.mock import patch

from conformance.protocol.messages import Probe, Task
from conformance.ranks import stand_ins
from conformance.ranks.boundary import boundary, trimmed_traceback
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
        said = (trimmed_traceback(error, location), lacking(error, location))
        return Probe(error="\n".join(filter(None, said)))
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
        return Probe(unimplemented=[task.contract.name])
    unimplemented, borrowed = False, set[str]()
    for _ in range(2):
        with noticing() as used:
            unimplemented |= _raises_not_implemented(task)
        borrowed |= used
    return Probe(
        unimplemented=[task.contract.name] if unimplemented else [],
        stubs=sorted(stand_ins.packages.allowed),
        borrowed=sorted(borrowed),
    )


def _raises_not_implemented(task: Task) -> bool:
    """Carry out a task; return whether an adapter function raises NotImplementedError from the submission's own code.

    What an adapter function returned may raise it later: a `forward` or a `step` that does is submitted, and wrong.
    """
    raised: list[NotImplementedError] = []
    with suppress(BaseException), _noting(task, raised):  # the checks will see any other exception, and report it
        with_stubs(lambda: carry_out(task), task.submission)
    return any(is_own(_last_file(error), task.submission) for error in raised)


@contextmanager
def _noting(task: Task, raised: list[NotImplementedError]) -> Iterator[None]:
    """Note each NotImplementedError that leaves an adapter function during the block."""
    adapters = load(task.submission, task.stubs)

    def noted(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            try:
                return real(*args, **options)
            except NotImplementedError as error:
                raised.append(error)
                raise

        return call

    with ExitStack() as stack:
        for wanted in (*task.contract.functions, *(f for one in task.contract.wrappers for f in one.functions)):
            stack.enter_context(patch.object(adapters, wanted.name, noted(getattr(adapters, wanted.name))))
        yield


def _last_file(error: BaseException) -> str:
    return traceback.extract_tb(error.__traceback__)[-1].filename
