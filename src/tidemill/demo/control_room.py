"""The flights control room: a pipeline to read. ``tidemill demo`` runs it, and so does

    tidemill pipeline run src/tidemill/demo/control_room.py -b BROKERS

It knows topics and what is in their records, not how these came to be. Airports report departures
and arrivals, up to two hours late and out of order; registries say which aircraft and airlines
there are, and change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as f

from tidemill.spark.joins import enrich, join_tables, stream_stream
from tidemill.spark.pipeline import Pipeline
from tidemill.spark.sinks import ChangelogSink, TopicSink
from tidemill.spark.windows import session, sliding, tumbling

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tidemill.spark.inputs import StreamInput, TableInput

pipeline = Pipeline(
    "control-room",
    spark={
        # Few events and many queries: one partition of state each is quicker than two.
        "spark.sql.shuffle.partitions": "1",
        # For a run of minutes, what the optimising compiler and a parallel collector cost is not
        # won back. A pipeline that is to stay leaves these away.
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
pipeline.table(
    "aircraft",
    schema="""
        tail_number STRING, operator STRING, manufacturer STRING, model STRING, seats INT, built INT
    """,
    key="tail_number",
)
pipeline.table("airlines", schema="carrier STRING, name STRING", key="carrier")


def departed(departures: StreamInput) -> DataFrame:
    """Departures without the cancellations, which come in the same topic.

    Written as what is left out, and not as what is kept: Spark filters before it looks at event
    times, and other types of records (the clock signals of a quiet night) are to be seen there.
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


# Sliding: the mean delay over the last three hours, every half an hour.


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


# Session: bursts of an aircraft's activity, until it has not left New York for six hours.


@pipeline.query(sink=TopicSink("aircraft.bursts", key="tail_number"), trigger=EVERY)
def bursts(departures: StreamInput) -> DataFrame:
    bursts = departed(departures).groupBy(session("event_time", "6 hours"), "tail_number")
    return bursts.agg(f.count("*").alias("departures"), f.sum("miles").alias("miles")).where(
        "departures > 1"
    )


# Stream and stream: each flight with its arrival. Where none has come within 13 hours there will be
# none: the flight was cancelled, or landed elsewhere.


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


# Stream and table: each departure with what the registry now knows of the aircraft, if it does.


@pipeline.query(sink=TopicSink("departures.enriched", key="flight"), trigger=EVERY)
def enriched(departures: StreamInput, aircraft: TableInput) -> DataFrame:
    left = departures.df.where("type = 'departure'").select(
        "flight", "origin", "destination", "event_time", "delay_minutes", "tail_number"
    )
    return enrich(left, aircraft, on="tail_number").drop("operator")


# Table and table: each aircraft with the name of the airline that operates it, kept current.


@pipeline.query(sink=ChangelogSink("fleet", key="tail_number"), mode="update", trigger=EVERY)
def fleet(aircraft: TableInput, airlines: TableInput) -> DataFrame:
    return join_tables(
        aircraft, airlines, foreign_key={"operator": "carrier"}, how="left", right_prefix="airline_"
    )


# Alerts: hours in which an airport's delay breaks away from its own last 24 hours, as a control
# chart shows it: the mean of n departures is expected within a few times deviation / sqrt(n).


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
    # A day and an hour: the newest hour in it is judged by the others.
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
