"""Formats the statuses of a pipeline's queries: as a table, as fields, as JSON, as error lines.

This module must not know how pipelines run, or where statuses come from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from tidemill.cli import output

if TYPE_CHECKING:
    from tidemill.cli.client import Cluster
    from tidemill.spark.pipelines.progress import QueryStatus, SourceStatus


def emit(statuses: Sequence[QueryStatus], *, with_pipeline: bool = False) -> None:
    """Print a table on stdout, with a line per query."""
    headers = ["QUERY", "STATE", "BATCH", "ROWS", "ROWS/S", "LAG", "LATE", "STATE ROWS", "LATENCY"]
    rows = [
        [
            status.key if with_pipeline else status.query,
            state_of(status),
            status.batch if status.batch >= 0 else None,
            status.rows,
            round(status.rows_per_second),
            lag_of(status),
            status.late_rows,
            status.state_rows,
            output.duration_text(status.latency_p50_ms),
        ]
        for status in statuses
    ]
    output.emit_table(headers, rows)


def fields_of(status: QueryStatus) -> list[tuple[str, object]]:
    """Return all fields of a status, as (name, value)."""
    p50, p99 = status.latency_p50_ms, status.latency_p99_ms
    latency = (
        None
        if p50 is None
        else f"{output.duration_text(p50)} (half), {output.duration_text(p99)} (99 of 100)"
    )
    sources = ", ".join(
        source.topic if source.lag < 0 else f"{source.topic} ({source.lag} behind)"
        for source in status.sources
    )
    return [
        ("query", status.key),
        ("state", state_of(status)),
        ("sources", sources or None),
        ("sink", status.sink),
        ("mode", status.mode),
        ("batch", status.batch if status.batch >= 0 else None),
        ("rows", status.rows),
        ("rows/s", round(status.rows_per_second)),
        ("watermark", status.watermark),
        ("late rows", status.late_rows),
        ("state rows", status.state_rows),
        ("batch took", output.duration_text(status.batch_ms or None)),
        ("latency", latency),
        ("restarts", status.restarts),
        ("last error", status.error),
        ("updated", status.updated.replace("+00:00", "Z")),
    ]


def as_dict(status: QueryStatus) -> dict[str, object]:
    """Return a status for JSON."""
    return asdict(status) | {"state": state_of(status)}


def state_of(status: QueryStatus) -> str:
    """Return the last published state, or "lost" if the runner has not published for long."""
    return "lost" if status.is_lost(datetime.now(UTC)) else status.state


def lag_of(status: QueryStatus) -> int | None:
    """Return the number of records that the query has not read yet, or None if unknown.

    Only streams count. A table is read completely in each batch.
    """
    lags = [source.lag for source in status.sources if source.lag >= 0 or source.read > 0]
    return None if not lags or -1 in lags else sum(lags)


def troubles(statuses: Sequence[QueryStatus]) -> list[str]:
    """Return a line for each error of an ended run whose queries did not fail for good."""
    from tidemill.spark.pipelines.progress import errors_of

    found = []
    for status in statuses:
        if status.state == "failed" or not (status.error or status.restarts):
            continue
        times = f" (restarted: {status.restarts})" if status.restarts else ""
        found.append(replace(status, error=f"last error: {status.error or 'unknown'}{times}"))
    return errors_of(found)


def with_lag_now(statuses: Sequence[QueryStatus], cluster: Cluster) -> list[QueryStatus]:
    """Return the statuses with the present lag of queries that do not run any more.

    The runner does not publish their lag any longer, so it is computed from the topics.
    """
    now = datetime.now(UTC)
    over = [status for status in statuses if not status.is_active or status.is_lost(now)]
    topics = {source.topic for status in over for source in status.sources if _is_known(source)}
    ends = _ends(cluster, topics)
    return [
        replace(status, sources=tuple(_with_lag(source, ends) for source in status.sources))
        if status in over
        else status
        for status in statuses
    ]


def _is_known(source: SourceStatus) -> bool:
    """Return whether the position in this source was ever published."""
    return source.lag >= 0 or source.read > 0


def _with_lag(source: SourceStatus, ends: Mapping[str, int]) -> SourceStatus:
    if not _is_known(source):
        return source
    # A negative lag means that the topic was deleted, or created again.
    lag = ends.get(source.topic, -1) - source.read
    return replace(source, lag=max(lag, -1))


def _ends(cluster: Cluster, topics: set[str]) -> dict[str, int]:
    """Return the sum of end offsets per existing topic, as readers with read_committed see it."""
    if not topics:
        return {}
    there = cluster.topics()
    keys = [(topic, p) for topic in sorted(topics & set(there)) for p in range(there[topic])]
    ends = dict.fromkeys(topics & set(there), 0)
    if keys:
        from confluent_kafka.admin import OffsetSpec

        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        for (topic, _), end in cluster.list_offsets(
            dict.fromkeys(keys, latest), committed=True
        ).items():
            ends[topic] += end
    return ends
