"""Metrics of a store, as one process knows it, and of what it publishes. Must not know: how they
are published."""

from __future__ import annotations

from collections.abc import Iterator

from tidemill.eventstore.publishing import Publisher
from tidemill.eventstore.store import Store
from tidemill.metrics.definition import gauge
from tidemill.metrics.registry import Family, Registry

POSITION = gauge(
    "tidemill_events_position",
    "Position of the last event of a store that the process has folded.",
    "store",
)
PUBLISHED = gauge(
    "tidemill_events_published_position",
    "Position up to which the events of a store are in a topic.",
    *("store", "topic"),
)


def add_store(registry: Registry, store: Store) -> None:
    """Add the metrics of a store, which stays open as long as the registry is read."""

    def collect() -> Iterator[Family]:
        yield POSITION, [((store.topic,), store.position())]

    registry.collect(collect)


def add_publisher(registry: Registry, publisher: Publisher) -> None:
    """Add the metrics of a publisher and of its store."""
    add_store(registry, publisher.store)

    def collect() -> Iterator[Family]:
        if publisher.position is not None:
            yield PUBLISHED, [((publisher.store.topic, publisher.topic), publisher.position)]

    registry.collect(collect)
