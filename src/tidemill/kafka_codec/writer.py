"""Compiles the encoder of a structure.

An encoder takes a tree: a dict keyed by kio's field names, with dicts and lists inside. Its values
are plain, as in ``reader``: ints for times, durations (milliseconds) and error codes. It writes the
protocol's default for a field that the tree does not have, and ignores a key that this version does
not have. A key that no version has is a mistake of the caller. An array is anything with a length
that can be iterated over, or ``Encoded``.

To build kio's frozen dataclasses and write those takes about ten times as long. Knows structures;
no API, no header, no I/O.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from tidemill.kafka_codec.fields import Field, Structure
from tidemill.kafka_codec.primitives import FIXED_FORMATS, Buffer, uvarint
from tidemill.kafka_codec.source import Source

Tree: TypeAlias = Mapping[str, Any]
Writer: TypeAlias = Callable[[bytearray, Tree], None]
"""Appends the encoded tree.

Raises ``UnknownFieldError``, and ``struct.error``, ``TypeError``, ``AttributeError`` or
``UnicodeEncodeError`` where a value does not fit its field."""
StepWriter: TypeAlias = Callable[[bytearray, Tree], "Generator[None, None, None]"]
"""A ``Writer`` for messages with many elements: a generator that yields after every few."""
ELEMENTS_PER_STEP = 8
"""A power of two. The elements of an array can be made while they are encoded (``apis.Each``), so
that a step can take longer than one of a decoder."""

NamesInAllVersions: TypeAlias = Callable[[tuple[str, ...]], frozenset[str]]
"""Path of a structure -> the field names that any version of the message has there."""


class Encoded:
    """An array of structures that are encoded already.

    Args:
        count: the number of elements.
        parts: their bytes in order. Each part has one or more elements, and counts as one element
            where the encoder yields after every few.
    """

    __slots__ = ("_count", "_parts")

    def __init__(self, count: int, parts: Iterable[Buffer]) -> None:
        self._count = count
        self._parts = parts

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Buffer]:
        return iter(self._parts)


class UnknownFieldError(Exception):
    """A tree has a key that no version of the message has: a mistake in our code."""


def compile_writer(structure: Structure, names_in_all_versions: NamesInAllVersions) -> Writer:
    """Return an encoder for ``structure``."""
    writer: Writer = _compile(structure, names_in_all_versions, None)
    return writer


def compile_step_writer(
    structure: Structure, names_in_all_versions: NamesInAllVersions
) -> StepWriter:
    """Return an encoder for ``structure`` that yields after every few elements."""
    writer: StepWriter = _compile(structure, names_in_all_versions, ELEMENTS_PER_STEP)
    return writer


def compile_packer(structure: Structure, names: Sequence[str]) -> Callable[..., bytes]:
    """Return an encoder for a structure that has only numbers: about four times as fast as a tree.

    Args:
        names: the fields whose values are the arguments, in this order. Those that this version
            does not have are ignored. The other fields have their defaults.

    Raises:
        ValueError: the structure has other fields.
    """
    fields = structure.plain
    if structure.tagged or not all(field.is_number for field in fields):
        raise ValueError(f"{structure.name} has fields that are not numbers")
    layout = ">" + "".join(FIXED_FORMATS[field.kafka_type] for field in fields)
    pack = struct.Struct(layout + ("x" if structure.flexible else "")).pack  # no tagged fields
    out = Source(f"pack {structure.name}", ", ".join(names), {"pack": pack})
    values = (each.name if each.name in names else out.constant(each.default) for each in fields)
    out.line(f"return pack({', '.join(values)})")
    packer: Callable[..., bytes] = out.build()
    return packer


def _compile(
    structure: Structure, names_in_all_versions: NamesInAllVersions, elements_per_step: int | None
) -> Any:
    def refuse_unknown(path: tuple[str, ...], keys: set[str], names: set[str]) -> None:
        known = names_in_all_versions(path)
        if unknown := keys - known:
            where = ".".join((structure.name, *path))
            raise UnknownFieldError(
                f"{where} has no field {sorted(unknown)} in any version; it has {sorted(known)}"
            )
        names |= keys  # the next tree like it is not checked again

    names = {
        "uvarint": uvarint,
        "pack_i16": struct.Struct(">h").pack,
        "pack_i32": struct.Struct(">i").pack,
        "pack": struct.pack,
        "no_uuid": bytes(16),
        "is_default": is_default,
        "Encoded": Encoded,
        "refuse_null": refuse_null,
        "refuse_unknown": refuse_unknown,
    }
    out = Source(f"encode {structure.name}", "out, tree", names, elements_per_step)
    _write_structure(out, structure, "tree", "out", ())
    return out.build()


def refuse_null(name: str) -> None:
    """Raise the error for a null in a field that is not nullable."""
    raise TypeError(f"{name} must not be null")


def is_default(field: Field, value: Any) -> bool:
    """Whether a tagged field has its default, and so is left out of the message."""
    if value is None or (field.is_array and not value):
        return True
    if field.structure is None or field.is_array:
        return bool(value == field.default)
    return all(
        inner.name not in value or is_default(inner, value[inner.name])
        for inner in field.structure.fields
    )


# --- structures ----------------------------------------------------------------------------------


def _write_structure(
    out: Source, structure: Structure, tree: str, sink: str, path: tuple[str, ...]
) -> None:
    """Write code that appends the tree in variable ``tree`` to the bytearray ``sink``."""
    names = out.constant({field.name for field in structure.fields}, "names")
    with out.block(f"if not {names} >= {tree}.keys():"):
        out.line(f"refuse_unknown({path!r}, {tree}.keys() - {names}, {names})")
    get = out.variable("get")
    out.line(f"{get} = {tree}.get")
    for is_number, fields in structure.runs():
        if is_number:
            _write_numbers(out, fields, get, sink)
            continue
        for field in fields:
            _write_field(out, field, _get(out, get, field), sink, structure.flexible, path)
    if structure.flexible:
        _write_tags(out, structure.tagged, get, sink, path)


def _get(out: Source, get: str, field: Field) -> str:
    return f"{get}({field.name!r}, {out.constant(field.default, 'default')})"


def _write_numbers(out: Source, numbers: list[Field], get: str, sink: str) -> None:
    """Append a run of numbers that follow one another."""
    layout = struct.Struct(">" + "".join(FIXED_FORMATS[field.kafka_type] for field in numbers))
    values = ", ".join(_get(out, get, field) for field in numbers)
    out.line(f"{sink} += {out.constant(layout.pack, 'pack')}({values})")


def _write_field(
    out: Source, field: Field, value: str, sink: str, flexible: bool, path: tuple[str, ...]
) -> None:
    """Append the value of the expression ``value``."""
    if field.is_array:
        _write_array(out, field, value, sink, flexible, path)
        return
    if field.structure is None:
        _write_value(out, field, value, sink, flexible, nullable=field.nullable)
        return
    inner = out.variable("inner")
    out.line(f"{inner} = {value}")
    if not field.nullable:
        _write_structure(out, field.structure, inner, sink, (*path, field.name))
        return
    # A structure that may be null follows a byte, which is negative for null (KIP-893).
    with out.block(f"if {inner} is None:"):
        out.line(f"{sink}.append(255)")
    with out.block("else:"):
        out.line(f"{sink}.append(1)")
        _write_structure(out, field.structure, inner, sink, (*path, field.name))


# --- values --------------------------------------------------------------------------------------


def _write_value(
    out: Source, field: Field, value: str, sink: str, flexible: bool, *, nullable: bool
) -> None:
    """Append one number, UUID, string or run of bytes."""
    code = FIXED_FORMATS.get(field.kafka_type)
    if code is not None:
        pack = out.constant(struct.Struct(">" + code).pack, "pack")
        out.line(f"{sink} += {pack}({value})")
        return
    out.line(f"value = {value}")
    if field.kafka_type == "uuid":
        out.line(f"{sink} += no_uuid if value is None else value.bytes")
        return
    is_text = field.kafka_type == "string"
    pack = "pack_i16" if is_text else "pack_i32"
    with out.block("if value is None:"):
        _write_null(out, field.name, sink, flexible, pack, nullable)
    with out.block("else:"):
        if is_text:
            out.line("value = value.encode()")
        _write_length(out, "value", sink, flexible, pack)
        out.line(f"{sink} += value")


def _write_null(
    out: Source, name: str, sink: str, flexible: bool, pack: str, nullable: bool
) -> None:
    if not nullable:
        out.line(f"refuse_null({name!r})")
    else:
        out.line(f"{sink}.append(0)" if flexible else f"{sink} += {pack}(-1)")


def _write_length(out: Source, value: str, sink: str, flexible: bool, pack: str) -> None:
    if not flexible:
        out.line(f"{sink} += {pack}(len({value}))")
        return
    out.line(f"n = len({value}) + 1")
    with out.block("if n < 128:"):
        out.line(f"{sink}.append(n)")
    with out.block("else:"):
        out.line(f"{sink} += uvarint(n)")


def _write_array(
    out: Source, field: Field, value: str, sink: str, flexible: bool, path: tuple[str, ...]
) -> None:
    array = out.variable("array")
    out.line(f"{array} = {value}")
    with out.block(f"if {array} is None:"):
        _write_null(out, field.name, sink, flexible, "pack_i32", field.nullable)
    with out.block("else:"):
        _write_length(out, array, sink, flexible, "pack_i32")
        code = FIXED_FORMATS.get(field.kafka_type)
        if code is not None:
            out.line(f"{sink} += pack(f'>{{len({array})}}{code}', *{array})")
            return
        element = out.variable("element")
        if field.structure is None:
            with out.block(f"for {element} in {array}:"):
                out.step()
                _write_value(out, field, element, sink, flexible, nullable=False)
            return
        with out.block(f"if type({array}) is Encoded:"), out.block(f"for {element} in {array}:"):
            out.step()
            out.line(f"{sink} += {element}")
        with out.block("else:"), out.block(f"for {element} in {array}:"):
            out.step()
            _write_structure(out, field.structure, element, sink, (*path, field.name))


# --- tagged fields -------------------------------------------------------------------------------


def _write_tags(
    out: Source, tagged: list[tuple[int, Field]], get: str, sink: str, path: tuple[str, ...]
) -> None:
    """Append the optional fields that do not have their default."""
    if not tagged:
        out.line(f"{sink}.append(0)")
        return
    tags, count = out.variable("tags"), out.variable("count")
    out.line(f"{tags} = bytearray()")
    out.line(f"{count} = 0")
    for tag, field in tagged:
        value, content = out.variable("value"), out.variable("content")
        out.line(f"{value} = {_get(out, get, field)}")
        with out.block(f"if not is_default({out.constant(field, 'field')}, {value}):"):
            out.line(f"{content} = bytearray()")
            _write_field(out, field, value, content, flexible=True, path=path)
            out.line(f"{tags} += {uvarint(tag)!r} + uvarint(len({content})) + {content}")
            out.line(f"{count} += 1")
    out.line(f"{sink} += uvarint({count}) + {tags}")
