"""The first two targets of a grade: does the submission import, and which components does it have?"""

from json import loads

from conformance.protocol.messages import Probe, Task
from conformance.ranks import stand_ins
from conformance.ranks.boundary import boundary, trimmed_traceback
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
        return Probe(error=trimmed_traceback(error, location))
    lacking = [(contract, missing(adapters, contract)) for contract in contracts]
    defined = [contract for contract, lacks in lacking if not lacks]
    signatures = [(contract.name, wrong_signature(adapters, f)) for contract in defined for f in contract.functions]
    return Probe(
        defined=[contract.name for contract in defined],
        missing={contract.name: lacks for contract, lacks in lacking if 0 < len(lacks) < len(contract.functions)},
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
    """Carry out a task; return whether the submission's own code raises NotImplementedError."""
    try:
        with_stubs(lambda: carry_out(task), task.submission)
    except NotImplementedError as error:
        frame = error.__traceback__
        while frame is not None and frame.tb_next is not None:
            frame = frame.tb_next
        return frame is not None and is_own(frame.tb_frame.f_code.co_filename, task.submission)
    except BaseException:  # noqa: BLE001, S110  the checks will see it again, and report it
        pass
    return False
