"""The arguments of queues, exchanges and consumers, and the policy that a queue's arguments say.

The names are those of RabbitMQ. An argument that is not known changes nothing, as there: clients
send those of plugins and of newer versions. Pure.

Source: RabbitMQ's documentation of queues, quorum queues, streams and consumers.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tidemill.state.routing.errors import InvalidQueueArgumentError

MAX_PRIORITIES = 255
QUORUM_DELIVERY_LIMIT = 20
"""The deliveries of a message of a quorum queue without ``x-delivery-limit``, as in RabbitMQ 4."""
MAX_MS = 2**53


class QueueType(enum.Enum):
    """The type of a queue. Classic and quorum queues are both durable logs here."""

    CLASSIC = "classic"
    QUORUM = "quorum"
    STREAM = "stream"
    """Consumers read from an offset, and nothing is removed by an acknowledgement."""


class Overflow(enum.Enum):
    """The action when a queue is full."""

    DROP_HEAD = "drop-head"
    REJECT_PUBLISH = "reject-publish"
    REJECT_PUBLISH_DLX = "reject-publish-dlx"
    THROTTLE = "throttle"
    """Publishers are held back. RabbitMQ does not have it."""


@dataclass(frozen=True, slots=True)
class Policy:
    """The meaning of a queue's arguments. None means no limit.

    Attributes:
        message_ttl_ms: how long a message stays.
        expires_ms: the queue is deleted after so long without use.
        max_length, max_bytes: bounds of the messages that are ready.
        overflow: the action at a bound.
        dead_letter_exchange, dead_letter_key: where dead letters go; without an exchange they are
            dropped, without a key they keep theirs.
        max_priority: the highest priority; 0 is none.
        single_active: one consumer at a time gets messages.
        delivery_limit: a message that came back so often is a dead letter.
        retain_ms: how long messages that are done stay on disk; -1 is forever, 0 not at all.
        max_age_ms: how long a stream keeps messages.
    """

    type: QueueType = QueueType.CLASSIC
    message_ttl_ms: int | None = None
    expires_ms: int | None = None
    max_length: int | None = None
    max_bytes: int | None = None
    overflow: Overflow = Overflow.DROP_HEAD
    dead_letter_exchange: str | None = None
    dead_letter_key: str | None = None
    max_priority: int = 0
    single_active: bool = False
    delivery_limit: int | None = None
    retain_ms: int = 0
    max_age_ms: int | None = None

    @property
    def refuses(self) -> bool:
        """Whether a full queue refuses new messages."""
        return self.overflow in (Overflow.REJECT_PUBLISH, Overflow.REJECT_PUBLISH_DLX)

    @property
    def is_stream(self) -> bool:
        """Whether the queue is a stream."""
        return self.type is QueueType.STREAM

    @property
    def is_bounded(self) -> bool:
        """Whether the queue has a maximal length."""
        return self.max_length is not None or self.max_bytes is not None


Check = Callable[[object], object]


def _integer(least: int, most: int = MAX_MS) -> Check:
    def check(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"expected an integer, not {type(value).__name__}")
        if not least <= value <= most:
            raise ValueError(f"{value} is not between {least} and {most}")
        return value

    return check


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected a string, not {type(value).__name__}")
    return value


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"expected a boolean, not {type(value).__name__}")
    return value


def _choice(*values: str) -> Check:
    def check(value: object) -> str:
        if value not in values:
            raise ValueError(f"expected one of {', '.join(values)}, not {value!r}")
        return str(value)

    return check


_AGE_UNITS = {"Y": 365 * 86_400, "M": 30 * 86_400, "D": 86_400, "h": 3600, "m": 60, "s": 1}


def _age(value: object) -> int:
    text = _text(value)
    unit = _AGE_UNITS.get(text[-1:])
    digits = text[:-1]
    if unit is None or not (digits.isascii() and digits.isdigit()) or len(digits) > 9:
        raise ValueError(f"expected a number and one of Y, M, D, h, m, s, not {text!r}")
    return int(digits) * unit * 1000


QUEUE_ARGUMENTS: Mapping[str, Check] = {
    "x-dead-letter-exchange": _text,
    "x-dead-letter-routing-key": _text,
    "x-dead-letter-strategy": _choice("at-most-once", "at-least-once"),
    "x-delivery-limit": _integer(-1),
    "x-expires": _integer(1),
    "x-max-age": _age,
    "x-max-in-memory-bytes": _integer(0),
    "x-max-in-memory-length": _integer(0),
    "x-max-length": _integer(0),
    "x-max-length-bytes": _integer(0),
    "x-max-priority": _integer(0, MAX_PRIORITIES),
    "x-message-ttl": _integer(0),
    "x-overflow": _choice(*(each.value for each in Overflow)),
    "x-queue-mode": _choice("default", "lazy"),
    "x-queue-type": _choice(*(each.value for each in QueueType)),
    "x-queue-version": _integer(1, 2),
    "x-quorum-initial-group-size": _integer(1),
    "x-initial-cluster-size": _integer(1),
    "x-queue-leader-locator": _text,
    "x-queue-master-locator": _text,
    "x-retain": _integer(-1),
    "x-single-active-consumer": _flag,
    "x-stream-filter-size-bytes": _integer(16, 255),
    "x-stream-max-segment-size-bytes": _integer(1),
}
"""The known arguments of queues. Those that no field of ``Policy`` has change nothing here."""

_NOT_FOR_STREAMS = frozenset(
    {
        *("x-dead-letter-exchange", "x-dead-letter-routing-key", "x-delivery-limit", "x-expires"),
        *("x-max-length", "x-max-priority", "x-message-ttl", "x-overflow"),
        *("x-single-active-consumer", "x-retain"),
    }
)
_ONLY_FOR_STREAMS = frozenset({"x-max-age", "x-stream-max-segment-size-bytes"})


def parse_policy(queue: str, arguments: Mapping[str, object]) -> Policy:
    """Return what a queue's arguments say.

    Raises:
        InvalidQueueArgumentError: an argument is invalid, or not for this type of queue.
    """
    values = check_arguments("queue", queue, arguments, QUEUE_ARGUMENTS)
    type_ = QueueType(values.get("x-queue-type", "classic"))
    wrong = _NOT_FOR_STREAMS if type_ is QueueType.STREAM else _ONLY_FOR_STREAMS
    for name in values:
        if name in wrong:
            problem = f"it is not supported by queues of the type {type_.value}"
            raise InvalidQueueArgumentError("queue", queue, name, problem)
    if "x-dead-letter-routing-key" in values and "x-dead-letter-exchange" not in values:
        raise InvalidQueueArgumentError(
            "queue", queue, "x-dead-letter-routing-key", "x-dead-letter-exchange is missing"
        )
    default_limit = QUORUM_DELIVERY_LIMIT if type_ is QueueType.QUORUM else -1
    limit = values.get("x-delivery-limit", default_limit)
    return Policy(
        type=type_,
        message_ttl_ms=values.get("x-message-ttl"),
        expires_ms=values.get("x-expires"),
        max_length=values.get("x-max-length"),
        max_bytes=values.get("x-max-length-bytes"),
        overflow=Overflow(values.get("x-overflow", "drop-head")),
        dead_letter_exchange=values.get("x-dead-letter-exchange"),
        dead_letter_key=values.get("x-dead-letter-routing-key"),
        max_priority=values.get("x-max-priority", 0),
        single_active=values.get("x-single-active-consumer", False),
        delivery_limit=None if limit == -1 else limit,
        retain_ms=values.get("x-retain", 0),
        max_age_ms=values.get("x-max-age"),
    )


def check_arguments(
    kind: str, name: str, arguments: Mapping[str, object], known: Mapping[str, Check]
) -> dict[str, Any]:
    """Return the checked values of the arguments that are known, each of its check's type."""
    values = {}
    for argument in arguments.keys() & known.keys():
        try:
            values[argument] = known[argument](arguments[argument])
        except (TypeError, ValueError) as error:
            raise InvalidQueueArgumentError(kind, name, argument, str(error)) from error
    return values


EXCHANGE_ARGUMENTS: Mapping[str, Check] = {"alternate-exchange": _text}


def _offset(value: object) -> object:
    if isinstance(value, str) and value in ("first", "last", "next"):
        return value
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    if isinstance(value, str):
        return "age", _age(value)  # an interval such as 1h
    raise ValueError(f"expected first, last, next, an offset, a time or an interval, not {value!r}")


CONSUMER_ARGUMENTS: Mapping[str, Check] = {
    "x-priority": _integer(-(2**31), 2**31),
    "x-stream-offset": lambda value: value if hasattr(value, "timestamp") else _offset(value),
    "x-cancel-on-ha-failover": _flag,
}
