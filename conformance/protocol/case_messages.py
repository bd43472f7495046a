"""What a rank is asked about a case, and what it answers; both with both directions of their trip.

An answer holds tensors alone, also for counts and flags: whatever a rank sends, there is nothing else to make of it.
"""

from dataclasses import asdict, dataclass, field

from conformance.protocol.codec import MalformedError, pack, unpack
from conformance.scenarios.case import Case
from conformance.scenarios.cases import as_json, case_from_json
from conformance.submissions.location import Location
from conformance.workload.numbers import Tensors

_FACTS = {"unawaited", "stubbed", "borrowed"}


@dataclass(frozen=True)
class Assignment:
    """One rank's part of a case.

    Attributes:
        submission: where the code under test is.
        component: which component.
        case: the case, without the seed of its numbers.
        given: this rank's numbers.
        phase: which of the case's worlds this rank belongs to.
        folder: a folder that all ranks of all the case's worlds share.
        stubs: names of absent packages that this submission needs a stub for.
    """

    submission: Location
    component: str
    case: Case
    given: Tensors
    phase: int = 0
    folder: str = ""
    stubs: tuple[str, ...] = ()

    def encode(self) -> bytes:
        """Return the assignment as bytes."""
        header = {
            "submission": asdict(self.submission),
            "component": self.component,
            "case": {**as_json(self.case), "seed": 0},
            "phase": self.phase,
            "folder": self.folder,
            "stubs": self.stubs,
        }
        return pack(header, self.given)

    @classmethod
    def decode(cls, data: bytes) -> "Assignment":
        """Return the assignment that `encode` made."""
        header, given = unpack(data)
        location = Location(**{**header["submission"], "import_roots": tuple(header["submission"]["import_roots"])})
        case = case_from_json(header["case"])
        stubs = tuple(header["stubs"])
        return cls(location, header["component"], case, given, header["phase"], header["folder"], stubs)


@dataclass(frozen=True)
class Answer:
    """What one rank answered.

    Attributes:
        tensors: what was asked, by name.
        unawaited: in a gated case, operations that nobody has waited for, with their lines.
        stubbed: what was offered in place of something absent, and used.
        borrowed: torch's own implementations that were used.
    """

    tensors: Tensors
    unawaited: list[str] = field(default_factory=list)
    stubbed: list[str] = field(default_factory=list)
    borrowed: list[str] = field(default_factory=list)

    def encode(self) -> bytes:
        """Return the answer as bytes."""
        facts = {name: getattr(self, name) for name in _FACTS}
        return pack(facts, {name: t.detach().clone() for name, t in self.tensors.items()})

    @classmethod
    def decode(cls, data: bytes) -> "Answer":
        """Return the answer that `encode` made.

        Raises:
            MalformedError: the bytes are something else.
        """
        facts, tensors = unpack(data)
        if set(facts) != _FACTS or not all(isinstance(names, list) for names in facts.values()):
            raise MalformedError(f"not an answer of a rank of ours: its header is {facts!r}")
        return cls(tensors, **{fact: [str(name) for name in names] for fact, names in facts.items()})
