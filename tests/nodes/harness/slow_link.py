"""A link that delays packets: copies Ethernet frames between two new TAP devices, each after a fixed time.

    python slow_link.py tap-a tap-b seconds

Unlike `tc netem` it needs no kernel module. It prints `up` when both devices are there, and ends when its stdin closes.
"""

import fcntl
import os
import select
import struct
import sys
import time
from collections import deque

TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454CA, 0x0002, 0x1000
LARGEST_FRAME = 65_536


def tap(name: str) -> int:
    """Return a descriptor that reads and writes the frames of a new network device; both end together."""
    device = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH", name.encode(), IFF_TAP | IFF_NO_PI))
    return device


def copy(left: int, right: int, seconds: float) -> None:
    """Copy frames in both directions until stdin closes."""
    to = {left: right, right: left}
    late: deque[tuple[float, int, bytes]] = deque()  # frames leave in the order in which they came: all wait as long
    while True:
        wait = max(0.0, late[0][0] - time.monotonic()) if late else None
        ready, _, _ = select.select([sys.stdin, left, right], [], [], wait)
        if sys.stdin in ready:
            return
        late.extend((time.monotonic() + seconds, to[device], os.read(device, LARGEST_FRAME)) for device in ready)
        while late and late[0][0] <= time.monotonic():
            _, device, frame = late.popleft()
            os.write(device, frame)


if __name__ == "__main__":
    taps = tap(sys.argv[1]), tap(sys.argv[2])
    print("up", flush=True)
    copy(*taps, float(sys.argv[3]))
