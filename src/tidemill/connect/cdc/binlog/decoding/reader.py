"""A cursor over the bytes of one event. Each method checks that the bytes are there.

Must not know any event. Source: MariaDB documentation, "Replication protocol", "Protocol data
types".
"""

from __future__ import annotations

from tidemill.connect.cdc.errors import PermanentCaptureError


class BinlogError(PermanentCaptureError):
    """The binary log holds something that can't be decoded or is not supported."""


class Reader:
    """Reads little-endian values from the front of a byte string.

    Attributes:
        position: the number of bytes that were read.
    """

    __slots__ = ("_data", "position")

    def __init__(self, data: bytes, position: int = 0) -> None:
        self._data = data
        self.position = position

    @property
    def remaining(self) -> int:
        """The number of bytes that are not read yet."""
        return len(self._data) - self.position

    def raw(self, size: int) -> bytes:
        """Read ``size`` bytes."""
        if size < 0 or size > self.remaining:
            raise BinlogError(
                f"a binary log event is cut off: expected {size} bytes at position "
                f"{self.position}, {self.remaining} are left"
            )
        start = self.position
        self.position = start + size
        return self._data[start : self.position]

    def uint(self, size: int) -> int:
        """Read an unsigned integer of ``size`` bytes."""
        return int.from_bytes(self.raw(size), "little")

    def length(self) -> int:
        """Read a length-encoded integer of one to nine bytes."""
        first = self.uint(1)
        if first < 0xFB:
            return first
        if first == 0xFC:
            return self.uint(2)
        if first == 0xFD:
            return self.uint(3)
        if first == 0xFE:
            return self.uint(8)
        raise BinlogError(f"a length in a binary log event begins with the invalid byte {first}")

    def rest(self) -> bytes:
        """Read all bytes that are left."""
        return self.raw(self.remaining)
