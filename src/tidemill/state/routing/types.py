"""Declarations of exchanges, queues and bindings. Plain data."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from tidemill.state.routing.arguments import Policy

QUEUE, EXCHANGE = "queue", "exchange"
DEFAULT_EXCHANGE = ""
EXCHANGE_TYPES = ("direct", "fanout", "topic", "headers")

Arguments = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class ExchangeSpec:
    """A declaration of an exchange.

    Attributes:
        type: direct, fanout, topic or headers.
        durable: whether it survives a restart.
        auto_delete: whether it is deleted when its last binding goes.
        internal: whether only bindings reach it.
        arguments: ``alternate-exchange``.
    """

    type: str
    durable: bool = True
    auto_delete: bool = False
    internal: bool = False
    arguments: Arguments = field(default_factory=dict)

    @property
    def alternate(self) -> str | None:
        """The exchange that gets what no binding matches."""
        value = self.arguments.get("alternate-exchange")
        return value if isinstance(value, str) else None


@dataclass(frozen=True, slots=True)
class QueueDefinition:
    """A queue that exists.

    Attributes:
        topic: the topic that stores it.
        owns_topic: whether the topic was created for it, and is deleted with it.
        policy: the meaning of the arguments.
    """

    name: str
    topic: str
    owns_topic: bool
    durable: bool
    exclusive: bool
    auto_delete: bool
    arguments: Arguments
    policy: Policy

    @property
    def survives(self) -> bool:
        """Whether the queue exists after a restart."""
        return self.durable and not self.exclusive


class Destination(NamedTuple):
    """The end of a binding: a queue or an exchange."""

    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class Binding:
    """A binding from an exchange to a queue or to an exchange."""

    source: str
    destination: Destination
    routing_key: str
    arguments: Arguments

    @property
    def identity(self) -> str:
        """A text that is equal for equal bindings."""
        arguments = json.dumps(to_json(self.arguments), sort_keys=True)
        return json.dumps([self.source, *self.destination, self.routing_key, arguments])


def to_json(value: object) -> object:
    """Return arguments in a form that JSON can represent; ``from_json`` is the reverse.

    Bytes are marked, so that they differ from text.
    """
    if isinstance(value, Mapping):
        return {str(key): to_json(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(each) for each in value]
    if isinstance(value, (bytes, bytearray, memoryview)):
        return {"$bytes": bytes(value).hex()}
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    return {"$text": str(value)}


def from_json(value: object) -> object:
    """Return arguments from their JSON form."""
    if isinstance(value, dict):
        if list(value) == ["$bytes"] and isinstance(value["$bytes"], str):
            return bytes.fromhex(value["$bytes"])
        if list(value) == ["$text"]:
            return value["$text"]
        return {key: from_json(each) for key, each in value.items()}
    if isinstance(value, list):
        return [from_json(each) for each in value]
    return value
