"""Metrics of a pipeline's queries. They come from the statuses that a run publishes.

Must not know: Spark, a Kafka client.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime

from tidemill.metrics.definition import Metric, counter, gauge
from tidemill.metrics.registry import Family, Registry
from tidemill.spark.pipelines.progress import QueryStatus

_QUERY = ("pipeline", "query")

STATE = gauge("tidemill_query_state", "1 for the present state of a query.", *_QUERY, "state")
ROWS = counter("tidemill_query_rows_total", "Rows that a query has read in this run.", *_QUERY)
LATE = counter(
    "tidemill_query_late_rows_total", "Rows that were behind the watermark in this run.", *_QUERY
)
RESTARTS = counter("tidemill_query_restarts_total", "Restarts after failures in this run.", *_QUERY)
RATE = gauge(
    "tidemill_query_rows_per_second", "Speed of the last batch with rows, in rows/s.", *_QUERY
)
BATCH = gauge("tidemill_query_batch_seconds", "How long the last batch with rows took.", *_QUERY)
LATENCY_P50 = gauge(
    "tidemill_query_latency_p50_seconds",
    "Median time from a record's append to the end of its batch, over recent batches.",
    *_QUERY,
)
LATENCY_P99 = gauge(
    "tidemill_query_latency_p99_seconds", "The 99th percentile of that time.", *_QUERY
)
WATERMARK = gauge(
    "tidemill_query_watermark_timestamp_seconds",
    "Event time behind which rows are late, in seconds since the epoch.",
    *_QUERY,
)
STATE_ROWS = gauge("tidemill_query_state_rows", "Rows that a query keeps in its state.", *_QUERY)
LAG = gauge(
    "tidemill_query_lag_records",
    "Records of a topic that a query has not read.",
    *_QUERY,
    "topic",
)

Statuses = Callable[[], Mapping[str, QueryStatus]]


def add_queries(registry: Registry, statuses: Statuses) -> None:
    """Add the metrics of queries.

    Args:
        statuses: returns the latest statuses; any thread can call it.
    """

    def collect() -> Iterator[Family]:
        found = [(each.pipeline, each.query, each) for each in list(statuses().values())]
        yield STATE, [((name, query, each.state), 1) for name, query, each in found]
        values: tuple[tuple[Metric, Callable[[QueryStatus], float | None]], ...] = (
            (ROWS, lambda each: each.rows),
            (LATE, lambda each: each.late_rows),
            (RESTARTS, lambda each: each.restarts),
            (RATE, lambda each: each.rows_per_second),
            (BATCH, lambda each: each.batch_ms / 1000),
            (LATENCY_P50, lambda each: _seconds(each.latency_p50_ms)),
            (LATENCY_P99, lambda each: _seconds(each.latency_p99_ms)),
            (WATERMARK, lambda each: _time(each.watermark)),
            (STATE_ROWS, lambda each: each.state_rows),
        )
        for metric, value_of in values:
            rows = [((name, query), value_of(each)) for name, query, each in found]
            yield metric, [(labels, value) for labels, value in rows if value is not None]
        yield (
            LAG,
            [
                ((name, query, source.topic), source.lag)
                for name, query, each in found
                for source in each.sources
                if source.lag >= 0
            ],
        )

    registry.collect(collect)


def _time(text: str | None) -> float | None:
    return None if text is None else datetime.fromisoformat(text).timestamp()


def _seconds(ms: int | None) -> float | None:
    return None if ms is None else ms / 1000
