"""Reading and writing the primitive types of Kafka's binary formats, with every bound checked.

Source: Kafka protocol guide, "Protocol Primitive Types". Used for records of internal topics and
for the consumer protocol's embedded bytes; knows no message.
"""

from __future__ import annotations

import struct

from tidemill.errors import InvalidRecordError

_I8 = struct.Struct(">b")
_I16 = struct.Struct(">h")
_I32 = struct.Struct(">i")
_I64 = struct.Struct(">q")


class Reader:
    """A cursor over bytes. Each method raises InvalidRecordError where the bytes end too early."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    @property
    def remaining(self) -> int:
        """Bytes not read yet."""
        return len(self._data) - self._position

    def raw(self, size: int) -> bytes:
        """The next ``size`` bytes."""
        if size < 0 or size > self.remaining:
            raise InvalidRecordError(f"{size} bytes are announced, {self.remaining} are left")
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
        """An unsigned varint of at most five bytes."""
        value = 0
        for shift in range(0, 35, 7):
            byte = self.raw(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise InvalidRecordError("a varint is longer than five bytes")

    def count(self, *, compact: bool) -> int:
        """Length of an array; -1 for null. Never larger than the bytes that are left."""
        value = self.uvarint() - 1 if compact else self.i32()
        if value > self.remaining:
            raise InvalidRecordError(f"{value} elements are announced, {self.remaining} bytes left")
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

    def nullable_bytes(self, *, compact: bool = False) -> bytes | None:
        size = self.uvarint() - 1 if compact else self.i32()
        return None if size < 0 else self.raw(size)

    def tagged_fields(self) -> dict[int, bytes]:
        """Tag -> raw bytes, of a flexible version (KIP-482)."""
        fields = {}
        for _ in range(self.uvarint()):
            tag = self.uvarint()
            fields[tag] = self.raw(self.uvarint())
        return fields


class Writer:
    """Grows a byte string of primitive types."""

    def __init__(self) -> None:
        self._data = bytearray()

    def done(self) -> bytes:
        """What has been written."""
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

    def i64(self, value: int) -> Writer:
        self._data += _I64.pack(value)
        return self

    def string(self, value: str | None) -> Writer:
        """A string with a 16-bit length; None is written as null (-1)."""
        if value is None:
            return self.i16(-1)
        data = value.encode()
        if len(data) > 0x7FFF:
            raise InvalidRecordError(f"a string of {len(data)} bytes does not fit 16-bit lengths")
        self.i16(len(data))
        self._data += data
        return self

    def uvarint(self, value: int) -> Writer:
        """An unsigned varint (lengths, counts and tags of flexible versions)."""
        while value > 0x7F:
            self._data.append(value & 0x7F | 0x80)
            value >>= 7
        self._data.append(value)
        return self

    def compact_string(self, value: str) -> Writer:
        """A string of a flexible version: its length + 1 as a varint."""
        data = value.encode()
        self.uvarint(len(data) + 1)
        self._data += data
        return self

    def tagged_fields(self, fields: dict[int, bytes]) -> Writer:
        """Tag -> raw bytes, of a flexible version (KIP-482); the caller orders them by tag."""
        self.uvarint(len(fields))
        for tag, value in fields.items():
            self.uvarint(tag).uvarint(len(value))
            self._data += value
        return self

    def blob(self, value: bytes) -> Writer:
        """Bytes with a 32-bit length."""
        self.i32(len(value))
        self._data += value
        return self
