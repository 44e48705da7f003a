"""Compiles the decoder of a structure.

A decoder checks every length against the bytes that are left before it allocates anything. It is
one function: nested structures are inlined, and numbers in a row are unpacked together. It returns
a ``Message`` with kio's field names and plain values:

- times and durations are ints in milliseconds, error codes are ints;
- arrays are tuples, and null is None;
- the UUID of zeros is None, because Kafka uses it for "none";
- a tagged field that is absent has its default.

Knows structures; no API, no header, no I/O.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator
from datetime import timedelta
from typing import Any, TypeAlias
from uuid import UUID

from tidemill.kafka_codec import primitives
from tidemill.kafka_codec.fields import Field, Structure, cached
from tidemill.kafka_codec.primitives import FIXED_FORMATS, MAX_STRING_BYTES
from tidemill.kafka_codec.source import Source

Reader: TypeAlias = Callable[[bytes, int, int, int], "tuple[Message, int]"]
"""(data, position, end of the data, elements allowed) -> message and the position behind it.

Raises ``ProtocolError``, ``UnicodeDecodeError``, and ``struct.error`` or ``IndexError`` where the
data ends too early."""
StepReader: TypeAlias = Callable[
    [bytes, int, int, int], "Generator[None, None, tuple[Message, int]]"
]
"""A ``Reader`` for messages with many elements: a generator that yields after every few."""

ELEMENTS_PER_STEP = 32
"""A power of two."""

_MS = timedelta(milliseconds=1)
_LEAST_DURATION, _MOST_DURATION = timedelta.min // _MS, timedelta.max // _MS
_NO_UUID = bytes(16)


class Message:
    """A decoded structure, with its fields as attributes.

    ``message_class`` makes a subclass for each structure.
    """

    __slots__: tuple[str, ...] = ()

    def as_tree(self) -> dict[str, Any]:
        """Return the fields as dicts and lists, in the form that ``messages`` encodes."""
        return {name: _as_tree(getattr(self, name)) for name in self.__slots__}

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__slots__)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__slots__)
        return f"{type(self).__name__}({shown})"


def _as_tree(value: Any) -> Any:
    if isinstance(value, Message):
        return value.as_tree()
    return [_as_tree(item) for item in value] if isinstance(value, tuple) else value


@cached
def message_class(structure: Structure) -> type[Message]:
    """Return the class of a structure's messages."""
    names = tuple(field.name for field in structure.fields)
    return type(structure.name, (Message,), {"__slots__": names})


_NAMES: dict[str, Any] = {
    "UUID": UUID,
    "new": object.__new__,
    "i16": struct.Struct(">h").unpack_from,
    "i32": struct.Struct(">i").unpack_from,
    "unpack_from": struct.unpack_from,
    "no_uuid": _NO_UUID,
    "struct_error": struct.error,
    **{
        function.__name__: function
        for function in (
            primitives.read_uvarint,
            primitives.skip_tags,
            primitives.take_elements,
            primitives.take_tags,
            primitives.invalid_length,
            primitives.unordered_tag,
            primitives.invalid_tag_size,
            primitives.invalid_duration,
        )
    },
}


def compile_reader(structure: Structure) -> Reader:
    """Return a decoder for ``structure``."""
    reader: Reader = _compile(structure, None)
    return reader


def compile_step_reader(structure: Structure) -> StepReader:
    """Return a decoder for ``structure`` that yields after every few elements."""
    reader: StepReader = _compile(structure, ELEMENTS_PER_STEP)
    return reader


def _compile(structure: Structure, elements_per_step: int | None) -> Any:
    out = Source(f"decode {structure.name}", "data, at, end, left", _NAMES, elements_per_step)
    message = _read_structure(out, structure)
    out.line(f"return {message}, at")
    return out.build()


# --- structures ----------------------------------------------------------------------------------


def _read_structure(out: Source, structure: Structure) -> str:
    """Write code that reads a structure; return the variable that holds its message."""
    message = out.variable("message")
    out.line(f"{message} = new({out.constant(message_class(structure), 'class')})")
    for is_number, fields in structure.runs():
        if is_number:
            _read_numbers(out, message, fields)
            continue
        for field in fields:
            _read_field(out, field, f"{message}.{field.name}", structure.flexible)
    if structure.flexible:
        _read_tags(out, message, structure.tagged)
    return message


def _read_numbers(out: Source, message: str, numbers: list[Field]) -> None:
    """Read a run of numbers that follow one another."""
    layout = struct.Struct(">" + "".join(FIXED_FORMATS[field.kafka_type] for field in numbers))
    targets = "".join(f"{message}.{field.name}, " for field in numbers)
    out.line(f"{targets}= {out.constant(layout.unpack_from, 'unpack')}(data, at)")
    out.line(f"at += {layout.size}")
    for field in numbers:
        if field.kafka_type == "timedelta_i64":
            value = f"{message}.{field.name}"
            with out.block(f"if not {_LEAST_DURATION} <= {value} <= {_MOST_DURATION}:"):
                out.line(f"raise invalid_duration({field.name!r}, {value})")


def _read_field(out: Source, field: Field, target: str, flexible: bool) -> None:
    if field.is_array:
        _read_array(out, field, target, flexible)
    elif field.structure is None:
        _read_value(out, field, target, flexible, nullable=field.nullable)
    elif field.nullable:
        # A structure that may be null follows a byte, which is negative for null (KIP-893).
        out.line("at += 1")
        with out.block("if data[at - 1] & 0x80:"):
            out.line(f"{target} = None")
        with out.block("else:"):
            out.line(f"{target} = {_read_structure(out, field.structure)}")
    else:
        out.line(f"{target} = {_read_structure(out, field.structure)}")


def _default_message(structure: Structure) -> Message:
    """Return the message of a tagged structure that is absent. All decoded messages share it."""
    message = object.__new__(message_class(structure))
    for field in structure.fields:
        setattr(message, field.name, _default_value(field))
    return message


def _default_value(field: Field) -> Any:
    if field.structure is not None and not field.is_array and not field.nullable:
        return _default_message(field.structure)
    if field.kafka_type == "uuid" and not field.is_array:
        return None if field.default.int == 0 else field.default
    return field.default


# --- values --------------------------------------------------------------------------------------


def _read_value(out: Source, field: Field, target: str, flexible: bool, *, nullable: bool) -> None:
    """Read one number, UUID, string or run of bytes."""
    code = FIXED_FORMATS.get(field.kafka_type)
    if code is not None:
        layout = struct.Struct(">" + code)
        out.line(f"{target}, = {out.constant(layout.unpack_from, 'unpack')}(data, at)")
        out.line(f"at += {layout.size}")
    elif field.kafka_type == "uuid":
        out.line("raw = data[at:at + 16]")
        out.line("at += 16")
        with out.block("if at > end:"):
            out.line("raise struct_error")
        out.line(f"{target} = None if raw == no_uuid else UUID(bytes=raw)")
    else:
        _read_bytes(out, field, target, flexible, nullable)


def _read_bytes(out: Source, field: Field, target: str, flexible: bool, nullable: bool) -> None:
    is_text = field.kafka_type == "string"
    _read_length(out, flexible, "i16" if is_text else "i32", 2 if is_text else 4)
    # The length of a compact string has no limit by itself; Apache Kafka has the same one.
    fits = f"0 <= n <= {MAX_STRING_BYTES} and n <= end - at" if is_text else "0 <= n <= end - at"
    with out.block(f"if {fits}:"):
        out.line(f"{target} = data[at:at + n]{'.decode()' if is_text else ''}")
        out.line("at += n")
    if nullable:
        with out.block("elif n == -1:"):
            out.line(f"{target} = None")
    with out.block("else:"):
        out.line(f"raise invalid_length({field.name!r}, n, end - at)")


def _read_length(out: Source, flexible: bool, unpack: str, size: int) -> None:
    """Read a length into ``n``; -1 is null."""
    if not flexible:
        out.line(f"n, = {unpack}(data, at)")
        out.line(f"at += {size}")
        return
    out.line("n = data[at] - 1")
    with out.block("if n < 127:"):
        out.line("at += 1")
    with out.block("else:"):
        out.line("n, at = read_uvarint(data, at)")
        out.line("n -= 1")


def _read_array(out: Source, field: Field, target: str, flexible: bool) -> None:
    _read_length(out, flexible, "i32", 4)
    if not field.nullable:
        _read_elements(out, field, target, flexible)
        return
    with out.block("if n == -1:"):
        out.line(f"{target} = None")
    with out.block("else:"):
        _read_elements(out, field, target, flexible)


def _read_elements(out: Source, field: Field, target: str, flexible: bool) -> None:
    structure = field.structure
    width = field.size or 1 if structure is None else structure.least_size
    with out.block(f"if not 0 <= n <= left or n * {width} > end - at:"):
        out.line(f"take_elements(left, n, {field.name!r}, end - at, {width})  # raises")
    out.line("left -= n")
    code = FIXED_FORMATS.get(field.kafka_type)
    if code is not None:
        out.line(f"{target} = unpack_from(f'>{{n}}{code}', data, at)")
        out.line(f"at += n * {width}")
        return
    elements = out.variable("elements")
    out.line(f"{elements} = []")
    with out.block("for _ in range(n):"):
        out.step()
        if structure is not None:
            element = _read_structure(out, structure)
        else:
            element = out.variable("element")
            _read_value(out, field, element, flexible, nullable=False)
        out.line(f"{elements}.append({element})")
    out.line(f"{target} = tuple({elements})")


# --- tagged fields -------------------------------------------------------------------------------


def _read_tags(out: Source, message: str, tagged: list[tuple[int, Field]]) -> None:
    """Read the optional fields; skip those that this version of the schema does not have."""
    for _, field in tagged:
        default = out.constant(_default_value(field), "default")
        out.line(f"{message}.{field.name} = {default}")
    with out.block("if not data[at]:"):
        out.line("at += 1")
    with out.block("else:"):
        if tagged:
            _read_known_tags(out, message, tagged)
        else:
            out.line("at, left = skip_tags(data, at, end, left)")


def _read_known_tags(out: Source, message: str, tagged: list[tuple[int, Field]]) -> None:
    tag, size, stop = out.variable("tag"), out.variable("size"), out.variable("stop")
    previous = out.variable("previous")
    out.line("n, at = read_uvarint(data, at)")
    out.line("left = take_tags(left, n, end - at)")
    out.line(f"{previous} = -1")
    with out.block("for _ in range(n):"):
        out.line(f"{tag}, at = read_uvarint(data, at)")
        with out.block(f"if {tag} <= {previous}:"):
            out.line(f"raise unordered_tag({tag}, {previous})")
        out.line(f"{previous} = {tag}")
        out.line(f"{size}, at = read_uvarint(data, at)")
        out.line(f"{stop} = at + {size}")
        with out.block(f"if {stop} > end:"):
            out.line(f"raise invalid_length(f'tag {{{tag}}}', {size}, end - at)")
        for index, (number, field) in enumerate(tagged):
            with out.block(f"{'elif' if index else 'if'} {tag} == {number}:"):
                _read_field(out, field, f"{message}.{field.name}", flexible=True)
        with out.block("else:"):
            out.line(f"at = {stop}")
        with out.block(f"if at != {stop}:"):
            out.line(f"raise invalid_tag_size({tag}, {size}, {size} + at - {stop})")
