"""Nexmark's queries as plain Structured Streaming with Spark's own Kafka connector.

Only Spark's public functions are used: ``from_json``, ``window``, ``session_window``. Must not
know: tidemill, how queries are measured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pyspark.sql import functions as f

from bench.nexmark.queries import (
    DOLLARS_TO_EUROS,
    GAP_S,
    LONGEST_AUCTION_S,
    Q2_MODULUS,
    Q3_CATEGORY,
    Q3_STATES,
    QUERIES,
    SLIDE_S,
    WATERMARK,
    WINDOW_S,
)
from bench.nexmark.streams import SCHEMAS, TOPICS

WINDOW, SLIDE, GAP = (f"{seconds} seconds" for seconds in (WINDOW_S, SLIDE_S, GAP_S))


def start(spark: Any, bootstrap: str, query: str, topic: str, checkpoint: str) -> Any:
    """Start a query that reads what there is, writes its result to a topic, and ends.

    Args:
        spark: The session. Its class path has the connector.
        bootstrap: Address of the broker.
        query: Name of the query.
        topic: Topic of the result.
        checkpoint: Folder of the checkpoint.

    Returns:
        The streaming query.
    """
    inputs = [_stream(spark, bootstrap, name) for name in QUERIES[query].inputs]
    result = _BUILD[query](*inputs)
    return (
        result.select(f.to_json(f.struct(*result.columns)).alias("value"))
        .writeStream.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("topic", topic)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )


def _stream(spark: Any, bootstrap: str, name: str) -> Any:
    return (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", TOPICS[name])
        .option("startingOffsets", "earliest")
        .load()
        .select(f.from_json(f.col("value").cast("string"), SCHEMAS[name]).alias("v"))
        .select("v.*")
        .withWatermark("dateTime", WATERMARK)
    )


def q0(bid: Any) -> Any:
    return bid.select("auction", "bidder", "price", "dateTime", "extra")


def q1(bid: Any) -> Any:
    euros = f"price * {DOLLARS_TO_EUROS}D AS price"
    return bid.selectExpr("auction", "bidder", euros, "dateTime", "extra")


def q2(bid: Any) -> Any:
    return bid.where(f"auction % {Q2_MODULUS} = 0").select("auction", "price")


def q3(auction: Any, person: Any) -> Any:
    wanted = auction.where(f"category = {Q3_CATEGORY}")
    local = person.where(f"state IN {Q3_STATES}")
    joined = wanted.alias("a").join(local.alias("p"), f.expr("a.seller = p.id"))
    return joined.select("p.name", "p.city", "p.state", "a.id")


def q4(auction: Any, bid: Any) -> Any:
    left = auction.select("id", "category", "dateTime", "expires").alias("a")
    right = bid.selectExpr("auction", "price", "dateTime AS bidTime").alias("b")
    joined = left.join(
        right,
        f.expr(
            "id = auction AND bidTime >= dateTime AND bidTime <= expires "
            f"AND bidTime <= dateTime + INTERVAL {LONGEST_AUCTION_S} SECONDS"
        ),
    )
    closed = joined.groupBy(f.window("dateTime", WINDOW), "id", "category").agg(
        f.max("price").alias("price")
    )
    average = closed.groupBy("window", "category").agg(f.avg("price").alias("price"))
    return average.select("window.start", "category", "price")


def q5(bid: Any) -> Any:
    counted = bid.groupBy(f.window("dateTime", WINDOW, SLIDE), "auction").agg(
        f.count("*").alias("bids")
    )
    best = counted.groupBy("window").agg(f.max(f.struct("bids", "auction")).alias("best"))
    return best.select("window.start", "best.auction", "best.bids")


def q7(bid: Any) -> Any:
    best = bid.groupBy(f.window("dateTime", WINDOW)).agg(
        f.max(f.struct("price", "dateTime", "auction", "bidder")).alias("best")
    )
    return best.select("window.start", "best.auction", "best.bidder", "best.price", "best.dateTime")


def q8(person: Any, auction: Any) -> Any:
    new = person.groupBy(f.window("dateTime", WINDOW), "id", "name").count()
    selling = auction.groupBy(f.window("dateTime", WINDOW), "seller").count()
    joined = new.alias("new").join(
        selling.alias("selling"),
        f.expr("new.window = selling.window AND new.id = selling.seller"),
    )
    return joined.select("new.window.start", "new.id", "new.name")


def q11(bid: Any) -> Any:
    counted = bid.groupBy(f.session_window("dateTime", GAP).alias("window"), "bidder").agg(
        f.count("*").alias("bids")
    )
    return counted.select("bidder", "window.start", "window.end", "bids")


_BUILD: Mapping[str, Callable[..., Any]] = {
    each.__name__: each for each in (q0, q1, q2, q3, q4, q5, q7, q8, q11)
}
