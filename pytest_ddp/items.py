"""Which tests are distributed, and what each of them asks for."""

import pytest

from pytest_ddp.request import Request
from pytest_ddp.settings import Settings
from pytest_ddp.world import DEFAULT_BACKEND

WORLD_SIZE = "_ddp_world_size"
_node_id = pytest.StashKey[str]()


def remember_node_id(item: pytest.Item) -> None:
    """Keep the id under which a test is collected: plugins may change it in one process and not in another."""
    item.stash[_node_id] = item.nodeid


def node_id(item: pytest.Item) -> str:
    """Return the id under which a test was collected, by which controller and ranks name it."""
    return item.stash[_node_id]


def is_distributed(item: pytest.Item) -> bool:
    """Whether the test carries the marker `distributed`."""
    return item.get_closest_marker("distributed") is not None


def request_of(item: pytest.Item) -> Request:
    """Return what the test's closest marker asks for, with the world size of its parametrization; raise UsageError."""
    mark = item.get_closest_marker("distributed")
    asked = Request.of(*mark.args, **mark.kwargs) if mark else Request()
    callspec = getattr(item, "callspec", None)
    if callspec is None or WORLD_SIZE not in callspec.params:
        return asked
    size = callspec.params[WORLD_SIZE]
    return Request((size,), asked.backend, asked.device, asked.timeout, asked.isolation)


def parametrize_world_sizes(metafunc: pytest.Metafunc, settings: Settings) -> None:
    """Run a distributed test once per world size where it, or else the settings, names several."""
    mark = next(metafunc.definition.iter_markers("distributed"), None)
    if mark is None:
        return
    request = Request.of(*mark.args, **mark.kwargs)
    sizes = request.world_sizes or settings.world_sizes
    if len(sizes) > 1:
        backend = request.backend or settings.backend or DEFAULT_BACKEND.get(request.device or settings.device, "auto")
        metafunc.fixturenames.append(WORLD_SIZE)
        metafunc.parametrize(WORLD_SIZE, sizes, ids=[f"ws{size}-{backend}" for size in sizes], indirect=True)
