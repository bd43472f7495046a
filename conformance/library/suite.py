"""What `verify` is asked for: which functions of a library are held to which checks, as values."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from conformance.components.registry import COMPONENTS
from conformance.library import known_failures
from conformance.library.known_failures import Known
from conformance.scenarios.claims import Claims
from conformance.submissions.library import FunctionOrName, Named
from pytest_ddp.errors import UsageError

_WRAPPER, _OPTIMIZER, _BOTH, _FSDP, _ENGINE = "ddp", "sharded_optimizer", "both", "fsdp", "engine"


@dataclass(frozen=True, kw_only=True)
class Functions:
    """The functions of a library, as `verify` gets them; `verify` describes them."""

    wrap: FunctionOrName | None = None
    after_backward: FunctionOrName | None = None
    sharded: FunctionOrName | None = None
    both: bool = True
    fsdp: FunctionOrName | None = None
    full_parameters: FunctionOrName | None = None
    engine: FunctionOrName | None = None

    @property
    def components(self) -> Iterator[str]:
        """The components that are verified, in the order in which they are graded."""
        given = {
            _WRAPPER: self.wrap is not None,
            _OPTIMIZER: self.sharded is not None,
            _BOTH: self.wrap is not None and self.sharded is not None and self.both,
            _FSDP: self.fsdp is not None,
            _ENGINE: self.engine is not None,
        }
        yield from (name for name in COMPONENTS if given.get(name))

    def hold_complete(self) -> None:
        """Raise UsageError if a function is missing, or one would not be used."""
        if not any(self.components):
            raise UsageError("verify: give it a function of your library: wrap=, sharded=, fsdp= or engine=")
        if self.fsdp and not self.full_parameters:
            raise UsageError(
                "verify: fsdp= also needs full_parameters=, (wrapped) -> a dict of whole parameters by name"
            )
        if self.full_parameters and not self.fsdp:
            raise UsageError("verify: full_parameters= is for fsdp=, which is not given")
        if self.after_backward and not (self.wrap or self.fsdp):
            raise UsageError("verify: after_backward= is for wrap= or fsdp=, and neither is given")

    def adapters(self, test_file: Path) -> dict[str, Named | None]:
        """Return the adapter functions by name; None stands for one that does nothing. Raise UsageError."""

        def named(role: str) -> Named | None:
            given: FunctionOrName | None = getattr(self, role)
            found = None if given is None else Named.of(role, given, test_file)
            if found:
                found.hold_importable(test_file.parent)
            return found

        found = dict[str, Named | None]()
        if self.wrap:
            found |= {"get_ddp": named("wrap"), "ddp_on_after_backward": named("after_backward")}
        if self.sharded:
            found["get_sharded_optimizer"] = named("sharded")
        if self.fsdp:
            found |= {"get_fsdp": named("fsdp"), "fsdp_on_after_backward": named("after_backward")}
            found["fsdp_gather_full_params"] = named("full_parameters")
        if self.engine:
            found["get_engine"] = named("engine")
        return found


@dataclass(frozen=True)
class Suite:
    """One call of `verify`.

    Attributes:
        test_file: the file with the call.
        line: its line there.
        functions: the library's.
        claims: what the library claims.
        libraries: further packages whose exceptions count as refusals.
        known_file: the file of known failures; None if there is none.
    """

    test_file: Path
    line: int
    functions: Functions
    claims: Claims
    libraries: tuple[str, ...]
    known_file: Path | None

    def hold_valid(self) -> None:
        """Raise UsageError if a function cannot be had, a claim cannot be made, or a line of the file is wrong."""
        self.functions.hold_complete()
        if self.claims.mistake:
            raise UsageError(self.claims.mistake)
        self.adapters  # noqa: B018  each is computed once
        self.known  # noqa: B018  likewise

    @cached_property
    def adapters(self) -> dict[str, Named | None]:
        """The adapter functions by name, as `Functions.adapters` returns them."""
        return self.functions.adapters(self.test_file)

    @cached_property
    def known(self) -> Known:
        """The known failures by component and check."""
        return known_failures.read(self.known_file, self.checks) if self.known_file else {}

    @property
    def known_name(self) -> str:
        """The name of the file of known failures, for messages."""
        return self.known_file.name if self.known_file else "no file"

    @cached_property
    def checks(self) -> dict[str, tuple[str, ...]]:
        """The ids of the checks of each component that is verified."""
        return {name: tuple(check.id for check in COMPONENTS[name].checks) for name in self.functions.components}
