"""The suite as tests: `pytest --pyargs conformance --ddp-submission=PATH --ddp-world-size=4`.

There is one test per component and check. If an extended check fails, its test is an expected failure: such a check
gives no points. The tests of a component that is not submitted are skipped.
"""

import secrets
from collections.abc import Iterator

import pytest

from conformance.commands.options import COMMAND
from conformance.components.registry import COMPONENTS
from conformance.execution.executor import Executor
from conformance.execution.fork_servers import fork_servers, ranks_from
from conformance.grading.grade import Grading, lacks, submitted_components
from conformance.grading.on_demand import Grader
from conformance.grading.report import GRADER_ERROR, MAX_EXAMPLES, WORLD_SIZE
from conformance.submissions.location import locate
from pytest_ddp.errors import UsageError
from pytest_ddp.settings import configured_value, parse_world_sizes

_USAGE = 2
_SEED_BITS = 32
_ALL = [
    pytest.param(name, check.id, id=f"{name}-{check.id}") for name, one in COMPONENTS.items() for check in one.checks
]


@pytest.fixture(scope="module")
def grader(pytestconfig: pytest.Config) -> Iterator[Grader]:
    """The submission, on ranks of its own."""
    given = pytestconfig.getoption("--ddp-submission")
    if given is None:
        pytest.skip("give --ddp-submission=PATH")
    sizes, seeded = configured_value(pytestconfig, "world_size"), configured_value(pytestconfig, "seed")
    world_size = max(parse_world_sizes(sizes[0])) if sizes else WORLD_SIZE
    if world_size == 1:
        pytest.exit("--ddp-world-size=1: a single rank has nothing to synchronise; give 2 or more", _USAGE)
    from_scratch = pytestconfig.getoption("--ddp-from-scratch")
    seed = int(seeded[0]) if seeded else secrets.randbits(_SEED_BITS)
    grading = Grading(seed, world_size, tuple(COMPONENTS), MAX_EXAMPLES, from_scratch=from_scratch)
    with fork_servers() as launcher, ranks_from(launcher) as ranks:
        executor = Executor(ranks, locate(given), secret=str(grading.seed))
        try:
            submitted = submitted_components(executor, grading.components)
        except UsageError as error:
            pytest.exit(str(error), _USAGE)
        yield Grader(executor, grading, submitted)


def _again(grader: Grader, component: str) -> str:
    """Say how to run the same scenarios with the same numbers again."""
    seed, asked = grader.grading.seed, f"--components {component} --world-size {grader.grading.world_size}"
    return (
        f"To repeat it: --ddp-seed={seed}. For a script without this suite: "
        f"{COMMAND} {grader.executor.location.given} {asked} --seed {seed}"
    )


@pytest.mark.parametrize(("component", "check_id"), _ALL)
def test_submission(component: str, check_id: str, grader: Grader) -> None:
    """The component has the property that the check is named for."""
    if component not in grader.submitted:
        missing = grader.executor.missing.get(component, ())
        pytest.skip(f"not submitted: {lacks(component, missing)}" if missing else f"{component} is not submitted")
    report = grader.verdict(component, check_id)
    if report.status == "passed":
        return
    said = "\n\n".join(report.explanation)
    scenario = f"\n\nSmallest scenario: {report.scenario!r}\n{_again(grader, component)}" if report.scenario else ""
    if report.status == "not_run":
        pytest.skip(report.message)
    if report.level == "extended" and report.status == "failed":
        pytest.xfail(f"extended check: {said}")
    pytest.fail((f"{GRADER_ERROR}\n\n" if report.status == "error" else "") + said + scenario, pytrace=False)
