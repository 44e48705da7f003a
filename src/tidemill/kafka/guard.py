"""Proof that a request is well-formed before kio's native reader sees it.

kio allocates an array from the length it reads, and an absurd length aborts the process. So each
request is first walked by a function compiled from the same dataclass: every length and every
array count must be covered by bytes that are really there, nulls may stand only where the schema
allows them, and the number of array elements per request is bounded. Runs of fixed-size fields
cost one addition, arrays of fixed-size elements one comparison.

kio also refuses tags that it does not know, which KIP-482 tells a server to skip. The walk finds
them and cuts them out. Sans-IO; knows no API by name.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from tidemill.errors import ProtocolError
from tidemill.kafka.schema import FIXED_FORMATS, FieldSpec, cached, fields_of

MAX_ELEMENTS = 1_000_000
"""Array elements (strings and structures) in one request."""

_I16 = struct.Struct(">h").unpack_from
_I32 = struct.Struct(">i").unpack_from


class Walk:
    """What one walk over one request has left, and what must be cut out of it."""

    __slots__ = ("cuts", "elements", "end")

    def __init__(self, end: int) -> None:
        self.end = end
        self.elements = MAX_ELEMENTS
        self.cuts: list[tuple[int, int, bytes]] = []
        """(start, end, replacement) of what kio could not read."""


Walker = Callable[[bytes, int, Walk], int]


def check(entity: type[Any], buffer: bytes, position: int) -> bytes | None:
    """Prove that ``buffer[position:]`` begins with one ``entity``.

    Returns:
        None where kio can read ``buffer`` as it is; else the body (from position 0) to read
        instead, without tags that kio does not know and without what follows the body.

    Raises:
        ProtocolError: it is not.
    """
    walk = Walk(len(buffer))
    try:
        end = compile_walker(entity)(buffer, position, walk)
    except (IndexError, struct.error):
        raise ProtocolError("the request ends in the middle of a field") from None
    if end > walk.end:
        raise ProtocolError("the request ends in the middle of a field")
    if end == walk.end and not walk.cuts:
        return None
    # What follows the body is dropped, as Apache Kafka does: librdkafka (2.16) leaves three bytes
    # behind a Metadata request for all topics.
    return _without(walk.cuts, buffer[:end], position)


def _without(cuts: list[tuple[int, int, bytes]], buffer: bytes, position: int) -> bytes:
    parts: list[bytes] = []
    for start, end, replacement in sorted(cuts):
        parts += (buffer[position:start], replacement)
        position = end
    parts.append(buffer[position:])
    return b"".join(parts)


def read_uvarint(buffer: bytes | memoryview, position: int) -> tuple[int, int]:
    """(value, next position) of an unsigned varint of at most five bytes.

    Raises:
        ProtocolError: longer than five bytes.
        IndexError: the buffer ends in it.
    """
    byte = buffer[position]
    if byte < 0x80:
        return byte, position + 1
    value = byte & 0x7F
    for index in range(1, 5):
        byte = buffer[position + index]
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, position + index + 1
    raise ProtocolError("a varint is longer than five bytes")


def uvarint(value: int) -> bytes:
    """``value`` as an unsigned varint."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


# --- compiling -----------------------------------------------------------------------------------


@cached
def compile_walker(entity: type[Any]) -> Walker:
    """A function that walks one ``entity`` and returns the position behind it."""
    flexible: bool = entity.__flexible__
    steps: list[Walker | int] = []
    tagged: dict[int, Walker] = {}
    for field in fields_of(entity):
        size = _fixed_size(field)
        if field.tag is not None:
            tagged[field.tag] = _field_walker(field, flexible)
        elif size is None:
            steps.append(_field_walker(field, flexible))
        elif steps and isinstance(steps[-1], int):
            steps[-1] += size
        else:
            steps.append(size)
    walkers = [_skip(step) if isinstance(step, int) else step for step in steps]
    if flexible:
        walkers.append(_tag_walker(tagged))
    return _sequence(walkers)


def _fixed_size(field: FieldSpec) -> int | None:
    """Bytes that the field always takes, or None."""
    if field.is_array or field.struct is not None:
        return None
    if field.kafka_type == "uuid":
        return 16
    code = FIXED_FORMATS.get(field.kafka_type)
    return None if code is None else struct.calcsize(">" + code)


@cached
def _skip(size: int) -> Walker:
    def walk_fixed(buffer: bytes, position: int, walk: Walk) -> int:
        position += size
        if position > walk.end:
            raise ProtocolError("the request ends in the middle of a field")
        return position

    return walk_fixed


def _sequence(walkers: list[Walker]) -> Walker:
    if len(walkers) == 1:
        return walkers[0]

    def walk_sequence(buffer: bytes, position: int, walk: Walk) -> int:
        for step in walkers:
            position = step(buffer, position, walk)
        return position

    return walk_sequence


def _field_walker(field: FieldSpec, flexible: bool) -> Walker:
    if field.is_array:
        return _array_walker(field, flexible)
    if field.struct is not None:
        inner = compile_walker(field.struct)
        return _nullable_struct(inner) if field.nullable else inner
    size = _fixed_size(field)
    if size is not None:
        return _skip(size)
    return _blob_walker(field.name, _length_reader(field.kafka_type, flexible), field.nullable)


def _nullable_struct(inner: Walker) -> Walker:
    """A structure behind a byte that is negative where it is null (KIP-893)."""

    def walk_nullable(buffer: bytes, position: int, walk: Walk) -> int:
        marker = buffer[position]
        return position + 1 if marker & 0x80 else inner(buffer, position + 1, walk)

    return walk_nullable


def _length_reader(kafka_type: str, flexible: bool) -> Callable[[bytes, int], tuple[int, int]]:
    if flexible:
        return _compact_length
    return _i16_length if kafka_type == "string" else _i32_length


def _compact_length(buffer: bytes, position: int) -> tuple[int, int]:
    value, position = read_uvarint(buffer, position)
    return value - 1, position


def _i16_length(buffer: bytes, position: int) -> tuple[int, int]:
    return _I16(buffer, position)[0], position + 2


def _i32_length(buffer: bytes, position: int) -> tuple[int, int]:
    return _I32(buffer, position)[0], position + 4


def _blob_walker(
    name: str, read_length: Callable[[bytes, int], tuple[int, int]], nullable: bool
) -> Walker:
    shortest = -1 if nullable else 0

    def walk_blob(buffer: bytes, position: int, walk: Walk) -> int:
        length, position = read_length(buffer, position)
        if length < shortest or length > walk.end - position:
            raise _bad_length(name, length, walk.end - position)
        return position + length if length > 0 else position

    return walk_blob


def _array_walker(field: FieldSpec, flexible: bool) -> Walker:
    name, shortest = field.name, -1 if field.nullable else 0
    read_count = _compact_length if flexible else _i32_length
    if field.struct is None:
        code = FIXED_FORMATS.get(field.kafka_type)
        if code is not None or field.kafka_type == "uuid":
            width = 16 if code is None else struct.calcsize(">" + code)
            return _fixed_array(name, read_count, shortest, width)
        item = _blob_walker(name, _length_reader(field.kafka_type, flexible), nullable=False)
    else:
        item = compile_walker(field.struct)

    def walk_array(buffer: bytes, position: int, walk: Walk) -> int:
        count, position = read_count(buffer, position)
        # Each element takes at least one byte.
        if count < shortest or count > walk.end - position:
            raise _bad_length(name, count, walk.end - position)
        walk.elements -= count
        if walk.elements < 0:
            raise ProtocolError(f"more than {MAX_ELEMENTS} array elements in one request")
        for _ in range(count):
            position = item(buffer, position, walk)
        return position

    return walk_array


def _fixed_array(
    name: str,
    read_count: Callable[[bytes, int], tuple[int, int]],
    shortest: int,
    width: int,
) -> Walker:
    def walk_fixed_array(buffer: bytes, position: int, walk: Walk) -> int:
        count, position = read_count(buffer, position)
        if count < shortest or count * width > walk.end - position:
            raise _bad_length(name, count, walk.end - position)
        walk.elements -= count
        if walk.elements < 0:
            raise ProtocolError(f"more than {MAX_ELEMENTS} array elements in one request")
        return position + count * width if count > 0 else position

    return walk_fixed_array


def _bad_length(name: str, length: int, left: int) -> ProtocolError:
    if length < 0:
        return ProtocolError(f"length {length} of {name}: it may not be null or negative")
    return ProtocolError(f"length {length} of {name}, but {left} bytes are left")


def _tag_walker(known: dict[int, Walker]) -> Walker:
    def walk_tags(buffer: bytes, position: int, walk: Walk) -> int:
        start = position
        if buffer[position] == 0:  # nearly always
            return position + 1
        count, position = read_uvarint(buffer, position)
        if count > walk.end - position:
            raise _bad_length("tagged fields", count, walk.end - position)
        walk.elements -= count
        if walk.elements < 0:
            raise ProtocolError(f"more than {MAX_ELEMENTS} array elements in one request")
        behind_count, kept, previous = position, count, -1
        for _ in range(count):
            tag_start = position
            tag, position = read_uvarint(buffer, position)
            if tag <= previous:
                raise ProtocolError(f"tag {tag} follows tag {previous}")
            previous = tag
            inner = known.get(tag)
            if inner is None:
                size, position = read_uvarint(buffer, position)
                position += size
                if position > walk.end:
                    raise _bad_length(f"tag {tag}", size, walk.end - position + size)
                walk.cuts.append((tag_start, position, b""))
                kept -= 1
            else:
                position = _walk_known_tag(buffer, position, walk, tag, inner)
        if kept != count:
            walk.cuts.append((start, behind_count, uvarint(kept)))
        return position

    return walk_tags


def _walk_known_tag(buffer: bytes, position: int, walk: Walk, tag: int, inner: Walker) -> int:
    size_start = position
    size, position = read_uvarint(buffer, position)
    if size > walk.end - position:
        raise _bad_length(f"tag {tag}", size, walk.end - position)
    cuts_before = len(walk.cuts)
    end = inner(buffer, position, walk)
    if end != position + size:
        raise ProtocolError(f"tag {tag} announces {size} bytes and holds {end - position}")
    removed = sum(stop - start - len(new) for start, stop, new in walk.cuts[cuts_before:])
    if removed:
        walk.cuts.append((size_start, position, uvarint(size - removed)))
    return end
