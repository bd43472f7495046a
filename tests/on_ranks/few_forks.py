"""Imported by a fork server, makes its third fork fail, as where no more processes are to be had."""

import errno
import itertools
import os

_numbers = itertools.count(1)
_fork = os.fork


def _fork_but_for_the_third() -> int:
    if next(_numbers) == 3:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    return _fork()


os.fork = _fork_but_for_the_third
