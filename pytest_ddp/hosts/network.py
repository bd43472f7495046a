"""Addresses of this machine, and the network interface that reaches another one."""

import ipaddress
import socket
from collections.abc import Iterable

LOOPBACK = "127.0.0.1"


def address_towards(host: str, port: int = 9) -> str | None:
    """Return the address of this machine from which `host` is reached; None if there is no way. Sends nothing."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except OSError:
        return None


def own_addresses(towards: str) -> list[str]:
    """Return addresses at which other nodes may reach this one, the most likely first.

    `towards` is a name that the other nodes know. It may be this machine, which has another idea of its own name than
    the others: Debian maps it to 127.0.1.1.
    """
    import psutil  # noqa: PLC0415  in a job only

    found = [address_towards(towards), towards]
    for addresses in psutil.net_if_addrs().values():
        found += [one.address for one in addresses if one.family == socket.AF_INET]
    unique = dict.fromkeys(address for address in found if address)
    return sorted(unique, key=_is_loopback)


def interface_of(address: str) -> str | None:
    """Return the name of the network interface that has an address; None if there is none."""
    import psutil  # noqa: PLC0415  likewise

    for name, addresses in psutil.net_if_addrs().items():
        if any(one.address.partition("%")[0] == address for one in addresses):
            return name
    return "lo" if _is_loopback(address) and "lo" in psutil.net_if_addrs() else None


def interface_variables(address: str, present: Iterable[str]) -> dict[str, str]:
    """Return the variables that make gloo and NCCL use the interface that has `address`, but for those `present`."""
    name = interface_of(address)
    names = ("GLOO_SOCKET_IFNAME",) if _is_loopback(address) else ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
    return {} if name is None else dict.fromkeys(set(names) - set(present), name)


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"
