"""The pipeline: what is rated together, and how often what was rated, for each day.

    tidemill pipeline run pipeline.py --until-caught-up

Both results are windows that are written once, when they are final. So what was known on the
evening of a day can be asked at any later time, and the answer is always the same.
"""

import os

from tidemill.spark import Pipeline, TopicSink, sliding, stream_stream, tumbling

BREAK = os.environ.get("EXAMPLE_BREAK")  # a rule that is broken on purpose: see the README
WITHIN = "5 minutes" if BREAK == "within" else "1 minute"
WEEK = "6 days" if BREAK == "week" else "7 days"

pipeline = Pipeline("personalisation")

# The topic is read twice, because it is joined with itself. Its one partition is in time order.
for name in ("first", "second"):
    pipeline.stream(
        name,
        topic="ratings",
        schema="user INT, item INT, at TIMESTAMP",
        event_time="at",
        timestamp_format="epoch_s",
        watermark="1 minute",
        max_offsets_per_trigger=20_000,
        dead_letters=None,
    )


@pipeline.query(sink=TopicSink("coviewed", key="item"))
def coviewed(first, second):
    """Count for each day the pairs of items that a user has rated within a minute."""
    then = second.df.selectExpr("user", "item AS other", "at AS then")
    pairs = stream_stream(first.df, then, on="user", within=("0 seconds", WITHIN))
    once = pairs.filter("item < other OR (item > other AND then > at)")
    daily = once.groupBy(tumbling("then", "1 day"), "item", "other")
    return daily.count().selectExpr("unix_seconds(window.end) AS until", "item", "other", "count")


@pipeline.query(sink=TopicSink("trending", key="item"))
def trending(first):
    """Count the ratings of each item in seven days, every day."""
    weekly = first.df.groupBy(sliding("at", WEEK, "1 day"), "item")
    return weekly.count().selectExpr("unix_seconds(window.end) AS until", "item", "count")
