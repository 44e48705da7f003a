"""Keep the highest temperature of each machine in a SQLite table, for six minutes of every ten.

    tidemill pipeline run examples/machines.py

The query is in SQL. In update mode a row is written whenever it changes, so the table is as current
as the readings. A version guards each row, so writing a batch twice changes nothing.
"""

from tidemill.spark import Pipeline, SqliteSink

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
