"""The pytest plugin: hooks and fixtures that call plain functions."""

import os
from collections.abc import Generator
from functools import partial
from typing import TYPE_CHECKING, cast

import pytest

from pytest_ddp.adopted.classes import adopt
from pytest_ddp.context import DDPContext
from pytest_ddp.errors import UsageError
from pytest_ddp.items import WORLD_SIZE, parametrize_world_sizes, remember_node_id
from pytest_ddp.protocol.targets import NO_JOB
from pytest_ddp.reporting.run_summary import PLUGIN as SUMMARY
from pytest_ddp.reporting.run_summary import Summary, header
from pytest_ddp.settings import Settings, add_options, configured_value

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_ddp.controller.session import Controller
    from pytest_ddp.remote_calls.calls import RankCaller

_JOB_VARIABLES = {"WORLD_SIZE", "SLURM_STEP_ID", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}
_settings = pytest.StashKey[Settings]()
_MARKER = (
    "distributed(world_size, backend, device, timeout, isolation, observe, group, nodes, schedule, faults, "
    "reduction): "
    "run the test on every rank of a fresh torch process group (pytest-ddp)"
)
_AUTO = "; --ddp-device=auto runs on CPUs where there are no GPUs"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the options of pytest-ddp."""
    add_options(parser)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """In a job of torchrun, srun or mpirun, meet its other processes; those other than rank 0 do not return."""
    if _JOB_VARIABLES & os.environ.keys() and NO_JOB not in os.environ:
        from pytest_ddp.controller.job import join  # noqa: PLC0415  in a job only

        join(early_config)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> Generator[None, int | None, int | None]:
    """End the job when pytest is done."""
    if not config.pluginmanager.has_plugin("ddp-job"):
        return (yield)
    from pytest_ddp.controller.job import ending_job  # noqa: PLC0415  in a job only

    return (yield from ending_job(config))


def pytest_configure(config: pytest.Config) -> None:
    """Read the settings; unless this process is a rank, register the plugins of the controller."""
    config.addinivalue_line("markers", _MARKER)
    try:
        config.stash[_settings] = settings = Settings.read(partial(configured_value, config))
    except UsageError as error:
        raise pytest.UsageError(str(error)) from None
    if _on_rank(config):
        return
    from pytest_ddp.controller import session  # noqa: PLC0415  not on ranks
    from pytest_ddp.controller.xdist import Workers  # noqa: PLC0415  likewise

    if settings.launcher == "ray":
        from pytest_ddp.controller.ray_job import plan_ranks  # noqa: PLC0415  only for ranks on Ray nodes

        plan_ranks(config, settings)
    summary = Summary(settings)
    config.pluginmanager.register(summary, SUMMARY)
    config.pluginmanager.register(session.Controller(config, settings, summary), session.PLUGIN)
    config.pluginmanager.register(Workers(config))


def pytest_sessionstart(session: pytest.Session) -> None:
    """Refuse a run that needs GPUs which are not there, and reserve ranks on Ray nodes; a list of tests needs none."""
    if not _on_rank(session.config) and not session.config.option.collectonly:
        _require_cuda(session.config)
        if session.config.stash[_settings].launcher == "ray":
            from pytest_ddp.controller.ray_job import reserve  # noqa: PLC0415  only for ranks on Ray nodes

            reserve(session.config)


def pytest_report_header(config: pytest.Config) -> str:
    """Return the settings of distributed tests and the machine that they run on."""
    controller = config.pluginmanager.get_plugin("ddp-controller")
    return header(config.stash[_settings], str(controller.pools.job or "") if controller else "")


@pytest.hookimpl(tryfirst=True)
def pytest_itemcollected(item: pytest.Item) -> None:
    """Keep the node id of a test: pytest-xdist changes it for `--dist loadgroup`."""
    remember_node_id(item)


@pytest.hookimpl(wrapper=True)
def pytest_pycollect_makeitem(collector: pytest.Collector) -> Generator[None, object, object]:
    """Adopt the test classes that `ddp_adopt` names."""
    made = yield
    if isinstance(made, pytest.Class):
        adopt(made, collector.config.stash[_settings].adopt)
    return made


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize a distributed test by its world sizes."""
    try:
        parametrize_world_sizes(metafunc, metafunc.config.stash[_settings])
    except UsageError as error:
        raise pytest.Collector.CollectError(f"{metafunc.definition.nodeid}: {error}") from None


@pytest.fixture(name=WORLD_SIZE, scope="module")
def _ddp_world_size(request: pytest.FixtureRequest) -> int:
    size: int = request.param
    return size


@pytest.fixture(scope="session")
def ddp(request: pytest.FixtureRequest) -> DDPContext:
    """The rank that runs this test: rank, world_size, local_rank, node_rank, device, backend, group, seed, ..."""
    rank = request.config.pluginmanager.get_plugin("ddp-rank-state")
    if rank is None:
        pytest.fail(
            # The message does not name the test: pytest raises it again for every test of the session.
            "the fixture 'ddp' exists on ranks only: decorate the test with @distributed, or use 'ddp_ranks' to call "
            "functions on ranks",
            pytrace=False,
        )
    context: DDPContext = rank.context
    return context


@pytest.fixture(scope="session")
def ddp_ranks(request: pytest.FixtureRequest) -> "Callable[..., RankCaller]":
    """Call functions on ranks: `ddp_ranks(world_size=2).run(function, *arguments)` -> results in rank order."""
    if _on_rank(request.config):
        pytest.fail(
            "the fixture 'ddp_ranks' starts ranks from a plain test, but this test is @distributed, and runs on a rank "
            "already: use the fixture 'ddp'",
            pytrace=False,
        )
    from pytest_ddp.controller.session import PLUGIN  # noqa: PLC0415  in the controller only
    from pytest_ddp.remote_calls.calls import rank_callers  # noqa: PLC0415  likewise

    return rank_callers(cast("Controller", request.config.pluginmanager.get_plugin(PLUGIN)))


def _require_cuda(config: pytest.Config) -> None:
    settings = config.stash[_settings]
    required = max(settings.require_cuda, int(settings.device == "cuda"))
    if not required:
        return
    import torch.cuda  # noqa: PLC0415  the user has asked for GPUs

    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if found < required:
        by_count = f"--ddp-require-cuda={settings.require_cuda}"
        option, advice = (by_count, "") if settings.require_cuda else ("--ddp-device=cuda", _AUTO)
        raise pytest.UsageError(f"{option}: torch {torch.__version__} finds {found} GPUs here{_hidden()}{advice}")


def _hidden() -> str:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return "" if visible is None else f" with CUDA_VISIBLE_DEVICES={visible!r}"


def _on_rank(config: pytest.Config) -> bool:
    return config.pluginmanager.has_plugin("ddp-rank")
