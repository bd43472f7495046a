"""Advice for errors whose own text does not lead a user of ranks to the cause."""

import re

_OWN_GROUP = (
    "dist.init_process_group('gloo', init_method=f'file://{ddp.shared_path}/store', rank=ddp.rank, "
    "world_size=ddp.world_size)"
)
_HINTS = {
    r"initialize the default process group twice": (
        "@distributed has made the process group before the test began: use that one. To test code that makes its own, "
        f"call dist.destroy_process_group() first, then for instance {_OWN_GROUP}"
    ),
    r"environment variable MASTER_(ADDR|PORT) expected": (
        f"ranks have RANK and WORLD_SIZE in their environment, and need no address: {_OWN_GROUP}"
    ),
    r"Default process group has not been initialized": (
        "@distributed makes the process group before the test begins: something in the test has destroyed it, or this "
        "is a process that the test has started, which has none"
    ),
    r"no backend type associated with device type (?P<type>\w+)": (
        "the process group cannot move tensors on {type}: put them on ddp.device, or ask for another backend"
    ),
    r"fixture '(?P<name>[^']+)' not found": (
        "if plain tests find {name!r}, it comes from a plugin that only pytest's own process has registered; ranks "
        "have the fixtures of conftest files and of installed plugins"
    ),
    r"address already in use|EADDRINUSE": (
        "tests and pytest runs share this machine: let the system choose a port (port 0), or do without: @distributed "
        "has made the process group"
    ),
    r"EOF when reading a line": "ranks have no standard input; breakpoint() works with --ddp-pdb-rank=RANK",
}


def hint(message: str) -> str | None:
    """Return advice for an exception with this message; None if there is none."""
    for pattern, advice in _HINTS.items():
        found = re.search(pattern, message, re.IGNORECASE)
        if found is not None:
            return advice.format(**found.groupdict()) if found.groupdict() else advice
    return None
