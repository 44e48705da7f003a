"""Responses from plain dict trees, for every version, compiled from kio's dataclasses.

Not through kio's own writer: building its frozen dataclasses (with timedeltas and datetimes made
of milliseconds, and milliseconds made of them again) costs some ten times what writing the bytes
does. ``tests/kafka/test_encode.py`` proves the bytes equal to kio's for every version. Sans-IO;
knows no API by name.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any
from uuid import UUID

from tidemill.kafka.guard import uvarint
from tidemill.kafka.schema import (
    FIXED_FORMATS,
    FieldSpec,
    cached,
    fields_of,
    kio_versions,
    response_type,
)

Tree = Mapping[str, Any]
Writer = Callable[[bytearray, Any], None]

_ZERO_UUID = UUID(int=0).bytes
_pack_i16 = struct.Struct(">h").pack
_pack_i32 = struct.Struct(">i").pack


class UnknownFieldError(Exception):
    """A response tree holds a key that no version of the response has: a handler's mistake."""


class EncodeError(Exception):
    """A value of a response tree does not fit its field: a handler's mistake."""


def encode_tree(api_key: int, version: int, tree: Tree) -> bytearray:
    """The body of a response.

    Raises:
        UnknownFieldError: a key of the tree (at any depth) exists in no version.
        EncodeError: a value is of the wrong type or out of range.
    """
    out = bytearray()
    try:
        _struct_writer(response_type(api_key, version), api_key, ())(out, tree)
    except (struct.error, TypeError, AttributeError, UnicodeEncodeError) as error:
        raise EncodeError(f"response of API {api_key} v{version}: {error}") from error
    return out


# --- names over all versions ---------------------------------------------------------------------


@cached
def _names_at(api_key: int, path: tuple[str, ...]) -> frozenset[str]:
    """Every field name that any version has in the structure at ``path``."""
    names: set[str] = set()
    for version in kio_versions(api_key):
        entity: type[Any] | None = response_type(api_key, version)
        for step in path:
            by_name = {field.name: field for field in fields_of(entity)} if entity else {}
            entity = by_name[step].struct if step in by_name else None
        if entity is not None:
            names.update(field.name for field in fields_of(entity))
    return frozenset(names)


def _refuse_unknown(api_key: int, path: tuple[str, ...], keys: set[str]) -> None:
    unknown = keys - _names_at(api_key, path)
    if unknown:
        where = ".".join(("response", *path))
        raise UnknownFieldError(
            f"API {api_key}: {where} has no field {sorted(unknown)} in any version; "
            f"it has {sorted(_names_at(api_key, path))}"
        )


# --- compiling -----------------------------------------------------------------------------------


@cached
def _struct_writer(entity: type[Any], api_key: int, path: tuple[str, ...]) -> Writer:
    flexible: bool = entity.__flexible__
    specs = fields_of(entity)
    names = frozenset(spec.name for spec in specs)
    writers = _field_writers([s for s in specs if s.tag is None], flexible, api_key, path)
    tags = [
        (spec, _writer(spec, flexible, api_key, path)) for spec in specs if spec.tag is not None
    ]
    tags.sort(key=lambda entry: entry[0].tag or 0)

    def write_struct(out: bytearray, tree: Tree) -> None:
        if not names >= tree.keys():
            _refuse_unknown(api_key, path, set(tree.keys() - names))
        for write in writers:
            write(out, tree)
        if tags:
            _write_tags(out, tree, tags)
        elif flexible:
            out.append(0)

    return write_struct


def _write_tags(out: bytearray, tree: Tree, tags: list[tuple[FieldSpec, Writer]]) -> None:
    present = bytearray()
    count = 0
    for spec, write in tags:
        value = tree.get(spec.name, spec.default)
        if _is_default(spec, value):
            continue
        content = bytearray()
        write(content, value)
        present += uvarint(spec.tag or 0) + uvarint(len(content)) + content
        count += 1
    out += uvarint(count)
    out += present


def _is_default(spec: FieldSpec, value: Any) -> bool:
    """Whether a tagged field is left out of the message."""
    if value is None or (spec.is_array and not value):
        return True
    if spec.struct is None or spec.is_array:
        return bool(value == spec.default)
    return all(
        inner.name not in value or _is_default(inner, value[inner.name])
        for inner in fields_of(spec.struct)
    )


def _field_writers(
    specs: list[FieldSpec], flexible: bool, api_key: int, path: tuple[str, ...]
) -> list[Callable[[bytearray, Tree], None]]:
    """One writer per field, or one per run of numbers."""
    writers: list[Callable[[bytearray, Tree], None]] = []
    run: list[FieldSpec] = []
    for spec in specs:
        if spec.kafka_type in FIXED_FORMATS and not spec.is_array:
            run.append(spec)
            continue
        if run:
            writers.append(_run_writer(run))
            run = []
        writers.append(_named(spec.name, spec.default, _writer(spec, flexible, api_key, path)))
    if run:
        writers.append(_run_writer(run))
    return writers


def _run_writer(run: list[FieldSpec]) -> Callable[[bytearray, Tree], None]:
    pack = struct.Struct(">" + "".join(FIXED_FORMATS[spec.kafka_type] for spec in run)).pack
    slots = [(spec.name, spec.default) for spec in run]
    if len(slots) == 1:
        ((name, default),) = slots

        def write_one(out: bytearray, tree: Tree) -> None:
            out += pack(tree.get(name, default))

        return write_one

    def write_run(out: bytearray, tree: Tree) -> None:
        get = tree.get
        out += pack(*[get(name, default) for name, default in slots])

    return write_run


def _named(name: str, default: Any, write: Writer) -> Callable[[bytearray, Tree], None]:
    def write_field(out: bytearray, tree: Tree) -> None:
        write(out, tree.get(name, default))

    return write_field


def _writer(spec: FieldSpec, flexible: bool, api_key: int, path: tuple[str, ...]) -> Writer:
    item = _item_writer(spec, flexible, api_key, path)
    if not spec.is_array:
        return item
    length = _compact_length if flexible else _i32_length
    nullable, name = spec.nullable, spec.name

    def write_array(out: bytearray, values: Any) -> None:
        if values is None:
            if not nullable:
                raise TypeError(f"{name} may not be null")
            out += length(-1)
            return
        out += length(len(values))
        for value in values:
            item(out, value)

    return write_array


def _item_writer(spec: FieldSpec, flexible: bool, api_key: int, path: tuple[str, ...]) -> Writer:
    if spec.struct is not None:
        inner = _struct_writer(spec.struct, api_key, (*path, spec.name))
        return inner if spec.is_array or not spec.nullable else _nullable_struct(inner)
    if spec.kafka_type == "uuid":
        return _write_uuid
    code = FIXED_FORMATS.get(spec.kafka_type)
    if code is not None:
        pack = struct.Struct(">" + code).pack

        def write_number(out: bytearray, value: Any) -> None:
            out += pack(value)

        return write_number
    nullable = spec.nullable and not spec.is_array
    return _blob_writer(spec.name, spec.kafka_type == "string", flexible, nullable)


def _nullable_struct(inner: Writer) -> Writer:
    def write_nullable(out: bytearray, value: Any) -> None:
        if value is None:
            out.append(0xFF)
        else:
            out.append(1)
            inner(out, value)

    return write_nullable


def _write_uuid(out: bytearray, value: UUID | None) -> None:
    out += _ZERO_UUID if value is None else value.bytes


def _blob_writer(name: str, is_text: bool, flexible: bool, nullable: bool) -> Writer:
    length = _compact_length if flexible else _i16_length if is_text else _i32_length

    def write_blob(out: bytearray, value: Any) -> None:
        if value is None:
            if not nullable:
                raise TypeError(f"{name} may not be null")
            out += length(-1)
            return
        content = value.encode() if is_text else value
        out += length(len(content))
        out += content

    return write_blob


def _compact_length(length: int) -> bytes:
    return uvarint(length + 1)


def _i16_length(length: int) -> bytes:
    return _pack_i16(length)


def _i32_length(length: int) -> bytes:
    return _pack_i32(length)
