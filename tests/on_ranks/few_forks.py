"""Makes the third fork of the fork server that imports this module fail."""

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
