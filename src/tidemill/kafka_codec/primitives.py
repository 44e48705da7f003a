"""Types, varints and errors that all parts of the codec share. Knows no message."""

from __future__ import annotations

from typing import TypeAlias
from uuid import UUID

from tidemill.errors import ProtocolError

Buffer: TypeAlias = bytes | bytearray | memoryview

FIXED_FORMATS = {
    "int8": "b",
    "int16": "h",
    "int32": "i",
    "int64": "q",
    "uint8": "B",
    "uint16": "H",
    "uint32": "I",
    "uint64": "Q",
    "float64": "d",
    "bool": "?",
    "error_code": "h",
    "timedelta_i32": "i",
    "timedelta_i64": "q",
    "datetime_i64": "q",
}
"""kio's names of fixed-size types and their ``struct`` formats. ``uuid`` (16 bytes) has none."""

MAX_ELEMENTS = 1_000_000
"""Array elements (strings, numbers and structures) and tagged fields in one message."""
MAX_TAGS = 64
"""Tagged fields in one section. Apache Kafka's messages have six at most."""
MAX_STRING_BYTES = 32_767
"""Longest string."""


def read_uvarint(data: Buffer, position: int) -> tuple[int, int]:
    """Read an unsigned varint.

    Returns:
        The value and the position behind it.

    Raises:
        ProtocolError: it is longer than five bytes.
        IndexError: the data ends in it.
    """
    byte = data[position]
    if byte < 0x80:
        return byte, position + 1
    value = byte & 0x7F
    for index in range(1, 5):
        byte = data[position + index]
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, position + index + 1
    raise ProtocolError("a varint is longer than five bytes")


def uvarint(value: int) -> bytes:
    """Encode ``value`` as an unsigned varint."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def compact_string(text: str) -> bytes:
    """Encode a string of a flexible version (KIP-482)."""
    content = text.encode()
    return uvarint(len(content) + 1) + content


def legacy_string(text: str | None) -> bytes:
    """Encode a string, or null, of a version that is not flexible."""
    if text is None:
        return b"\xff\xff"
    content = text.encode()
    return len(content).to_bytes(2, "big") + content


def topic_key(by_id: bool, name: str, topic_id: UUID | None) -> bytes:
    """Encode a topic's id, or its name, as flexible versions have it."""
    if not by_id:
        return compact_string(name)
    return bytes(16) if topic_id is None else topic_id.bytes


def array_length(compact: bool, count: int) -> bytes:
    """Encode the length of an array, of a flexible version or not."""
    return uvarint(count + 1) if compact else count.to_bytes(4, "big", signed=True)


def skip_tags(data: Buffer, position: int, end: int, elements: int) -> tuple[int, int]:
    """Skip a section of tagged fields, none of which is known (KIP-482).

    Args:
        data: the message.
        position: where the section begins.
        end: where the message ends.
        elements: how many elements the message may still have.

    Returns:
        The position behind the section, and how many elements are left.

    Raises:
        ProtocolError: a length is invalid, or the tags are not in ascending order.
        IndexError: the data ends in the section.
    """
    count, position = read_uvarint(data, position)
    elements = take_tags(elements, count, end - position)
    previous = -1
    for _ in range(count):
        tag, position = read_uvarint(data, position)
        if tag <= previous:
            raise unordered_tag(tag, previous)
        previous = tag
        size, position = read_uvarint(data, position)
        if size > end - position:
            raise invalid_length(f"tag {tag}", size, end - position)
        position += size
    return position, elements


def take_elements(elements: int, count: int, name: str, left: int, width: int = 1) -> int:
    """Check the announced length of an array before anything is allocated for it.

    Args:
        elements: how many elements the message may still have.
        count: how many the array announces.
        left: bytes that follow in the message.
        width: bytes that an element takes at least.

    Returns:
        How many elements the message may have after this array.

    Raises:
        ProtocolError: ``count`` is negative, or more than the bytes or the limit allow.
    """
    if count < 0 or count * width > left:
        raise invalid_length(name, count, left)
    if count > elements:
        raise ProtocolError(
            f"{count} elements of {name}, but only {elements} more are allowed in this message"
        )
    return elements - count


def take_tags(elements: int, count: int, left: int) -> int:
    """Check the announced number of tagged fields; the rest is as in ``take_elements``."""
    elements = take_elements(elements, count, "tagged fields", left)
    if count > MAX_TAGS:
        raise ProtocolError(f"{count} tagged fields in one place: at most {MAX_TAGS} are allowed")
    return elements


def invalid_length(name: str, length: int, left: int) -> ProtocolError:
    """Return the error for a length that is negative, or more than the ``left`` bytes."""
    if length < 0:
        return ProtocolError(f"length {length} of {name}: it must not be null or negative")
    if length <= left:
        return ProtocolError(
            f"length {length} of {name}: at most {MAX_STRING_BYTES} bytes are allowed"
        )
    return ProtocolError(f"length {length} of {name}, but {left} bytes are left")


def unordered_tag(tag: int, previous: int) -> ProtocolError:
    """Return the error for a tag that is repeated or not in ascending order."""
    return ProtocolError(f"tag {tag} follows tag {previous}")


def invalid_tag_size(tag: int, size: int, taken: int) -> ProtocolError:
    """Return the error for a tagged field that is shorter or longer than it announces."""
    return ProtocolError(f"tag {tag} announces {size} bytes and holds {taken}")


def invalid_duration(name: str, milliseconds: int) -> ProtocolError:
    """Return the error for a duration that no ``timedelta`` can hold."""
    return ProtocolError(f"duration of {milliseconds} ms in {name} is out of range")
