"""Metrics of the Kafka protocol: how many requests of each API there were, and how long they took.

The server has a histogram for each API from the start, so that a request costs a look-up and two
additions. Those without a request are not shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tidemill.metrics.definition import histogram
from tidemill.metrics.registry import Family, Histogram, Registry
from tidemill.protocols.kafka.apis import Api

REQUEST_SECONDS = histogram(
    "tidemill_kafka_request_seconds",
    "How long requests took, from the start of their handling to their answer in order: with the "
    "sync of a write, and with the wait of a long poll.",
    "api",
    buckets=(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0),
)


def add_requests(registry: Registry, apis: Mapping[int, Api]) -> dict[int, Histogram]:
    """Add a histogram for each API to a registry; return them by the APIs' keys."""
    histograms = {key: Histogram(REQUEST_SECONDS.buckets) for key in apis}

    def collect() -> Iterator[Family]:
        yield (
            REQUEST_SECONDS,
            [((apis[key].name,), each) for key, each in histograms.items() if any(each.counts)],
        )

    registry.collect(collect)
    return histograms
