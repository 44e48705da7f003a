"""The records of the internal topic ``__tidemill_queues``: JSON, one record for each declaration.

The topic is compacted. Knows the bytes only.

Keys: ``["exchange", name]``, ``["queue", name]``, ``["binding", identity]``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from tidemill.log.errors import FormatVersionError, InvalidRecordError
from tidemill.state.routing.arguments import parse_policy
from tidemill.state.routing.errors import InvalidQueueArgumentError
from tidemill.state.routing.types import (
    Binding,
    Destination,
    ExchangeSpec,
    QueueDefinition,
    from_json,
    to_json,
)

_VERSION = 0
EXCHANGE, QUEUE, BINDING = "exchange", "queue", "binding"


def encode_key(kind: str, name: str) -> bytes:
    """Return the key of a declaration. The name of a binding is its identity."""
    return json.dumps([kind, name]).encode()


def decode_key(key: bytes) -> tuple[str, str]:
    """Return kind and name."""
    try:
        kind, name = json.loads(key)
    except ValueError as error:
        raise InvalidRecordError(f"invalid key of a declaration: {key[:80]!r}") from error
    if kind not in (EXCHANGE, QUEUE, BINDING) or not isinstance(name, str):
        raise InvalidRecordError(f"invalid key of a declaration: {key[:80]!r}")
    return kind, name


def encode_exchange(exchange: ExchangeSpec) -> bytes:
    """Return the value of an exchange."""
    return _dump(
        type=exchange.type,
        durable=exchange.durable,
        auto_delete=exchange.auto_delete,
        internal=exchange.internal,
        arguments=to_json(exchange.arguments),
    )


def encode_queue(queue: QueueDefinition) -> bytes:
    """Return the value of a queue."""
    return _dump(
        topic=queue.topic,
        owns_topic=queue.owns_topic,
        durable=queue.durable,
        exclusive=queue.exclusive,
        auto_delete=queue.auto_delete,
        arguments=to_json(queue.arguments),
    )


def encode_binding(binding: Binding) -> bytes:
    """Return the value of a binding."""
    return _dump(
        source=binding.source,
        kind=binding.destination.kind,
        destination=binding.destination.name,
        routing_key=binding.routing_key,
        arguments=to_json(binding.arguments),
    )


def decode_exchange(name: str, value: bytes) -> ExchangeSpec:
    """Return an exchange."""
    fields = _load(value)
    try:
        return ExchangeSpec(
            str(fields["type"]),
            fields["durable"] is True,
            fields["auto_delete"] is True,
            fields["internal"] is True,
            _arguments(fields),
        )
    except KeyError as error:
        raise InvalidRecordError(f"exchange {name!r} lacks the field {error}") from error


def decode_queue(name: str, value: bytes) -> QueueDefinition:
    """Return a queue."""
    fields = _load(value)
    try:
        arguments = _arguments(fields)
        return QueueDefinition(
            name,
            str(fields["topic"]),
            fields["owns_topic"] is True,
            fields["durable"] is True,
            fields["exclusive"] is True,
            fields["auto_delete"] is True,
            arguments,
            parse_policy(name, arguments),
        )
    except (KeyError, InvalidQueueArgumentError) as error:
        raise InvalidRecordError(f"queue {name!r} can't be read: {error}") from error


def decode_binding(value: bytes) -> Binding:
    """Return a binding."""
    fields = _load(value)
    try:
        return Binding(
            str(fields["source"]),
            Destination(str(fields["kind"]), str(fields["destination"])),
            str(fields["routing_key"]),
            _arguments(fields),
        )
    except KeyError as error:
        raise InvalidRecordError(f"a binding lacks the field {error}") from error


def _dump(**fields: object) -> bytes:
    return json.dumps({"version": _VERSION, **fields}).encode()


def _load(value: bytes) -> Mapping[str, object]:
    try:
        fields = json.loads(value)
    except ValueError as error:
        raise InvalidRecordError(f"a declaration is not JSON: {value[:80]!r}") from error
    if not isinstance(fields, dict):
        raise InvalidRecordError(f"a declaration is not an object: {value[:80]!r}")
    if fields.get("version") != _VERSION:
        raise FormatVersionError(
            f"a declaration has version {fields.get('version')}",
            hint="Use a newer version of tidemill.",
        )
    return fields


def _arguments(fields: Mapping[str, object]) -> Mapping[str, object]:
    arguments = from_json(fields["arguments"])
    if not isinstance(arguments, dict):
        raise InvalidRecordError(f"invalid arguments of a declaration: {arguments!r}")
    return arguments
