"""Metrics of queues."""

from __future__ import annotations

from collections.abc import Iterator

from tidemill.engine.metrics.bounds import Sums, bounded
from tidemill.engine.queues.core import QueueCore
from tidemill.metrics.definition import counter, gauge
from tidemill.metrics.registry import Family, Registry

_SINCE = "since the queue was opened by this process."

QUEUES = gauge("tidemill_queues", "Queues, also topics that are used as queues.")
READY = gauge("tidemill_queue_messages_ready", "Messages that wait for delivery.", "queue")
UNACKNOWLEDGED = gauge(
    "tidemill_queue_messages_unacknowledged",
    "Messages that are delivered and not settled.",
    "queue",
)
CONSUMERS = gauge("tidemill_queue_consumers", "Consumers of a queue.", "queue")
SIZE = gauge("tidemill_queue_size_bytes", "Size of a queue's segments on disk.", "queue")
PUBLISHED = counter(
    "tidemill_queue_published_total", f"Messages that came to a queue {_SINCE}", "queue"
)
DELIVERED = counter("tidemill_queue_delivered_total", f"Deliveries to consumers {_SINCE}", "queue")
ACKNOWLEDGED = counter(
    "tidemill_queue_acknowledged_total", f"Messages that were acknowledged {_SINCE}", "queue"
)
REDELIVERED = counter(
    "tidemill_queue_redelivered_total", f"Messages that were delivered again {_SINCE}", "queue"
)
DEAD = counter(
    "tidemill_queue_dead_total",
    f"Messages that were dropped or sent as dead letters {_SINCE}",
    "queue",
)
_METRICS = (
    *(READY, UNACKNOWLEDGED, CONSUMERS, SIZE),
    *(PUBLISHED, DELIVERED, ACKNOWLEDGED, REDELIVERED, DEAD),
)


def add_queues(registry: Registry, core: QueueCore, most: int) -> None:
    """Add the metrics of queues.

    Args:
        most: queues with series of their own.
    """

    def collect() -> Iterator[Family]:
        queues = core.registry.queues
        yield QUEUES, [((), len(queues))]
        label = bounded(queues, most)
        sums = Sums(len(_METRICS))
        for number, (name, queue) in enumerate(list(queues.items())):
            counters = queue.counters
            values = (
                *(queue.ready, queue.unacknowledged, len(queue.all_consumers)),
                sum(lane.log.size_bytes for lane in queue.lanes),
                *(counters.published, counters.delivered, counters.acknowledged),
                *(counters.redelivered, counters.dead),
            )
            each = sums.at(label(name))
            for field, value in enumerate(values):
                each[field] += value
            if number % 64 == 63:
                yield QUEUES, ()  # a place to pause
        for field, metric in enumerate(_METRICS):
            yield metric, sums.rows(field)

    registry.collect(collect)
