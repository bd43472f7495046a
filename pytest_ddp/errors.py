"""The exceptions of pytest-ddp; each can be pickled because its only argument is its message."""


class PytestDDPError(Exception):
    """Base of the exceptions that pytest-ddp raises itself."""


class UsageError(PytestDDPError):
    """The user's code or options are invalid; the message says what to write instead."""


class LackError(UsageError):
    """This machine lacks something that a test needs; the message is the reason why the test is skipped."""


class LaunchError(PytestDDPError):
    """Ranks could not be started; the message names the rank and has its output."""


class ProtocolError(PytestDDPError):
    """A rank sent bytes that are not a message of pytest-ddp."""


class CollectiveMismatch(PytestDDPError):  # noqa: N818  the field's own word
    """Ranks of a group entered different operations where they must enter the same; raised before it is issued."""


class BlocksInsideBackward(PytestDDPError):  # noqa: N818  likewise
    """A rank waits for other ranks inside backward, under a gate that completes nothing until backward is over."""


class SharedGlobalWarning(UserWarning):
    """Simulated ranks changed a global that they share; on real ranks each would have its own."""


class LeakWarning(UserWarning):
    """A test left something behind on a rank (`--ddp-leaks`)."""
