"""TCP ports for servers of the tests, which nothing else takes while a server is restarted.

A port that the kernel chose (port 0) is given to any client or server that asks next, also between
the end of a broker and its restart. So the tests take ports below the range from which the kernel
chooses. Each process of tests owns a block of them, held by the lock of a file.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from tests.support import memory

FIRST, BLOCK = 10_000, 1_000
_KERNEL_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_DEFAULT_START = 32_768


def reserve_port() -> int:
    """Return a port on loopback that is free, and that no other process of tests is given."""
    global _reserved
    if _reserved is None or _reserved[0] != os.getpid():
        _reserved = os.getpid(), _ports()
    return next(_reserved[1])


_reserved: tuple[int, Iterator[int]] | None = None
_locks: list[int] = []
"""Open files with a lock, which ends with this process."""


def _ports() -> Iterator[int]:
    """Yield free ports of a block, again and again; of the kernel if no block is left."""
    block = _own_block()
    if block is None:
        while True:
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                port: int = probe.getsockname()[1]
            yield port
    for port in itertools.cycle(block):
        if _is_free(port):
            yield port


def _own_block() -> range | None:
    folder = Path(memory.disk(), f"tidemill-tests-ports-{os.getuid()}")
    folder.mkdir(exist_ok=True)
    for first in range(FIRST, _kernel_start() - BLOCK + 1, BLOCK):
        lock = os.open(folder / str(first), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            continue
        _locks.append(lock)
        return range(first, first + BLOCK)
    return None


def _kernel_start() -> int:
    """Return the first port that the kernel chooses by itself."""
    try:
        return min(int(_KERNEL_RANGE.read_text().split()[0]), _DEFAULT_START)
    except (OSError, ValueError):
        return _DEFAULT_START


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
