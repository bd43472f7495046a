"""Which tests are distributed, and what each of them asks for."""

import re
from collections.abc import Iterator, Mapping
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
_WIDE = ("session", "package", "module", "class")
_NODES: dict[str, tuple[type[pytest.Collector], ...]] = {
    "package": (pytest.Package, pytest.Session),
    "module": (pytest.Module,),
    "class": (pytest.Class, pytest.Module),
}
_MENTION = re.compile(rb"\bpytest_ddp\b(?!\.)|\bmark\.distributed\b")
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


def mentions_distributed(module: Path) -> bool:
    """Whether a test module that is not imported yet is likely to have distributed tests."""
    try:
        text = module.read_bytes()
    except OSError:  # whoever imports it will say so
        return False
    return _MENTION.search(text) is not None


def request_of(item: pytest.Item) -> Request:
    """Return what the test asks for, with the world size of its parametrization; raise UsageError."""
    size = parameters(item).get(WORLD_SIZE)
    request = _combined(item)
    if size is not None:
        request = replace(request, world_sizes=(size,))
    for fixture in rank_fixtures(item):
        _check_agreement(fixture, request)
    return request


def rank_fixtures(item: Any) -> list[pytest.FixtureDef[Any]]:
    """Return the `@distributed` fixtures that a test uses."""
    return [found[-1] for found in fixture_definitions(item).values() if hasattr(found[-1].func, FIXTURE_OPTIONS)]


def group_owner(item: pytest.Item) -> pytest.Collector | None:
    """Return the node whose tests share one group because of a `@distributed` fixture of that scope; None for none."""
    scopes = {fixture.scope for fixture in rank_fixtures(item)}
    widest = next((scope for scope in _WIDE if scope in scopes), None)
    if widest is None:
        return None
    node: pytest.Collector | None = item.getparent(_NODES[widest][0]) if widest in _NODES else item.session
    return node if node is not None else item.getparent(_NODES[widest][-1])


def parametrize_world_sizes(metafunc: pytest.Metafunc, settings: Settings) -> None:
    """Run a distributed test once per world size where it, or else the settings, names several."""
    item = metafunc.definition
    if not is_distributed(item):
        return
    request = _combined(item)
    sizes = request.world_sizes or settings.world_size
    if len(sizes) > 1:
        backend = request.backend or settings.backend or DEFAULT_BACKEND.get(request.device or settings.device, "auto")
        metafunc.fixturenames.append(WORLD_SIZE)
        # This scope makes pytest run a module's tests of one world size together: ranks keep their fixtures meanwhile.
        ids = [f"ws{size}-{backend}" for size in sizes]
        metafunc.parametrize(WORLD_SIZE, sizes, ids=ids, indirect=True, scope="module")


def _combined(item: pytest.Item) -> Request:
    return Request.combined(_options(item))


def _options(item: pytest.Item) -> Iterator[Mapping[str, Any]]:
    for mark in item.iter_markers("distributed"):
        yield mark_options(mark.args, mark.kwargs)
    for fixture in rank_fixtures(item):
        yield getattr(fixture.func, FIXTURE_OPTIONS)


def _check_agreement(fixture: pytest.FixtureDef[Any], request: Request) -> None:
    wanted = Request.of(**getattr(fixture.func, FIXTURE_OPTIONS))
    if wanted.world_sizes and request.world_sizes and request.world_sizes[0] not in wanted.world_sizes:
        sizes = ", ".join(map(str, wanted.world_sizes))
        raise UsageError(
            f"the fixture {fixture.argname!r} is for {sizes} ranks, the test asks for {request.world_sizes[0]}: "
            "let both name the same world size, or only one of them"
        )
    for name in ("backend", "device", "observe"):
        ours, theirs = getattr(wanted, name), getattr(request, name)
        if ours is not None and theirs is not None and ours != theirs:
            raise UsageError(f"the fixture {fixture.argname!r} is for {name} {ours!r}, the test asks for {theirs!r}")
