"""Reads the fields of Kafka's messages from kio's dataclasses.

The rest of the codec sees ``Structure`` and ``Field`` and never kio itself. Knows the shape of
messages only: no bytes, no engine, no I/O.
"""

from __future__ import annotations

import datetime
import sys
import types
from dataclasses import MISSING, fields, is_dataclass
from dataclasses import Field as DataclassField
from typing import Any, Union, cast, get_args, get_origin
from uuid import UUID

from tidemill.kafka_codec.fields import Field, Structure, cached
from tidemill.kafka_codec.primitives import FIXED_FORMATS
from tidemill.system import with_spare_descriptors


def _import_kio_without_hypothesis() -> None:
    """Import the part of kio that registers itself with hypothesis wherever that is installed.

    Loading hypothesis costs the broker 0.2 s at start and 15 MB, and only kio's own tests need it.
    None in ``sys.modules`` makes an import fail, as the import system documents, and kio expects
    that. If hypothesis is loaded already, as in our tests, nothing is hidden.
    """
    hide = "hypothesis" not in sys.modules
    if hide:
        sys.modules["hypothesis"] = cast(Any, None)
    try:
        import kio.static.primitive  # noqa: F401
    finally:
        if hide:
            del sys.modules["hypothesis"]


_import_kio_without_hypothesis()

from kio.index import load_request_schema, load_response_schema  # noqa: E402
from kio.schema.errors import ErrorCode  # noqa: E402
from kio.schema.index import api_key_map, schema_name_map  # noqa: E402

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MILLISECOND = datetime.timedelta(milliseconds=1)


@cached
def structure_of(entity: type[Any]) -> Structure:
    """Read a kio dataclass."""
    return Structure(
        entity.__name__,
        bool(entity.__flexible__),
        tuple(_read_field(field) for field in fields(entity)),
    )


def _read_field(field: DataclassField[Any]) -> Field:
    nullable, is_array, inner = _unwrap(field.type)
    structure = structure_of(cast(type[Any], inner)) if is_dataclass(inner) else None
    kafka_type = "struct" if structure is not None else field.metadata["kafka_type"]
    return Field(
        name=field.name,
        kafka_type=kafka_type,
        structure=structure,
        is_array=is_array,
        nullable=nullable,
        tag=field.metadata.get("tag"),
        default=_default_on_wire(kafka_type, is_array, nullable, field.default),
    )


def _unwrap(annotation: Any) -> tuple[bool, bool, Any]:
    """Split an annotation such as ``tuple[X, ...] | None``: (nullable, is an array, X)."""
    nullable = False
    if get_origin(annotation) in (types.UnionType, Union):
        nullable = True
        (annotation,) = [arg for arg in get_args(annotation) if arg is not type(None)]
    if get_origin(annotation) is tuple:
        return nullable, True, get_args(annotation)[0]
    return nullable, False, annotation


def _default_on_wire(kafka_type: str, is_array: bool, nullable: bool, declared: Any) -> Any:
    given = declared is not MISSING
    default = declared if given else None
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
    """Convert kio's value of a fixed-size type into the number on the wire (times in ms)."""
    if value is None:
        return -1 if kafka_type == "datetime_i64" else 0
    if isinstance(value, datetime.timedelta):
        return value // _MILLISECOND
    if isinstance(value, datetime.datetime):
        return (value - _EPOCH) // _MILLISECOND
    return int(value) if kafka_type == "error_code" else value


def known_versions(api_key: int) -> range:
    """Return the versions of an API that kio describes: none if it does not know the key."""
    name = api_key_map.get(api_key)
    if name is None:
        return range(0)
    versions = schema_name_map[name].keys()
    return range(min(versions), max(versions) + 1)


def api_name(api_key: int) -> str:
    """Return the name of an API as Kafka writes it, such as ``ListTransactions``."""
    return api_key_map[api_key].title().replace("_", "")


@cached
def request_type(api_key: int, version: int) -> type[Any]:
    """Return kio's dataclass of a request. Raises kio's index errors if there is none."""
    return with_spare_descriptors(lambda: load_request_schema(api_key, version))


@cached
def response_type(api_key: int, version: int) -> type[Any]:
    """Return kio's dataclass of a response. Raises kio's index errors if there is none."""
    return with_spare_descriptors(lambda: load_response_schema(api_key, version))


def structure(kind: str, api_key: int, version: int) -> Structure:
    """Return the structure of a ``request`` or ``response``. Raises kio's index errors."""
    find = request_type if kind == "request" else response_type
    return structure_of(find(api_key, version))


def error_name(code: int) -> str:
    """Return the name of an error code in words, as ``producer fenced``."""
    try:
        return ErrorCode(code).name.replace("_", " ")
    except ValueError:
        return f"error {code}"
