"""Prints queues, exchanges and messages."""

from __future__ import annotations

import base64
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from tidemill.amqp_client.connection import Message
from tidemill.cli import output

COLUMNS: output.Columns = {
    "QUEUE": "name",
    **output.titled("type", "ready"),
    "UNACKED": "unacknowledged",
    "CONSUMERS": lambda each: len(each["consumers"]),
    "OLDEST": lambda each: output.duration_text(each["oldest_age_ms"]),
    "SIZE": lambda each: output.size_text(each["bytes"]),
}
"""Columns of queues."""


def emit_queue(queue: Mapping[str, Any], bindings: Sequence[Mapping[str, Any]]) -> None:
    """Print one queue with its bindings and consumers."""
    flags = [name for name in ("durable", "exclusive", "auto_delete") if queue[name]]
    output.emit_fields(
        [
            ("queue", queue["name"]),
            ("topic", queue["topic"]),
            ("type", " ".join([queue["type"], *flags])),
            ("ready", queue["ready"]),
            ("unacknowledged", queue["unacknowledged"]),
            ("oldest", output.duration_text(queue["oldest_age_ms"])),
            ("size", output.size_text(queue["bytes"])),
            ("published", queue["published"]),
            ("delivered", queue["delivered"]),
            ("acknowledged", queue["acknowledged"]),
            ("redelivered", queue["redelivered"]),
            ("dead-lettered", queue["dead"]),
        ]
    )
    if queue["arguments"]:
        print()
        output.emit_table(
            ["ARGUMENT", "VALUE"], [list(item) for item in queue["arguments"].items()]
        )
    if bindings:
        print()
        output.emit_table(
            ["EXCHANGE", "ROUTING KEY", "ARGUMENTS"],
            [[each["source"], each["routing_key"], each["arguments"] or None] for each in bindings],
        )
    if queue["consumers"]:
        print()
        output.emit_table(
            ["CONSUMER", "CONNECTION", "UNACKED", "PRIORITY", "ACTIVE"],
            [
                [
                    each["tag"],
                    each["owner"],
                    each["unacknowledged"],
                    each["priority"],
                    each["active"],
                ]
                for each in queue["consumers"]
            ],
        )


def message_dict(message: Message) -> dict[str, Any]:
    """Return a message as JSON has it. A body that is not UTF-8 is in ``body_base64``."""
    try:
        body: dict[str, Any] = {"body": message.body.decode()}
    except UnicodeDecodeError:
        body = {"body_base64": base64.b64encode(message.body).decode()}
    values = {
        name: value.decode(errors="replace") if isinstance(value, bytes) else value
        for name, value in message.properties.values.items()
    }
    return {
        **body,
        "exchange": message.exchange,
        "routing_key": message.routing_key,
        "redelivered": message.redelivered,
        "properties": values,
        "headers": {name: plain(value) for name, value in message.properties.headers.items()},
    }


def plain(value: object) -> object:
    """Return a value of a table as JSON can have it."""
    match value:
        case bytes():
            return value.decode(errors="replace")
        case Mapping():
            return {str(name): plain(each) for name, each in value.items()}
        case list():
            return [plain(each) for each in value]
        case None | bool() | int() | float() | str():
            return value
    return str(value)


def write_body(body: bytes) -> None:
    """Print a body as a line, byte for byte."""
    sys.stdout.buffer.write(body + b"\n")
    sys.stdout.buffer.flush()
