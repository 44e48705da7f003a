"""The data types of queues: what protocols pass to ``door.queues`` and get back.

Plain data and protocols (in Python's sense) only. Knows no wire protocol, no log and no I/O. The
names of arguments (``x-message-ttl``) are those that RabbitMQ made common.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from tidemill.state.routing.types import ExchangeSpec as ExchangeSpec

Header = tuple[str, bytes | None]
Arguments = Mapping[str, object]
"""Arguments of a declaration. The values are str, bytes, bool, int, float, None, and lists and
dicts of them. Other values are kept as their text."""

MAX_MESSAGE_BYTES = (1 << 24) - (1 << 16)
"""Largest message with its key and headers. A stored batch has at most 16 MiB."""
MAX_BODY_BYTES = (1 << 24) - (1 << 18)
"""Largest body that a protocol lets in. The headers of an AMQP message, which one frame of 128 KiB
has, fit beside it."""
DEATHS_HEADER = "tidemill.deaths"
"""The header of a dead letter: a JSON list of its deaths, latest first. Each is an object with
``queue``, ``reason`` (rejected, expired, maxlen, delivery_limit), ``count``, ``exchange``, ``keys``
(a list) and ``time`` (ms since the epoch, of the first such death), and ``original-expiration``
(text) if the message had a TTL of its own, which a dead letter has not any more."""
EXPIRES_HEADER = "tidemill.expires"
"""The header of a message with a TTL of its own: ms since the epoch, as text."""
KEYS_HEADER = "tidemill.keys"
"""The header of a message with more than one routing key: a JSON object with two lists, ``shown``
and ``hidden``. Dead letters go to all of them, and their deaths name those that are shown."""
EXCHANGE_HEADER = "tidemill.exchange"
"""The header with the exchange that a message was published to. The default exchange has none."""


class Owner:
    """One client connection: exclusive queues and consumers belong to it.

    Attributes:
        name: what a listing shows, such as the client's address.
    """

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name


@dataclass(slots=True)
class Message:
    """A message to publish.

    Attributes:
        value: the body.
        key: the key of the record. A protocol with routing keys uses the routing key.
        headers: the headers of the record, in order. A protocol encodes its own properties as
            headers of its own name (``amqp.*``). Names that begin with ``tidemill.`` are the
            engine's.
        priority: 0 is the lowest. Counts in queues with ``x-max-priority`` only.
        ttl_ms: how long the message stays in a queue; None for the queue's own limit.
        delay_ms: how long the message waits before it can be delivered.
        routing_headers: returns the headers that headers exchanges match. Called only if such an
            exchange is on the message's way; None if the message has none.
    """

    value: bytes | memoryview
    key: bytes | None = None
    headers: Sequence[Header] = ()
    priority: int = 0
    ttl_ms: int | None = None
    delay_ms: int = 0
    routing_headers: Callable[[], Mapping[str, object]] | None = None


OnSettled = Callable[[list[int], list[int]], None]
"""Called on the event loop with (tags ok, tags refused). Ok: the message is on disk in all queues
that it was routed to. Refused: an overflow policy rejected it, or it could not be written."""


class Publisher(Protocol):
    """Publishes for one channel.

    Attributes:
        pending_bytes: bytes of the messages that are not on disk yet. The protocol stops reading
            from the client while this is too much.
        on_drained: called on the event loop after a batch was settled; a protocol that stopped
            reading looks at ``pending_bytes`` again. None for no call.
    """

    pending_bytes: int
    on_drained: Callable[[], None] | None

    @property
    def is_disk_full(self) -> bool:
        """Whether the client must wait because the disk has refused a message."""

    def publish(
        self,
        tag: int,
        exchange: str,
        routing_key: str,
        message: Message,
        more_keys: Sequence[str] = (),
    ) -> bool:
        """Route and append a message. It is written in the next turn of the event loop.

        Args:
            tag: the number that ``on_settled`` reports.
            exchange: the exchange; empty for the default exchange.
            more_keys: further routing keys (CC and BCC). A queue gets the message once.

        Returns:
            Whether it was routed to a queue. ``on_settled`` does not report a tag for which this is
            False.

        Raises:
            UnknownExchangeError: the exchange does not exist.
            InternalExchangeError: the exchange is internal.
            AuthorizationError: the principal is not allowed to write to the exchange.
        """

    def hold_ms(self) -> int:
        """Return how long the client must wait before it publishes more, in milliseconds.

        It is 0 unless consumers of what it has published are too far behind, a queue with the
        overflow ``throttle`` is full, or the disk is. The protocol does not read from the client
        meanwhile, and should ask again before the time is over.
        """

    def close(self) -> None:
        """Stop calling ``on_settled`` and ``on_drained``. What was published is written."""


@dataclass(slots=True, eq=False)
class Delivery:
    """A message that is out to a consumer.

    Attributes:
        queue: the queue.
        partition: the partition of the queue's topic.
        offset: the offset in the partition.
        delivery_count: how often it was delivered before and came back; 0 for the first time.
        redelivered: whether it was possibly delivered before.
        value, key, headers: of the record. A null value is ``b""``.
        timestamp_ms: when it was published (ms since the epoch).
        exchange: the exchange that it was published to; empty for the default exchange and for
            records that another protocol wrote.
        holder: what settles this delivery.
        is_dropped: whether ``drop_value`` was called.
    """

    queue: str
    partition: int
    offset: int
    delivery_count: int
    redelivered: bool
    value: bytes | memoryview
    key: bytes | None
    headers: Sequence[Header]
    timestamp_ms: int
    exchange: str
    holder: Holder
    is_dropped: bool = False

    def drop_value(self) -> None:
        """Free the memory of value and headers, which were sent. A rejection reads them again."""
        self.value = b""
        self.headers = ()
        self.is_dropped = True


class Holder(Protocol):
    """Settles deliveries. All deliveries of a call must be its own and not settled yet.

    A call is quick: it returns before anything is on disk. After a crash, a message whose
    settlement was not on disk yet is delivered again. Calls after the queue was deleted do nothing.
    """

    def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        """Mark them as done."""

    def release(self, deliveries: Sequence[Delivery]) -> None:
        """Return them to their places in the queue. Their delivery count grows by one."""

    def reject(self, deliveries: Sequence[Delivery]) -> None:
        """Dead-letter them, or drop them if the queue has no dead-letter exchange."""


class Consumer(Holder, Protocol):
    """A consumer of one queue. Its deliveries can be settled after ``cancel``, too."""

    def wake(self) -> None:
        """Look for messages: the recipient's ``credit`` possibly grew."""

    def cancel(self) -> None:
        """Stop delivering. Deliveries that are out stay out until they are settled or released.

        A queue with auto-delete is deleted after its last consumer.
        """


class Recipient(Protocol):
    """The part of a consumer that a protocol implements. All calls come on the event loop."""

    @property
    def shares_credit(self) -> bool:
        """Whether other consumers have the same limit: what they get leaves less credit here."""

    def credit(self) -> int:
        """Return how many more messages it takes now: the prefetch limit, and 0 if congested."""

    def deliver(self, deliveries: list[Delivery]) -> None:
        """Send messages, at most ``credit()``. Must not raise and must not call the consumer."""

    def cancelled(self, why: str) -> None:
        """Note that the broker ended the consumer: the queue was deleted, or the broker stops."""


@dataclass(frozen=True, slots=True)
class ConsumerSpec:
    """A consumer's wishes.

    Attributes:
        tag: its name within the connection, for listings.
        owner: its connection.
        no_ack: messages are done when they are handed over.
        exclusive: no other consumer is allowed.
        arguments: ``x-priority``, ``x-stream-offset``, ``x-cancel-on-ha-failover`` (ignored).
    """

    tag: str
    owner: Owner
    no_ack: bool = False
    exclusive: bool = False
    arguments: Arguments = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class QueueSpec:
    """A declaration of a queue.

    Attributes:
        durable: whether it survives a restart.
        exclusive: whether only the declaring connection uses it, and it ends with that.
        auto_delete: whether it is deleted when its last consumer goes.
        arguments: see ``state.routing.arguments``.
    """

    durable: bool = True
    exclusive: bool = False
    auto_delete: bool = False
    arguments: Arguments = field(default_factory=dict)


class QueueInfo(NamedTuple):
    """The answer to a declaration."""

    name: str
    messages: int
    """Messages that are ready to be delivered."""
    consumers: int


class Got(NamedTuple):
    """The answer to a get."""

    delivery: Delivery
    remaining: int
    """Messages that are ready behind it."""


@dataclass(frozen=True, slots=True)
class ConsumerDescription:
    """A consumer in a listing."""

    tag: str
    owner: str
    unacknowledged: int
    priority: int
    active: bool
    """False for a consumer that waits behind a single active consumer."""


@dataclass(frozen=True, slots=True)
class QueueDescription:
    """A queue in a listing.

    Attributes:
        name: the queue.
        topic: the topic that stores it.
        type: classic, quorum, stream, or topic for an existing topic without a declaration.
        durable, exclusive, auto_delete, arguments: its declaration.
        ready, unacknowledged: messages by state.
        bytes: bytes on disk.
        oldest_age_ms: the age of the oldest message that is not done; None if there is none.
        published, delivered, acknowledged, redelivered, dead: counters since the start.
        consumers: its consumers.
    """

    name: str
    topic: str
    type: str
    durable: bool
    exclusive: bool
    auto_delete: bool
    arguments: Arguments
    ready: int
    unacknowledged: int
    bytes: int
    oldest_age_ms: int | None
    published: int
    delivered: int
    acknowledged: int
    redelivered: int
    dead: int
    consumers: tuple[ConsumerDescription, ...]


@dataclass(frozen=True, slots=True)
class BindingDescription:
    """A binding from an exchange to a queue or to another exchange."""

    source: str
    destination: str
    destination_kind: str
    """``queue`` or ``exchange``."""
    routing_key: str
    arguments: Arguments
