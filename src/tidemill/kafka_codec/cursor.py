"""Reads the fields of a response that is decoded by hand. Every length is checked."""

from __future__ import annotations

import struct

from tidemill.errors import ProtocolError

_I16, _I32, _I64 = struct.Struct(">h"), struct.Struct(">i"), struct.Struct(">q")


class Cursor:
    """Reads the fields of a response, one after the other."""

    def __init__(self, view: memoryview) -> None:
        self._view = view
        self._at = 0

    def _unpack(self, form: struct.Struct) -> int:
        try:
            (number,) = form.unpack_from(self._view, self._at)
        except struct.error:
            raise malformed() from None
        self._at += form.size
        return int(number)

    def i8(self) -> int:
        return self.take(1)[0]

    def i16(self) -> int:
        return self._unpack(_I16)

    def i32(self) -> int:
        return self._unpack(_I32)

    def i64(self) -> int:
        return self._unpack(_I64)

    def take(self, size: int) -> memoryview:
        if not 0 <= size <= len(self._view) - self._at:
            raise malformed()
        self._at += size
        return self._view[self._at - size : self._at]

    def check_room(self, size: int) -> None:
        """Raise an error if fewer bytes are left."""
        if size > len(self._view) - self._at:
            raise malformed()

    def bytes(self) -> memoryview:
        """Bytes with a length of 4 bytes; null is empty."""
        return self.take(max(0, self.i32()))

    def text(self) -> str:
        """A string with a length of 2 bytes; null is empty."""
        raw = self.take(max(0, self.i16()))
        try:
            return str(raw, "utf-8")
        except UnicodeDecodeError:
            raise malformed() from None

    def count(self, least_size: int) -> int:
        """A number of elements. Null is 0."""
        number = self.i32()
        if number > (len(self._view) - self._at) // least_size:
            raise malformed()
        return max(0, number)


def malformed() -> ProtocolError:
    """Return the error for a response that does not have the form of its version."""
    return ProtocolError("a length in it is invalid, or a field is missing")
