"""Describes a live queue for listings. Reads only."""

from __future__ import annotations

from tidemill.engine.queues.api import QueueDescription
from tidemill.engine.queues.live.queue import LiveQueue
from tidemill.state.routing.types import QueueDefinition


def describe(live: LiveQueue, definition: QueueDefinition | None, now_ms: int) -> QueueDescription:
    """Return the description of a queue; ``definition`` is None for a topic that is used as one."""
    counters = live.counters
    oldest = [found[1].timestamp for lane in live.lanes if (found := lane.head()) is not None]
    return QueueDescription(
        name=live.name,
        topic=live.lanes[0].log.tp.topic,
        type="topic" if definition is None else live.policy.type.value,
        durable=definition is None or definition.durable,
        exclusive=definition is not None and definition.exclusive,
        auto_delete=definition is not None and definition.auto_delete,
        arguments={} if definition is None else definition.arguments,
        ready=live.ready,
        unacknowledged=live.unacknowledged,
        bytes=sum(lane.log.size_bytes for lane in live.lanes),
        oldest_age_ms=max(0, now_ms - min(oldest)) if oldest else None,
        published=counters.published,
        delivered=counters.delivered,
        acknowledged=counters.acknowledged,
        redelivered=counters.redelivered,
        dead=counters.dead,
        consumers=live.describe_consumers(),
    )
