"""Declare the flights control room: a pipeline with windows, joins and alerts, to be read.

``tidemill demo`` runs it, and so does

    tidemill pipeline run src/tidemill/demo/control_room.py -b BROKERS

Airports report departures and arrivals up to two hours late and out of order. Two tables of a
database contain the aircraft and the airlines. The database is captured, and changes meanwhile.
This module must not know how the records are made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import functions as f

from tidemill.spark import (
    ChangelogSink,
    Pipeline,
    TantivySink,
    TopicSink,
    enrich_as_of,
    join_tables,
    session,
    sliding,
    stream_stream,
    tumbling,
)
from tidemill.spark.tables.captured import CapturedTopic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tidemill.spark.pipelines.declared import Table
    from tidemill.spark.pipelines.inputs import StreamInput, TableInput

pipeline = Pipeline(
    "control-room",
    spark={
        # There are few events and many queries, so one state partition for each query is faster.
        "spark.sql.shuffle.partitions": "1",
        # The demo ends when no state waits for the watermark any more.
        "spark.sql.streaming.stateStore.rocksdb.trackTotalNumberOfRows": "true",
        # A run of minutes does not win back the cost of the optimising compiler and of a parallel
        # garbage collector. Leave these options out in a pipeline that runs for days.
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    },
)

EVENT = """
    type STRING, event_time TIMESTAMP, airport STRING, flight STRING, carrier STRING,
    tail_number STRING, origin STRING, destination STRING, scheduled_departure TIMESTAMP,
    delay_minutes BIGINT, miles BIGINT
"""
LATEST = "2 hours"  # Airports promise their reports within two hours.
EVERY = "1 second"

pipeline.stream("departures", schema=EVENT, event_time="event_time", watermark=LATEST)
pipeline.stream("arrivals", schema=EVENT, event_time="event_time", watermark=LATEST)

# The days are in 2013, and the database's commits are now. So each row has the time from which it
# is valid. Without valid_from, a version is valid from its commit.


def captured(table: str, key: str, schema: str) -> Table:
    """Declare a table of the database, whose changes are in a topic."""
    return pipeline.table(
        table,
        topic=f"demo.main.{table}",
        format="debezium",
        schema=f"{schema}, changed_at TIMESTAMP",
        key=key,
        valid_from="changed_at",
        keep_versions="366 days",
    )


captured("airlines", "carrier", "carrier STRING, name STRING")
captured(
    "aircraft",
    "tail_number",
    """
    tail_number STRING, operator STRING, manufacturer STRING, model STRING, seats INT, built INT
    """,
)


def departed(departures: StreamInput) -> DataFrame:
    """Return the departures without the cancellations of the same topic.

    The filter names what to leave out and not what to keep. Spark applies it before it computes the
    watermark, and clock signals (see ``events.clock_signal``) must reach the watermark.
    """
    return departures.df.where("type != 'cancellation'")


# Tumbling: departures and their mean delay, per airport and hour.


@pipeline.query(sink=TopicSink("departures.hourly", key="airport"), trigger=EVERY)
def hourly(departures: StreamInput) -> DataFrame:
    hours = departed(departures).groupBy(tumbling("event_time", "1 hour"), "airport")
    return hours.agg(
        f.count("*").alias("departures"),
        f.sum("delay_minutes").alias("delay_minutes"),
        (f.sum("delay_minutes") / f.count("*")).alias("mean_delay_minutes"),
    )


# Sliding: the mean delay of the last three hours, every half hour.


@pipeline.query(sink=TopicSink("departures.trend", key="airport"), trigger=EVERY)
def trend(departures: StreamInput) -> DataFrame:
    last = departed(departures).groupBy(sliding("event_time", "3 hours", "30 minutes"), "airport")
    return last.agg(
        f.count("*").alias("departures"),
        (f.sum("delay_minutes") / f.count("*")).alias("mean_delay_minutes"),
    )


# Hopping with gaps: a sample of six minutes every ten. This one is in SQL.

pipeline.sql(
    "sample",
    """
    SELECT hopping(event_time, '6 minutes', '10 minutes') AS window, airport,
           count(*) AS departures, sum(miles) AS miles
    FROM departures WHERE type != 'cancellation' GROUP BY 1, 2
    """,
    sink=TopicSink("departures.sample", key="airport"),
    trigger=EVERY,
)


# Session: the departures of an aircraft until it has not left New York for six hours.


@pipeline.query(sink=TopicSink("aircraft.bursts", key="tail_number"), trigger=EVERY)
def bursts(departures: StreamInput) -> DataFrame:
    bursts = departed(departures).groupBy(session("event_time", "6 hours"), "tail_number")
    return bursts.agg(f.count("*").alias("departures"), f.sum("miles").alias("miles")).where(
        "departures > 1"
    )


# Stream and stream: each flight with its arrival. A flight without an arrival within 13 hours was
# cancelled, or landed elsewhere.


@pipeline.query(sink=TopicSink("flights.outcomes", key="flight"), trigger=EVERY)
def outcomes(departures: StreamInput, arrivals: StreamInput) -> DataFrame:
    landed = arrivals.df.selectExpr(
        "flight",
        "origin",
        "scheduled_departure",
        "event_time AS landed",
        "delay_minutes AS arrival_delay_minutes",
    )
    pairs = stream_stream(
        departures.df,
        landed,
        on=["flight", "origin", "scheduled_departure"],
        within=("0 minutes", "13 hours"),
        how="left",
    )
    return pairs.selectExpr(
        "flight",
        "origin",
        "destination",
        "scheduled_departure",
        """CASE WHEN type = 'cancellation' THEN 'cancelled'
                WHEN landed IS NULL THEN 'diverted' ELSE 'arrived' END AS outcome""",
        "delay_minutes AS departure_delay_minutes",
        "landed",
        "arrival_delay_minutes",
    )


# Stream and table: each departure with the row of its aircraft at that time, if there was one.


@pipeline.query(sink=TopicSink("departures.enriched", key="flight"), trigger=EVERY)
def enriched(departures: StreamInput, aircraft: TableInput) -> DataFrame:
    left = departures.df.where("type = 'departure'").select(
        "flight", "origin", "destination", "event_time", "delay_minutes", "tail_number"
    )
    return enrich_as_of(left, aircraft, "tail_number", "event_time")


# Table and table: each aircraft with the name of its airline, as a view that is kept current.


@pipeline.query(sink=ChangelogSink("fleet", key="tail_number"), mode="update", trigger=EVERY)
def fleet(aircraft: TableInput, airlines: TableInput) -> DataFrame:
    return join_tables(
        aircraft, airlines, foreign_key={"operator": "carrier"}, how="left", right_prefix="airline_"
    )


# Alerts: hours in which an airport's mean delay differs from that of its last 24 hours. This is a
# control chart: the mean of n departures is expected within a few times deviation / sqrt(n).


@pipeline.query(sink=TopicSink("departures.alerts", key="airport"), trigger=EVERY)
def alerts(departures: StreamInput) -> DataFrame:
    hours = (
        departed(departures)
        .groupBy(tumbling("event_time", "1 hour"), "airport")
        .agg(
            f.count("*").alias("n"),
            f.sum("delay_minutes").alias("total"),
            f.sum(f.col("delay_minutes") * f.col("delay_minutes")).alias("squares"),
        )
        .withColumnRenamed("window", "hour")
    )
    # A window of a day and an hour: its newest hour is compared with the others.
    days = hours.groupBy(sliding("hour", "25 hours", "1 hour"), "airport").agg(
        f.max_by(f.struct("hour", "n", "total", "squares"), "hour.end").alias("now"),
        f.sum("n").alias("n"),
        f.sum("total").alias("total"),
        f.sum("squares").alias("squares"),
    )
    compared = days.where("now.hour.end = window.end").selectExpr(
        "airport",
        "now.hour AS hour",
        "now.n AS departures",
        "now.total / now.n AS mean_delay_minutes",
        "n - now.n AS usual_departures",
        "(total - now.total) / (n - now.n) AS usual_delay_minutes",
        """sqrt(((n - now.n) * (squares - now.squares) - (total - now.total) * (total - now.total))
           / ((n - now.n) * (n - now.n))) AS deviation""",
    )
    return compared.where(
        """departures >= 5 AND usual_departures >= 100
           AND mean_delay_minutes > usual_delay_minutes + 4 * deviation / sqrt(departures)"""
    )


# A follower outside of the log: a search index of the aircraft, in step with the database.


def add_search_index(folder: Path) -> None:
    """Declare the query that keeps the index. It needs the package tantivy, so it is a choice."""
    sink = TantivySink("tail_number", folder, text=("manufacturer", "model"))

    @pipeline.query(sink=sink, trigger=EVERY)
    def search(aircraft: TableInput) -> DataFrame:
        return aircraft.changes


def use_topics(topics: Mapping[str, str]) -> None:
    """Read tables from other topics, by the table: those of another schema of the database."""
    for place, table in enumerate(pipeline.tables):
        if table.name in topics:
            source = CapturedTopic(topics[table.name])
            pipeline.tables[place] = replace(table, source=source)
