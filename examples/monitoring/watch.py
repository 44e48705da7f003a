"""Rules about a service as a pipeline: alert events for each window, and incidents of the log.

    tidemill pipeline run examples/monitoring/watch.py

A record of ``service-alerts`` has labels, a value and a state, so an ``[[alert]]`` with
``measure = "events"`` fires and resolves what it says.
"""

from typing import NamedTuple

from pyspark.sql import functions as f

from tidemill.spark import Pipeline, TopicSink, enrich, session, sliding


class Limits(NamedTuple):
    starts: int = 3
    latency_ms: int = 200
    disk_percent: int = 90
    errors_percent: int = 5
    traffic_percent: int = 30
    incident_lines: int = 5


AT = Limits()

pipeline = Pipeline("monitoring", spark={"spark.sql.shuffle.partitions": "1"})
pipeline.stream(
    "metrics",
    schema="name STRING, type STRING, tags ARRAY<STRING>, timestamp TIMESTAMP, value DOUBLE",
    timestamp_format="epoch_ms",
    dead_letters=None,
)
pipeline.stream(
    "logs",
    schema="at TIMESTAMP, instance STRING, level STRING, message STRING",
    event_time="at",
    watermark="1 minute",
)
pipeline.table("usual", schema="hour STRING, requests BIGINT", key="hour")


def windows(metrics, logs):
    """Return what was measured and logged in ten minutes, at each instance."""
    # The bridge reports about itself, too, at the time of this machine.
    measured = metrics.df.filter("type <> 'listener'").withWatermark("timestamp", "1 minute")
    measured = measured.selectExpr(
        "timestamp AS at", "substring_index(tags[0], ':', -1) AS instance", "name", "value"
    )
    # No line is left out, because each one says how far the log is.
    starts = f.when(f.col("message") == "started", 1.0).otherwise(0.0)
    logged = logs.df.select("at", "instance", f.lit("starts").alias("name"), starts.alias("value"))
    named = lambda name: f.when(f.col("name") == name, f.col("value"))  # noqa: E731
    return (
        measured.union(logged)
        .groupBy(sliding("at", "10 minutes", "5 minutes"), "instance")
        .agg(
            *(f.sum(named(name)).alias(name) for name in ("requests", "errors", "starts")),
            f.avg(named("latency_ms")).alias("latency_ms"),
            f.max(named("disk_percent")).alias("disk_percent"),
        )
    )


@pipeline.query(sink=TopicSink("service-alerts", key="instance"))
def alerts(metrics, logs, usual):
    """The state of each rule, at the end of each window."""
    found = windows(metrics, logs).withColumn("hour", f.date_format("window.start", "HH"))
    found = enrich(found, usual, "hour", prefix="usual_")
    errors = 100 * found.errors
    rules = {
        "crash-loop": (found.starts, found.starts >= AT.starts),
        "high-latency": (found.latency_ms, found.latency_ms > AT.latency_ms),
        "disk-full": (found.disk_percent, found.disk_percent > AT.disk_percent),
        "failing-requests": (found.errors, errors > AT.errors_percent * found.requests),
        "no-traffic": (
            found.requests,
            100 * found.requests < AT.traffic_percent * found.usual_requests,
        ),
    }
    states = [
        f.struct(
            f.struct(f.lit(rule).alias("rule"), "instance").alias("labels"),
            f.coalesce(value, f.lit(0.0)).alias("value"),
            f.when(is_active, "firing").otherwise("resolved").alias("state"),
        )
        for rule, (value, is_active) in rules.items()
    ]
    at = f.col("window.end").alias("at")
    return found.select(at, "instance", f.explode(f.array(*states)).alias("of")).select(
        "at", "instance", "of.labels", "of.value", "of.state"
    )


@pipeline.query(sink=TopicSink("incidents", key="instance"))
def incidents(logs):
    """Errors and restarts of an instance, until five minutes pass without one."""
    bad = f.col("level").eqNullSafe("ERROR") | f.col("message").eqNullSafe("started")
    # Spark puts a filter before the watermark, unless it uses the time. So each line moves it.
    lines = logs.df.filter(bad | f.col("at").isNull())
    sessions = lines.groupBy(session("at", "5 minutes"), "instance").agg(f.count("*"))
    named = sessions.selectExpr(
        "window.start AS since",
        "window.end - INTERVAL 5 MINUTES AS until",
        "instance",
        "`count(1)` AS lines",
    )
    return named.filter(named.lines >= AT.incident_lines)
