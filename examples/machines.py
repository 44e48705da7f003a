"""The hottest six minutes of every ten, per machine, kept in a table of a SQLite file; in SQL.

    tidemill pipeline run examples/machines.py

In update mode a row is written whenever it has changed, so the table is always as new as the
readings are. Writing a batch once more changes nothing: rows are guarded by a version.
"""

from tidemill.spark.pipeline import Pipeline
from tidemill.spark.sinks import SqliteSink

pipeline = Pipeline("machines")

pipeline.stream(
    "readings",
    schema="machine STRING, degrees DOUBLE, at TIMESTAMP",
    event_time="at",
    watermark="2 minutes",
)
pipeline.sql(
    "hottest",
    """
    WITH windows AS (
        SELECT hopping(at, '6 minutes', '10 minutes') AS window, machine, max(degrees) AS degrees
        FROM readings GROUP BY 1, 2
    )
    SELECT machine, window.start AS since, degrees FROM windows
    """,
    sink=SqliteSink("hottest", key=["machine", "since"], path="machines.db"),
    mode="update",
)
