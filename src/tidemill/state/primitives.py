"""Reads and writes the primitive types of Kafka's binary formats, and checks every length.

It is used for the records of internal topics and for consumers' subscription metadata. This module
must not know any record or message. A decoder that uses it raises InvalidRecordError for malformed
bytes, and FormatVersionError for a version that is not supported.

Source: Kafka protocol guide, "Protocol Primitive Types".
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

from tidemill.log.errors import FormatVersionError, InvalidRecordError

_I8 = struct.Struct(">b")
_I16 = struct.Struct(">h")
_I32 = struct.Struct(">i")
_I64 = struct.Struct(">q")


class Reader:
    """A cursor over bytes. Each method raises InvalidRecordError if the bytes end too early."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    @property
    def remaining(self) -> int:
        """The number of bytes that are not read yet."""
        return len(self._data) - self._position

    def raw(self, size: int) -> bytes:
        """Read ``size`` bytes."""
        if size < 0 or size > self.remaining:
            raise InvalidRecordError(f"expected {size} bytes, only {self.remaining} are left")
        start = self._position
        self._position = start + size
        return self._data[start : self._position]

    def i8(self) -> int:
        return int(_I8.unpack(self.raw(1))[0])

    def i16(self) -> int:
        return int(_I16.unpack(self.raw(2))[0])

    def i32(self) -> int:
        return int(_I32.unpack(self.raw(4))[0])

    def i64(self) -> int:
        return int(_I64.unpack(self.raw(8))[0])

    def uvarint(self) -> int:
        """Read an unsigned varint of at most five bytes."""
        value = 0
        for shift in range(0, 35, 7):
            byte = self.raw(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise InvalidRecordError("a varint is longer than five bytes")

    def count(self, *, compact: bool) -> int:
        """Read the length of an array: -1 for null, never more than the bytes that are left."""
        value = self.uvarint() - 1 if compact else self.i32()
        if value > self.remaining:
            raise InvalidRecordError(
                f"expected {value} elements, only {self.remaining} bytes are left"
            )
        return value

    def nullable_string(self, *, compact: bool = False) -> str | None:
        size = self.uvarint() - 1 if compact else self.i16()
        if size < 0:
            return None
        try:
            return self.raw(size).decode()
        except UnicodeDecodeError as error:
            raise InvalidRecordError(f"a string is not UTF-8: {error}") from error

    def string(self, *, compact: bool = False) -> str:
        value = self.nullable_string(compact=compact)
        if value is None:
            raise InvalidRecordError("a string that must not be null is null")
        return value

    def compact_strings(self) -> Iterator[str]:
        """Read an array of strings of a flexible version, one at a time."""
        return (self.string(compact=True) for _ in range(self.count(compact=True)))

    def nullable_bytes(self, *, compact: bool = False) -> bytes | None:
        size = self.uvarint() - 1 if compact else self.i32()
        return None if size < 0 else self.raw(size)

    def tagged_fields(self) -> dict[int, bytes]:
        """Read the tagged fields of a flexible version (KIP-482), as tag -> bytes."""
        fields = {}
        for _ in range(self.uvarint()):
            tag = self.uvarint()
            fields[tag] = self.raw(self.uvarint())
        return fields


class Writer:
    """Builds a byte string from primitive types."""

    def __init__(self) -> None:
        self._data = bytearray()

    def done(self) -> bytes:
        """Return the bytes that were written."""
        return bytes(self._data)

    def i8(self, value: int) -> Writer:
        self._data += _I8.pack(value)
        return self

    def i16(self, value: int) -> Writer:
        self._data += _I16.pack(value)
        return self

    def i32(self, value: int) -> Writer:
        self._data += _I32.pack(value)
        return self

    def i32s(self, values: Sequence[int]) -> Writer:
        """Write many numbers, without their count."""
        self._data += struct.pack(f">{len(values)}i", *values)
        return self

    def i64(self, value: int) -> Writer:
        self._data += _I64.pack(value)
        return self

    def string(self, value: str | None) -> Writer:
        """Write a string with a 16-bit length. None becomes null (-1)."""
        if value is None:
            return self.i16(-1)
        data = value.encode()
        if len(data) > 0x7FFF:
            raise InvalidRecordError(f"a string of {len(data)} bytes is too long (at most 32767)")
        self.i16(len(data))
        self._data += data
        return self

    def uvarint(self, value: int) -> Writer:
        """Write an unsigned varint (lengths, counts and tags of flexible versions)."""
        while value > 0x7F:
            self._data.append(value & 0x7F | 0x80)
            value >>= 7
        self._data.append(value)
        return self

    def compact_string(self, value: str) -> Writer:
        """Write a string of a flexible version: its length + 1 as a varint, then its bytes."""
        data = value.encode()
        self.uvarint(len(data) + 1)
        self._data += data
        return self

    def compact_nullable_string(self, value: str | None) -> Writer:
        """Write a string of a flexible version. None becomes null (0)."""
        return self.uvarint(0) if value is None else self.compact_string(value)

    def compact_count(self, count: int) -> Writer:
        """Write the length of an array of a flexible version."""
        return self.uvarint(count + 1)

    def compact_strings(self, values: Sequence[str]) -> Writer:
        """Write an array of strings of a flexible version."""
        self.compact_count(len(values))
        for value in values:
            self.compact_string(value)
        return self

    def compact_blob(self, value: bytes) -> Writer:
        """Write bytes of a flexible version."""
        return self.uvarint(len(value) + 1).raw(value)

    def raw(self, value: bytes) -> Writer:
        """Write bytes as they are, without a length."""
        self._data += value
        return self

    def tagged_fields(self, fields: dict[int, bytes]) -> Writer:
        """Write tagged fields (KIP-482). The caller passes them in the order of their tags."""
        self.uvarint(len(fields))
        for tag, value in fields.items():
            self.uvarint(tag).uvarint(len(value))
            self._data += value
        return self

    def blob(self, value: bytes) -> Writer:
        """Write bytes with a 32-bit length."""
        self.i32(len(value))
        self._data += value
        return self


def versioned(data: bytes, name: str) -> Reader:
    """Return a reader behind the version of a value, which must be 0.

    Raises:
        InvalidRecordError: the version is negative.
        FormatVersionError: the version is not supported.
    """
    reader = Reader(data)
    version = reader.i16()
    if version < 0:
        raise InvalidRecordError(f"invalid version {version} of {name}")
    if version > 0:
        raise FormatVersionError(f"version {version} of {name} is not supported")
    return reader
