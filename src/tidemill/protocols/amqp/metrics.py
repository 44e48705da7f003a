"""RabbitMQ's counters of connections, channels and messages, under its names.

Counted only if ``telemetry.metrics_names`` has rabbitmq: then ``Shared.tally`` is there. Source:
https://www.rabbitmq.com/docs/prometheus, and the dashboard RabbitMQ-Overview.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from tidemill.metrics.definition import Metric, counter, gauge, histogram
from tidemill.metrics.registry import Family, Histogram, Registry
from tidemill.net.listener import Listener
from tidemill.protocols.amqp.connections import Connections

PROTOCOL = "amqp091"

SIZES = histogram(
    "rabbitmq_message_size_bytes",
    "Sizes of the bodies of messages that clients published.",
    "protocol",
    buckets=(100, 1000, 10_000, 100_000, 1_000_000, 10_000_000, 50_000_000, 100_000_000),
)
CONNECTIONS = gauge("rabbitmq_connections", "Open connections of AMQP.", foreign=True)
CHANNELS = gauge("rabbitmq_channels", "Open channels.", foreign=True)
PUBLISHERS = gauge(
    "rabbitmq_global_publishers", "Channels that have published.", "protocol", foreign=True
)
OPENED = counter("rabbitmq_connections_opened_total", "Connections that were accepted.")
CLOSED = counter("rabbitmq_connections_closed_total", "Connections that have ended.")
CHANNELS_OPENED = counter("rabbitmq_channels_opened_total", "Channels that were opened.")
CHANNELS_CLOSED = counter("rabbitmq_channels_closed_total", "Channels that have ended.")
DECLARED = counter("rabbitmq_queues_declared_total", "Declarations of queues by clients.")


def _messages(name: str, text: str) -> Metric:
    return counter(f"rabbitmq_global_messages_{name}_total", text, "protocol")


RECEIVED = _messages("received", "Messages that clients published.")
RECEIVED_CONFIRM = _messages("received_confirm", "Those on channels with confirms.")
CONFIRMED = _messages("confirmed", "Messages that were confirmed.")
ROUTED = _messages("routed", "Messages that went to a queue.")
DROPPED = _messages("unroutable_dropped", "Messages without a queue, which were dropped.")
RETURNED = _messages("unroutable_returned", "Messages without a queue, which were returned.")
DELIVERED = _messages("delivered", "Deliveries, with answers to basic.get.")
AUTO = _messages("delivered_consume_auto_ack", "Deliveries that need no acknowledgement.")
MANUAL = _messages("delivered_consume_manual_ack", "Deliveries that need one.")
GOT_AUTO = _messages("delivered_get_auto_ack", "Answers to basic.get that need none.")
GOT_MANUAL = _messages("delivered_get_manual_ack", "Answers to basic.get that need one.")
EMPTY = _messages("get_empty", "Answers to basic.get without a message.")
REDELIVERED = _messages("redelivered", "Deliveries of messages that were delivered before.")
ACKNOWLEDGED = _messages("acknowledged", "Messages that were acknowledged.")


@dataclass(slots=True)
class Tally:
    """Counts of all connections since the start."""

    publishers: int = 0
    declared: int = 0
    received: int = 0
    received_confirm: int = 0
    confirmed: int = 0
    routed: int = 0
    dropped: int = 0
    returned: int = 0
    auto: int = 0
    manual: int = 0
    got_auto: int = 0
    got_manual: int = 0
    empty: int = 0
    redelivered: int = 0
    acknowledged: int = 0
    sizes: Histogram = field(default_factory=lambda: Histogram(SIZES.buckets))

    def published(self, size: int, *, confirms: bool, routed: bool, mandatory: bool) -> None:
        """Count a message of a client."""
        self.received += 1
        self.received_confirm += confirms
        self.sizes.observe(size)
        if routed:
            self.routed += 1
        elif mandatory:
            self.returned += 1
        else:
            self.dropped += 1

    def delivered(self, count: int, redelivered: int, *, no_ack: bool) -> None:
        """Count deliveries to a consumer."""
        self.redelivered += redelivered
        if no_ack:
            self.auto += count
        else:
            self.manual += count

    def got(self, *, redelivered: bool, no_ack: bool) -> None:
        """Count an answer to basic.get."""
        self.redelivered += redelivered
        if no_ack:
            self.got_auto += 1
        else:
            self.got_manual += 1


def add_tally(
    registry: Registry, tally: Tally, channels: Connections, listeners: Sequence[Listener]
) -> None:
    """Add the counts to a registry.

    Args:
        channels: the connections, which count their channels.
        listeners: those of AMQP; more can be added to the list later.
    """

    def collect() -> Iterator[Family]:
        opened = sum(each.accepted for each in listeners)
        connections = sum(each.connections for each in listeners)
        yield CONNECTIONS, [((), connections)]
        yield OPENED, [((), opened)]
        yield CLOSED, [((), opened - connections)]
        yield CHANNELS, [((), channels.channels_opened - channels.channels_closed)]
        yield CHANNELS_OPENED, [((), channels.channels_opened)]
        yield CHANNELS_CLOSED, [((), channels.channels_closed)]
        yield PUBLISHERS, [((PROTOCOL,), tally.publishers)]
        yield DECLARED, [((), tally.declared)]
        yield SIZES, [((PROTOCOL,), tally.sizes)]
        for metric, value_of in _VALUES:
            yield metric, [((PROTOCOL,), value_of(tally))]

    registry.collect(collect)


_VALUES: tuple[tuple[Metric, Callable[[Tally], int]], ...] = (
    (RECEIVED, lambda tally: tally.received),
    (RECEIVED_CONFIRM, lambda tally: tally.received_confirm),
    (CONFIRMED, lambda tally: tally.confirmed),
    (ROUTED, lambda tally: tally.routed),
    (DROPPED, lambda tally: tally.dropped),
    (RETURNED, lambda tally: tally.returned),
    (DELIVERED, lambda tally: tally.auto + tally.manual + tally.got_auto + tally.got_manual),
    (AUTO, lambda tally: tally.auto),
    (MANUAL, lambda tally: tally.manual),
    (GOT_AUTO, lambda tally: tally.got_auto),
    (GOT_MANUAL, lambda tally: tally.got_manual),
    (EMPTY, lambda tally: tally.empty),
    (REDELIVERED, lambda tally: tally.redelivered),
    (ACKNOWLEDGED, lambda tally: tally.acknowledged),
)
