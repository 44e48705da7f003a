"""Bodies of requests and responses: bytes to ``Message`` objects, trees to bytes.

Decoders and encoders are compiled on first use, per message and version. Which versions a server
offers is decided in ``apis``. Sans-IO; knows no API by name.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator
from typing import Any

from tidemill.errors import ProtocolError
from tidemill.kafka_codec import primitives
from tidemill.kafka_codec.declared import Kind, find
from tidemill.kafka_codec.fields import Structure, cached
from tidemill.kafka_codec.primitives import Buffer
from tidemill.kafka_codec.reader import (
    Reader,
    StepReader,
    compile_reader,
    compile_step_reader,
)
from tidemill.kafka_codec.writer import (
    Encoded,
    NamesInAllVersions,
    StepWriter,
    Tree,
    UnknownFieldError,
    Writer,
    compile_packer,
    compile_step_writer,
    compile_writer,
)

__all__ = [
    "EncodeError",
    "Encoded",
    "Tree",
    "UnknownFieldError",
    "decode_request",
    "decode_request_in_steps",
    "decode_response",
    "element_packer",
    "encode_element",
    "encode_request",
    "encode_response",
    "encode_response_in_steps",
    "has_elements",
]

_DAMAGE = (IndexError, struct.error, UnicodeDecodeError)
_MISFITS = (struct.error, TypeError, AttributeError, UnicodeEncodeError)


class EncodeError(Exception):
    """A value of a tree does not fit its field: a mistake in our code."""


def decode_request(api_key: int, version: int, frame: Buffer, position: int) -> Any:
    """Decode the body of a request, from ``position`` on.

    What follows the body is ignored, as Apache Kafka does: librdkafka (2.16) leaves three bytes
    behind a Metadata request for all topics.

    Returns:
        A ``Message`` with kio's field names; ``reader`` describes its values.

    Raises:
        ProtocolError: the frame does not hold such a request.
    """
    return _decode("request", api_key, version, frame, position)


def decode_request_in_steps(
    api_key: int, version: int, frame: Buffer, position: int, max_elements: int
) -> Generator[None, None, Any]:
    """Decode the body of a request in steps. Otherwise like ``decode_request``.

    Args:
        max_elements: array elements and tagged fields that the request can have.
    """
    data = bytes(frame)
    read = _step_reader("request", api_key, version)
    try:
        message, _ = yield from read(data, position, len(data), max_elements)
    except _DAMAGE as error:
        raise _damaged("request", error) from None
    return message


def decode_response(api_key: int, version: int, frame: Buffer, position: int) -> Any:
    """Decode the body of a response, from ``position`` on. Otherwise like ``decode_request``."""
    return _decode("response", api_key, version, frame, position)


def encode_request(api_key: int, version: int, tree: Tree) -> bytearray:
    """Encode the body of a request from a tree.

    A tree is a dict keyed by kio's field names, with dicts and lists inside; ``writer`` describes
    its values. Keys that this version lacks are left out; missing ones get the protocol's default.

    Raises:
        UnknownFieldError: a key exists in no version of this message.
        EncodeError: a value does not fit its field.
    """
    return _encode("request", api_key, version, tree)


def encode_response(api_key: int, version: int, tree: Tree) -> bytearray:
    """Encode the body of a response from a tree. Otherwise like ``encode_request``."""
    return _encode("response", api_key, version, tree)


def encode_response_in_steps(
    api_key: int, version: int, tree: Tree, out: bytearray
) -> Generator[None, None, None]:
    """Append the body of a response to ``out`` in steps. Otherwise like ``encode_response``."""
    write = _step_writer("response", api_key, version)
    try:
        yield from write(out, tree)
    except _MISFITS as error:
        raise _misfit("response", api_key, version, error) from error


def encode_element(api_key: int, version: int, path: tuple[str, ...], tree: Tree) -> bytes:
    """Encode one element of an array of a response, for ``Encoded``.

    Args:
        path: the names of the arrays from the response to this one.

    Raises:
        UnknownFieldError, EncodeError: as ``encode_response``.
    """
    out = bytearray()
    try:
        _element_writer(api_key, version, path)(out, tree)
    except _MISFITS as error:
        raise _misfit("response", api_key, version, error) from error
    return bytes(out)


@cached
def element_packer(
    api_key: int, version: int, path: tuple[str, ...], names: tuple[str, ...]
) -> Callable[..., bytes]:
    """Return what encodes the elements of an array of a response that have only numbers.

    Args:
        path: the names of the arrays from the response to this one.
        names: the fields that are its arguments; see ``writer.compile_packer``.
    """
    return compile_packer(_element(api_key, version, path), names)


@cached
def has_elements(api_key: int, version: int) -> bool:
    """Whether a response can have many elements: it has an array of structures or strings."""
    return any(
        field.is_array and field.size is None
        for field in _structure("response", api_key, version).fields
    )


def _decode(kind: Kind, api_key: int, version: int, frame: Buffer, position: int) -> Any:
    data = bytes(frame)
    read = _reader(kind, api_key, version)
    try:
        message, _ = read(data, position, len(data), primitives.MAX_ELEMENTS)
    except _DAMAGE as error:
        raise _damaged(kind, error) from None
    return message


def _damaged(kind: Kind, error: Exception) -> ProtocolError:
    if isinstance(error, UnicodeDecodeError):
        return ProtocolError(f"a string of the {kind} is not UTF-8: {error}")
    return ProtocolError(f"the {kind} ends in the middle of a field")


def _encode(kind: Kind, api_key: int, version: int, tree: Tree) -> bytearray:
    out = bytearray()
    write = _writer(kind, api_key, version)
    try:
        write(out, tree)
    except _MISFITS as error:
        raise _misfit(kind, api_key, version, error) from error
    return out


def _misfit(kind: Kind, api_key: int, version: int, error: Exception) -> EncodeError:
    return EncodeError(f"{kind} of API {api_key} v{version}: {error}")


@cached
def _reader(kind: Kind, api_key: int, version: int) -> Reader:
    # A client decodes responses. It must not import kio for those that it always needs.
    structure = find if kind == "response" else _structure
    return compile_reader(structure(kind, api_key, version))


@cached
def _step_reader(kind: Kind, api_key: int, version: int) -> StepReader:
    return compile_step_reader(_structure(kind, api_key, version))


@cached
def _writer(kind: Kind, api_key: int, version: int) -> Writer:
    structure = find if kind == "request" else _structure
    return compile_writer(structure(kind, api_key, version), _known_names(kind, api_key))


@cached
def _step_writer(kind: Kind, api_key: int, version: int) -> StepWriter:
    return compile_step_writer(_structure(kind, api_key, version), _known_names(kind, api_key))


@cached
def _element_writer(api_key: int, version: int, path: tuple[str, ...]) -> Writer:
    structure = _element(api_key, version, path)
    return compile_writer(structure, _known_names("response", api_key, path))


def _element(api_key: int, version: int, path: tuple[str, ...]) -> Structure:
    """Return the structure that an array of a response has as elements."""
    structure = _structure("response", api_key, version)
    for name in path:
        field = structure.field(name)
        if field is None or field.structure is None:
            raise EncodeError(f"response of API {api_key} v{version} has no structures {path}")
        structure = field.structure
    return structure


def _known_names(kind: Kind, api_key: int, above: tuple[str, ...] = ()) -> NamesInAllVersions:
    return lambda path: _names_in_all_versions(kind, api_key, (*above, *path))


def _structure(kind: Kind, api_key: int, version: int) -> Structure:
    from tidemill.kafka_codec import schema

    return schema.structure(kind, api_key, version)


@cached
def _names_in_all_versions(kind: Kind, api_key: int, path: tuple[str, ...]) -> frozenset[str]:
    from tidemill.kafka_codec.schema import known_versions

    names: set[str] = set()
    for version in known_versions(api_key):
        structure: Structure | None = _structure(kind, api_key, version)
        for step in path:
            field = None if structure is None else structure.field(step)
            structure = None if field is None else field.structure
        if structure is not None:
            names.update(field.name for field in structure.fields)
    return frozenset(names)
