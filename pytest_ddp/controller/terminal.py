"""The terminal of the run: the controller knows its name, a rank's debugger borrows it."""

import os


def terminal_name() -> str | None:
    """Return the name of the terminal on standard input, such as /dev/pts/3; None if it is not one."""
    try:
        return os.ttyname(0)
    except OSError:
        return None
