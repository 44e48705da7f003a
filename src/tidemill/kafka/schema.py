"""The Kafka messages' shapes, read once from kio's dataclasses.

``guard`` (requests) and ``encode`` (responses) compile their walkers from what stands here, so
that no message is described twice. Knows shapes only: no bytes, no broker, no I/O.
"""

from __future__ import annotations

import datetime
import types
from collections.abc import Callable
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from functools import cache
from typing import Any, TypeVar, Union, cast, get_args, get_origin
from uuid import UUID

from kio.index import load_request_schema, load_response_schema
from kio.schema.index import api_key_map, schema_name_map

PRODUCE = 0
API_VERSIONS = 18
"""Key of ApiVersions, whose response header is always v0 (KIP-511)."""

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
"""kio's names of fixed-size types -> ``struct`` formats; ``uuid`` (16 bytes) stands apart."""

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MILLISECOND = datetime.timedelta(milliseconds=1)

F = TypeVar("F", bound=Callable[..., Any])


def cached(function: F) -> F:
    """``functools.cache`` that keeps the signature (and takes classes as arguments)."""
    return cast(F, cache(function))


@dataclass(frozen=True, slots=True)
class FieldSpec:
    """One field of a message, in wire order within its kind (tagged or not)."""

    name: str
    kafka_type: str
    """kio's ``kafka_type``, or ``struct``."""
    struct: type[Any] | None
    is_array: bool
    nullable: bool
    tag: int | None
    default: Any
    """What the wire holds where nothing is given: ints for times, None, "", b"", (), or {}."""


@cached
def fields_of(entity: type[Any]) -> tuple[FieldSpec, ...]:
    """The fields of a kio dataclass."""
    return tuple(_spec(entity, field) for field in fields(entity))


def _spec(entity: type[Any], field: Field[Any]) -> FieldSpec:
    nullable, is_array, inner = _unwrap(field.type)
    struct: type[Any] | None = inner if is_dataclass(inner) else None  # type: ignore[assignment]
    kafka_type = "struct" if struct is not None else field.metadata["kafka_type"]
    tag = field.metadata.get("tag")
    default = field.default if field.default is not MISSING else None
    return FieldSpec(
        name=field.name,
        kafka_type=kafka_type,
        struct=struct,
        is_array=is_array,
        nullable=nullable,
        tag=tag,
        default=_wire_default(
            kafka_type, is_array, nullable, default, field.default is not MISSING
        ),
    )


def _unwrap(annotation: Any) -> tuple[bool, bool, Any]:
    """(nullable, is array, innermost type) of an annotation such as ``tuple[X, ...] | None``."""
    nullable = False
    if get_origin(annotation) in (types.UnionType, Union):
        nullable = True
        (annotation,) = [arg for arg in get_args(annotation) if arg is not type(None)]
    if get_origin(annotation) is tuple:
        return nullable, True, get_args(annotation)[0]
    return nullable, False, annotation


def _wire_default(
    kafka_type: str, is_array: bool, nullable: bool, default: Any, given: bool
) -> Any:
    if is_array:
        # A nullable array without a declared default is written empty: a null where a client
        # expects a list has crashed clients before.
        return default if given else ()
    if kafka_type == "struct":
        return None if nullable else {}
    if kafka_type == "uuid":
        return default if isinstance(default, UUID) else UUID(int=0)
    if kafka_type in FIXED_FORMATS:
        return to_wire(kafka_type, default)
    if default is not None or nullable:
        return default
    return b"" if kafka_type in ("bytes", "records") else ""


def to_wire(kafka_type: str, value: Any) -> Any:
    """A kio value of a fixed-size type as the number that the wire holds (times in ms)."""
    if value is None:
        return -1 if kafka_type == "datetime_i64" else 0
    if isinstance(value, datetime.timedelta):
        return value // _MILLISECOND
    if isinstance(value, datetime.datetime):
        return (value - _EPOCH) // _MILLISECOND
    return value


def kio_versions(api_key: int) -> range:
    """The versions that kio knows of an API; empty where the key is unknown."""
    name = api_key_map.get(api_key)
    if name is None:
        return range(0)
    versions = schema_name_map[name].keys()
    return range(min(versions), max(versions) + 1)


@cached
def request_type(api_key: int, version: int) -> type[Any]:
    """kio's request dataclass. Raises kio's index errors where there is none."""
    return load_request_schema(api_key, version)


@cached
def response_type(api_key: int, version: int) -> type[Any]:
    """kio's response dataclass. Raises kio's index errors where there is none."""
    return load_response_schema(api_key, version)


@cached
def is_flexible(api_key: int, version: int) -> bool:
    """Whether this version uses compact lengths and tagged fields (KIP-482)."""
    if api_key == PRODUCE and version < 3:
        return False  # kio no longer has them
    return bool(request_type(api_key, version).__flexible__)
