"""The distributed tests among pytest's items, and what each of them asks for."""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_ddp.errors import UsageError
from pytest_ddp.marker import FIXTURE_OPTIONS
from pytest_ddp.planning.request import Request, mark_options
from pytest_ddp.planning.world import DEFAULT_BACKEND
from pytest_ddp.pytest_internals import fixture_definitions, parameters
from pytest_ddp.settings import Settings

WORLD_SIZE = "_ddp_world_size"
_OWNERS: dict[str, tuple[type[pytest.Collector], ...]] = {  # the scope of a fixture: nodes; the widest scope first
    "session": (pytest.Session,),
    "package": (pytest.Package, pytest.Session),
    "module": (pytest.Module,),
    "class": (pytest.Class, pytest.Module),
}
_MENTION = re.compile(rb"\bpytest_ddp\b(?!\.)|\bmark\.distributed\b")
# For an adopted class, the function that returns what one of its tests asks for, as options of `@distributed`.
OPTIONS_OF_CLASS = pytest.StashKey[Callable[[pytest.Item], Mapping[str, Any]]]()
_node_id = pytest.StashKey[str]()


def remember_node_id(item: pytest.Item) -> None:
    """Keep the node id that the test was collected with: plugins may change it in one process only."""
    item.stash[_node_id] = item.nodeid


def node_id(item: pytest.Item) -> str:
    """Return the node id that the test was collected with, which is the same in the controller and on ranks."""
    return item.stash[_node_id]


def is_distributed(item: pytest.Item) -> bool:
    """Whether the test has the marker `distributed`."""
    return item.get_closest_marker("distributed") is not None


def is_adopted(item: pytest.Item) -> bool:
    """Whether the test is one of a class that `ddp_adopt` names."""
    owner = item.getparent(pytest.Class)
    return owner is not None and OPTIONS_OF_CLASS in owner.stash


def mentions_distributed(module: Path, adopted: Collection[str] = ()) -> bool:
    """Whether a test module that is not imported yet probably has distributed tests, or names an adopted base class."""
    try:
        text = module.read_bytes()
    except OSError:  # pytest reports it when it imports the module
        return False
    return _MENTION.search(text) is not None or any(name.encode() in text for name in adopted)


def request_of(item: pytest.Item, settings: Settings) -> Request:
    """Return what the test asks for, with the world size of its parametrization; raise UsageError."""
    request = Request.combined(_decorators(item))
    size = parameters(item).get(WORLD_SIZE)
    if size is not None:
        request = replace(request, world_sizes=(size,))
    _check_one_size(request.world_sizes or settings.world_size)
    for fixture in rank_fixtures(item):
        _check_agreement(fixture, request)
    return request


def rank_fixtures(item: Any) -> list[pytest.FixtureDef[Any]]:
    """Return the `@distributed` fixtures that a test uses."""
    return [found[-1] for found in fixture_definitions(item).values() if hasattr(found[-1].func, FIXTURE_OPTIONS)]


def group_owner(item: pytest.Item) -> pytest.Collector | None:
    """Return the node whose tests share one process group, because a `@distributed` fixture has its scope; or None."""
    scopes = {fixture.scope for fixture in rank_fixtures(item)}
    kinds = next((kinds for scope, kinds in _OWNERS.items() if scope in scopes), ())
    return next((node for kind in kinds if (node := item.getparent(kind)) is not None), None)


def parametrize_world_sizes(metafunc: pytest.Metafunc, settings: Settings) -> None:
    """Parametrize a distributed test by its world sizes, or else by those of the settings, if there are several."""
    item = metafunc.definition
    if not is_distributed(item):
        return
    request = Request.combined(_decorators(item))
    sizes = request.world_sizes or settings.world_size
    if len(sizes) > 1:
        backend = request.backend or settings.backend or DEFAULT_BACKEND.get(request.device or settings.device, "auto")
        metafunc.fixturenames.append(WORLD_SIZE)
        # Module scope makes pytest run a module's tests of one world size together: ranks then keep their fixtures.
        ids = [f"ws{size}-{backend}" for size in sizes]
        metafunc.parametrize(WORLD_SIZE, sizes, ids=ids, indirect=True, scope="module")


def _decorators(item: pytest.Item) -> Iterator[Mapping[str, Any]]:
    """Yield the options of a test: of each `@distributed`, nearest first, of its fixtures, and of an adopted class."""
    for node in reversed(item.listchain()):
        for mark in _nearest_first(node):
            yield mark_options(mark.args, mark.kwargs)
    for fixture in rank_fixtures(item):
        yield getattr(fixture.func, FIXTURE_OPTIONS)
    if is_adopted(item) and (owner := item.getparent(pytest.Class)):
        yield owner.stash[OPTIONS_OF_CLASS](item)


def _nearest_first(node: Any) -> list[pytest.Mark]:
    """Return the marks `distributed` of a node; pytest lists those of a base class before those of the class itself."""
    marks = [mark for mark in node.own_markers if mark.name == "distributed"]
    if not isinstance(node, pytest.Class):
        return marks
    bases = [vars(base).get("pytestmark", []) for base in node.obj.__mro__]
    written = [mark for found in bases for mark in (found if isinstance(found, list) else [found])]
    written = [getattr(mark, "mark", mark) for mark in written]
    return sorted(marks, key=lambda mark: written.index(mark) if mark in written else -1)


def _check_one_size(sizes: Sequence[int]) -> None:
    if len(sizes) > 1:
        raise UsageError(
            f"the test asks for {' and '.join(map(str, sizes))} ranks, but pytest cannot run it once per world size: "
            "it is a method of a unittest.TestCase, or its marker was added after the tests had been collected; "
            f"write one size, as in @distributed(world_size={sizes[-1]})"
        )


def _check_agreement(fixture: pytest.FixtureDef[Any], request: Request) -> None:
    wanted = Request.of(**getattr(fixture.func, FIXTURE_OPTIONS))
    needs = f"the fixture {fixture.argname!r} needs"
    if wanted.world_sizes and request.world_sizes and request.world_sizes[0] not in wanted.world_sizes:
        raise UsageError(
            f"{needs} {' or '.join(map(str, wanted.world_sizes))} ranks, but the test asks for "
            f"{request.world_sizes[0]}: write the same world size in both, or write it in one of them only"
        )
    for name in ("backend", "device", "observe", "group"):
        ours, theirs = getattr(wanted, name), getattr(request, name)
        if ours is not None and theirs is not None and ours != theirs:
            raise UsageError(f"{needs} {name}={ours!r}, but the test asks for {name}={theirs!r}")
