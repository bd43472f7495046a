"""What became of each test, read from the JUnit file that the candidate's pytest wrote; it is data, not a verdict."""

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET

from pytest_ddp.errors import PytestDDPError

_MAX_BYTES = 256 * 2**20
_WORST_FIRST = ("failed", "error", "skipped", "xfailed", "passed")


class ReportError(PytestDDPError):
    """The JUnit file is missing, or is not one."""


@dataclass(frozen=True)
class Case:
    """A test: its id, its status (of `_WORST_FIRST`), why, and where it is."""

    test: str
    status: str
    message: str = ""
    file: str = ""
    line: int = 0

    @property
    def executed(self) -> bool:
        """Whether the body of the test ran: an error is one of setup, teardown or collection."""
        return self.status in {"failed", "xfailed", "passed"}


def read_bytes(path: Path) -> bytes:
    """Return a file of the candidate's; raise ReportError for a link, for what is no file, and for a huge one."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise ReportError(f"the run left no report: {error.strerror}") from None
    with open(file, "rb") as opened:  # noqa: PTH123  a descriptor
        state = os.fstat(file)
        if not stat.S_ISREG(state.st_mode) or state.st_size > _MAX_BYTES:
            raise ReportError("the run left something else than a report")
        return opened.read()


def parse(data: bytes) -> list[Case]:
    """Return one case for each test, in order; of several results of a test the worst.

    Raises:
        ReportError: it is no JUnit file. Entities are refused: a small file could grow without end.
    """
    try:
        text = data.decode("utf-8")  # no other encoding can hide what is looked for here
        if "<!DOCTYPE" in text:
            raise ReportError("the report has a document type, which pytest does not write")
        root = ET.fromstring(text)  # noqa: S314  without entities
    except (UnicodeDecodeError, ET.ParseError) as error:
        raise ReportError(f"the report is no XML: {error}") from None
    cases: dict[str, Case] = {}
    for case in map(_case, root.iter("testcase")):
        known = cases.get(case.test)
        if known is None or _WORST_FIRST.index(case.status) < _WORST_FIRST.index(known.status):
            cases[case.test] = case
    return list(cases.values())


def _case(element: ET.Element) -> Case:
    file, line = element.get("file", ""), element.get("line", "")
    status, message = _status(element)
    return Case(_test_id(element, file), status, message, file, int(line) + 1 if line.isdecimal() else 0)


def _test_id(element: ET.Element, file: str) -> str:
    """Return the id of a test as pytest prints it, if the file is known (`junit_family=xunit1`)."""
    classname, name = element.get("classname", ""), element.get("name", "")
    module = file.removesuffix(".py").replace("/", ".")
    if file and not classname and name == module:
        return file  # it could not be collected
    if not file or not classname.startswith(module):
        return f"{classname}.{name}".lstrip(".")
    return "::".join([file, *filter(None, classname.removeprefix(module).split(".")), name])


def _status(element: ET.Element) -> tuple[str, str]:
    for tag, status in (("error", "error"), ("failure", "failed"), ("skipped", "skipped")):
        if (found := element.find(tag)) is not None:
            is_expected = found.get("type") == "pytest.xfail"
            message = found.get("message", "")
            if message == "collection skipped":  # the reason stands in the text
                message = (found.text or message).strip()
            return "xfailed" if is_expected else status, message
    return "passed", ""
