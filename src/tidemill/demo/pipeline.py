"""The pipeline: departures and their mean delay, per airport and hour of event time.

An ordinary PySpark streaming query. It reads and writes through the Kafka protocol and would run
unchanged elsewhere: change the address and the Spark master. Knows topics and what is in them, not
how the events came to be; must not know the broker's inside.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidemill.demo.events import DEPARTURES, MAX_LATENESS
from tidemill.demo.topics import HOURLY

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

WINDOW = "1 hour"

WATERMARK = f"{MAX_LATENESS} seconds"
"""How long a window waits for late reports: as late as the model of reports allows, no less (see
``tidemill.demo.events``). So no report is ever too late, and the query's own count of rows that
were must stay 0."""

TRIGGER = "250 milliseconds"
"""How often the query looks for new reports; by default it would ask without a pause."""

EVENT_SCHEMA = "airport string, event_time timestamp, delay_minutes bigint"

SETTINGS = {
    # All progress of one run is kept, so that the sums over it are of the whole run.
    "spark.sql.streaming.numRecentProgressUpdates": "100000",
    # For a run of minutes, on few cores: what the optimising compiler and a parallel collector cost
    # is not won back. Halves the processor time until the first result.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}
"""Spark settings of the demo's session."""

_ISO = "yyyy-MM-dd'T'HH:mm:ss'Z'"


def hourly_departures(records: DataFrame) -> DataFrame:
    """From records of ``departures`` to records of ``departures.hourly``.

    The result has one row per airport and hour, emitted when the watermark has passed the hour's
    end (append mode): key ``EWR|2013-03-08T17:00:00Z``; value a JSON object with ``airport``,
    ``window_start``, ``window_end``, ``departures``, ``delay_minutes`` (the sum) and
    ``mean_delay_minutes``.

    The clock signal that ends a replay names no airport. It is not filtered out before the
    aggregation: Spark would move the filter below the watermark, which the signal is there to move.
    It opens a window of its own at the very end, one that is never final and so never emitted.

    Args:
        records: with the columns of Spark's Kafka source; at least ``value``.
    """
    from pyspark.sql import functions as f

    event = f.from_json(f.col("value").cast("string"), EVENT_SCHEMA).alias("event")
    hours = (
        records.select(event)
        .select("event.*")
        .withWatermark("event_time", WATERMARK)
        .groupBy("airport", f.window("event_time", WINDOW).alias("hour"))
        .agg(
            f.count("*").alias("departures"),
            f.sum("delay_minutes").alias("delay_minutes"),
        )
    )
    start = f.date_format("hour.start", _ISO)
    result = f.struct(
        "airport",
        start.alias("window_start"),
        f.date_format("hour.end", _ISO).alias("window_end"),
        "departures",
        "delay_minutes",
        # Both are exact whole numbers, so this is the one double nearest to the quotient.
        (f.col("delay_minutes") / f.col("departures")).alias("mean_delay_minutes"),
    )
    return hours.select(
        f.concat_ws("|", "airport", start).alias("key"), f.to_json(result).alias("value")
    )


def start(spark: SparkSession, bootstrap_servers: str, checkpoint: Path) -> StreamingQuery:
    """Start the query.

    Args:
        spark: a session whose time zone is UTC (as ``tidemill.spark.session`` makes it).
        bootstrap_servers: of the broker that has the topics.
        checkpoint: folder for the query's offsets and state.
    """
    records = (
        spark.readStream.format("tidemill")
        .option("kafka.bootstrap.servers", bootstrap_servers)
        .option("subscribe", DEPARTURES)
        .option("startingOffsets", "earliest")
        .load()
    )
    return (
        hourly_departures(records)
        .writeStream.format("tidemill")
        .option("kafka.bootstrap.servers", bootstrap_servers)
        .option("topic", HOURLY)
        .option("checkpointLocation", str(checkpoint))
        .queryName(HOURLY)
        .outputMode("append")
        .trigger(processingTime=TRIGGER)
        .start()
    )


@dataclass(frozen=True, slots=True)
class QueryProgress:
    """What a query has done so far.

    Attributes:
        batches: micro-batches that were run.
        read_up_to: offset after the last record read from ``departures``.
        watermark: of the last batch that was run (Unix time in seconds); 0 before the first.
        dropped_late: rows that came after their window was final, and count nowhere.
    """

    batches: int = 0
    read_up_to: int = 0
    watermark: int = 0
    dropped_late: int = 0


def progress_of(updates: Iterable[Any]) -> QueryProgress:
    """Totals of a query's progress updates (``StreamingQueryProgress``, each also a mapping).

    An idle query sends updates, too, which repeat what was and look ahead to a batch that was not
    run; they are passed over.
    """
    total = QueryProgress()
    for update in updates:
        if "addBatch" not in update["durationMs"]:
            continue
        total = QueryProgress(
            batches=max(total.batches, int(update["batchId"]) + 1),
            read_up_to=_offset(update["sources"][0]["endOffset"]),
            watermark=_unix(update["eventTime"].get("watermark")),
            dropped_late=total.dropped_late
            + sum(int(state["numRowsDroppedByWatermark"]) for state in update["stateOperators"]),
        )
    return total


def _offset(end: Any) -> int:
    """The end offset of the only partition of ``departures`` in a source's offsets."""
    offsets = json.loads(end) if isinstance(end, str) else end
    return int(offsets[DEPARTURES]["0"]) if offsets else 0


def _unix(text: str | None) -> int:
    return int(datetime.fromisoformat(text).timestamp()) if text else 0
