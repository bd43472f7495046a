"""The first question to a submission, asked in a rank: does it import, and which components does it have?"""

import json
import tempfile
from dataclasses import asdict

import torch

from conformance.protocol.case_messages import Assignment
from conformance.protocol.training_messages import Probe
from conformance.ranks.case import run
from conformance.scenarios.cases import SIMPLEST
from conformance.submissions import stand_ins
from conformance.submissions.contract import COMPONENTS, Component
from conformance.submissions.loading import (
    function,
    is_own,
    load,
    missing,
    trimmed_traceback,
    with_stubs,
    wrong_signature,
)
from conformance.submissions.location import Location
from conformance.submissions.torch_builtins import noticing
from conformance.workload.case_numbers import draw_feed
from pytest_ddp.rank.worker import Failed


def look(payload: bytes) -> bytes:
    """Import the adapters, look at their functions; on a rank of a world of one."""
    location = _location(json.loads(payload)["submission"])
    try:
        adapters = load(location)
    except BaseException as error:  # noqa: BLE001  a submission may raise anything at import
        return json.dumps(asdict(Probe(error=trimmed_traceback(error, location)))).encode()
    lacking = {name: missing(adapters, component) for name, component in COMPONENTS.items()}
    defined = [component for name, component in COMPONENTS.items() if not lacking[name]]
    signatures = [(component.name, wrong_signature(adapters, f)) for component in defined for f in component.functions]
    found = Probe(
        defined=[component.name for component in defined],
        missing={name: lacks for name, lacks in lacking.items() if 0 < len(lacks) < len(COMPONENTS[name].functions)},
        wrong_signatures=[(name, sentence) for name, sentence in signatures if sentence],
        stubs=sorted(stand_ins.packages.allowed),
    )
    return json.dumps(asdict(found)).encode()


def attempt(payload: bytes) -> bytes:
    """Use one component, on one rank, to learn whether it is implemented; other faults are left to the checks.

    At the second time what it needs is imported, so that it can be seen whose implementation it is.
    """
    asked = json.loads(payload)
    location, component = _location(asked["submission"]), COMPONENTS[asked["component"]]
    unimplemented, borrowed = False, set[str]()
    for _ in range(2):
        with noticing() as used:
            unimplemented |= _raises_not_implemented(location, component)
        borrowed |= used
    found = Probe(
        unimplemented=[component.name] if unimplemented else [],
        stubs=sorted(stand_ins.packages.allowed),
        borrowed=sorted(borrowed),
    )
    return json.dumps(asdict(found)).encode()


def _raises_not_implemented(location: Location, component: Component) -> bool:
    """Use a component; say whether its own code raises NotImplementedError."""
    try:
        with_stubs(lambda: _use(location, component), location)
    except NotImplementedError as error:
        frame = error.__traceback__
        while frame is not None and frame.tb_next is not None:
            frame = frame.tb_next
        return frame is not None and is_own(frame.tb_frame.f_code.co_filename, location)
    except BaseException:  # noqa: BLE001, S110  the checks will meet it again, and say what it means
        pass
    return False


def _use(location: Location, component: Component) -> None:
    adapters = load(location)
    if component.kind == "part":
        _exercise(location, component)
        return
    model = torch.nn.Linear(1, 1, dtype=torch.float64)
    get = function(adapters, component.get)
    if component.kind == "optimizer":
        get(model.parameters(), torch.optim.SGD, lr=0.1)
        return
    wrapped = get(model, *[1.0][: len(component.get.parameters) - 1])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    function(adapters, component.batch_start)(wrapped, optimizer)
    torch.autograd.backward(wrapped(torch.ones(1, 1, dtype=torch.float64)).sum())
    function(adapters, component.after_backward)(wrapped, optimizer)


def _exercise(location: Location, component: Component) -> None:
    """Do the component's exercise once, on its simplest case, in all its phases."""
    case = SIMPLEST[component.name]
    with tempfile.TemporaryDirectory(prefix="conformance-") as folder:
        for phase, (given,) in enumerate(draw_feed(case, 0)):
            try:
                run(Assignment(location, component.name, case, given, phase, folder).encode())
            except Failed as error:
                raise error.__cause__ or error from None


def _location(plain: dict[str, object]) -> Location:
    roots = plain["import_roots"]
    return Location(**{**plain, "import_roots": tuple(roots) if isinstance(roots, list) else ()})  # type: ignore[arg-type]
