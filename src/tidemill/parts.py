"""The parts of a response: buffers, and ranges of files that are sent without being read.

Knows no sockets and no protocol.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeAlias


class FilePart(Protocol):
    """A range of a file that is sent as a part of a response."""

    @property
    def fd(self) -> int:
        """The descriptor of the file. It is open as long as this object lives."""

    @property
    def position(self) -> int:
        """The first byte of the range."""

    def __len__(self) -> int: ...


Buffer: TypeAlias = bytes | bytearray | memoryview
Part: TypeAlias = Buffer | FilePart


_BUFFERS = frozenset({bytes, bytearray, memoryview})


def has_files(parts: Iterable[Part]) -> bool:
    """Return whether some of the parts are ranges of files."""
    return not _BUFFERS.issuperset(map(type, parts))


def memory_of(parts: Iterable[Part]) -> int:
    """Return how many bytes of the parts are in memory of their own."""
    return sum(len(part) for part in parts if isinstance(part, bytes | bytearray | memoryview))
