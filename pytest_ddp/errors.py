"""The exceptions of pytest-ddp; each survives pickling because its only argument is its message."""


class PytestDDPError(Exception):
    """Base of everything that pytest-ddp raises itself."""


class UsageError(PytestDDPError):
    """The user asked for something that cannot be: the message says what, and what to write instead."""


class LaunchError(PytestDDPError):
    """Ranks could not be started; the message says which and what they said."""


class ProtocolError(PytestDDPError):
    """A rank sent bytes that are no message of ours."""


class CollectiveMismatch(PytestDDPError):  # noqa: N818  what is wrong, in the field's own words
    """Ranks of one group entered different operations where they must enter the same; raised before it is issued."""


class LeakWarning(UserWarning):
    """A test left something behind on a rank (`--ddp-leaks`)."""
