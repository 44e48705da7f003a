"""Refuse connections to addresses that a webhook must not reach (server-side request forgery).

The address is checked when a socket is made for it, so names, literals in any notation, answers of
the DNS that change, and mapped addresses are all seen as what they are. Python's ``is_private`` and
``is_global`` are not used: they differ between its versions, and lack some networks.

Source: IANA's registries of special-purpose addresses for IPv4 and IPv6, RFC 6890, RFC 6052.
"""

from __future__ import annotations

import errno
import ipaddress
import socket
from collections.abc import Callable
from typing import Any

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

PRIVATE = (
    ("10.0.0.0/8", "private"),
    ("100.64.0.0/10", "shared by a carrier"),
    ("127.0.0.0/8", "loopback"),
    ("172.16.0.0/12", "private"),
    ("192.168.0.0/16", "private"),
    ("::1/128", "loopback"),
    ("fc00::/7", "unique local"),
)
"""Networks that ``allow_private`` allows."""
REFUSED = (
    ("0.0.0.0/8", "this network"),
    ("169.254.0.0/16", "link-local"),  # metadata of clouds
    ("192.0.0.0/24", "protocol assignments"),
    ("192.0.2.0/24", "documentation"),
    ("192.52.193.0/24", "multicast relays"),
    ("192.88.99.0/24", "6to4 relays"),
    ("198.18.0.0/15", "benchmarks"),
    ("198.51.100.0/24", "documentation"),
    ("203.0.113.0/24", "documentation"),
    ("224.0.0.0/4", "multicast"),
    ("240.0.0.0/4", "reserved, broadcast"),
    ("64:ff9b:1::/48", "local translation"),
    ("2001::/23", "protocol assignments, Teredo"),
    ("2001:db8::/32", "documentation"),
    ("2002::/16", "6to4"),
    ("3fff::/20", "documentation"),
    # Only 2000::/3 is given out.
    ("::/3", "reserved, IPv4-compatible, discard"),
    ("4000::/2", "not given out"),
    ("8000::/1", "not given out, link-local, site-local, multicast"),
)
"""Networks that are always refused."""
_EMBEDDED = (
    (ipaddress.IPv6Network("::ffff:0:0/96"), "IPv4-mapped"),
    (ipaddress.IPv6Network("64:ff9b::/96"), "translated (NAT64)"),
)
"""Networks whose last four bytes are an IPv4 address, which is checked instead."""


class RefusedAddressError(OSError):
    """A webhook must not connect to this address."""


def _table(rows: tuple[tuple[str, str], ...]) -> list[tuple[Any, str]]:
    return [(ipaddress.ip_network(network), reason) for network, reason in rows]


_PRIVATE, _REFUSED = _table(PRIVATE), _table(REFUSED)


def check_address(text: str, *, allow_private: bool) -> None:
    """Check that a webhook can connect to an address.

    Raises:
        RefusedAddressError: it must not.
    """
    address: Address = ipaddress.ip_address(text.partition("%")[0])
    for network, _ in _EMBEDDED:
        if address.version == 6 and address in network:
            address = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    for network, reason in _PRIVATE:
        if address.version == network.version and address in network:
            if allow_private:
                return
            raise _refused(text, reason, "allow_private = true allows it")
    for network, reason in _REFUSED:
        if address.version == network.version and address in network:
            raise _refused(text, reason, "webhooks never go there")


def _refused(text: str, reason: str, more: str) -> RefusedAddressError:
    problem = f"refused to connect to {text} ({reason}): {more}"
    return RefusedAddressError(errno.EACCES, problem)


def guarded_sockets(*, allow_private: bool) -> Callable[[Any], socket.socket]:
    """Return a ``socket_factory`` for aiohttp that checks the address of each connection."""

    def make(info: tuple[int, int, int, str, tuple[Any, ...]]) -> socket.socket:
        family, kind, protocol, _, address = info
        check_address(str(address[0]), allow_private=allow_private)
        return socket.socket(family, kind, protocol)

    return make
