"""Nexmark's queries as pipelines of tidemill, as a user writes them.

Must not know: how they are run and measured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

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
from tidemill.spark import Pipeline, TopicSink, session, sliding, stream_stream, tumbling

WINDOW, SLIDE, GAP = (f"{seconds} seconds" for seconds in (WINDOW_S, SLIDE_S, GAP_S))


def pipeline(query: str, topic: str) -> Pipeline:
    """Return the pipeline of one query.

    Args:
        query: Name of the query.
        topic: Topic of the result.
    """
    made = Pipeline(topic)
    for name in QUERIES[query].inputs:
        made.stream(
            name,
            topic=TOPICS[name],
            schema=SCHEMAS[name],
            event_time="dateTime",
            watermark=WATERMARK,
        )
    made.query(sink=TopicSink(topic))(_BUILD[query])
    return made


def q0(bid: Any) -> Any:
    return bid.df.select("auction", "bidder", "price", "dateTime", "extra")


def q1(bid: Any) -> Any:
    euros = f"price * {DOLLARS_TO_EUROS}D AS price"
    return bid.df.selectExpr("auction", "bidder", euros, "dateTime", "extra")


def q2(bid: Any) -> Any:
    return bid.df.where(f"auction % {Q2_MODULUS} = 0").select("auction", "price")


def q3(auction: Any, person: Any) -> Any:
    wanted = auction.df.where(f"category = {Q3_CATEGORY}")
    local = person.df.where(f"state IN {Q3_STATES}")
    joined = wanted.join(local, wanted.seller == local.id)
    return joined.select("name", "city", "state", "auction.id")


def q4(auction: Any, bid: Any) -> Any:
    bids = bid.df.selectExpr("auction", "price", "dateTime AS bidTime")
    joined = stream_stream(
        auction.df.select("id", "category", "dateTime", "expires"),
        bids,
        on={"id": "auction"},
        within=("0 seconds", f"{LONGEST_AUCTION_S} seconds"),
    )
    valid = joined.where("bidTime <= expires")
    closed = valid.groupBy(tumbling("dateTime", WINDOW), "id", "category").agg({"price": "max"})
    average = closed.groupBy("window", "category").agg({"max(price)": "avg"})
    return average.selectExpr("window.start", "category", "`avg(max(price))` AS price")


def q5(bid: Any) -> Any:
    from pyspark.sql import functions as f

    counted = bid.df.groupBy(sliding("dateTime", WINDOW, SLIDE), "auction").agg(
        f.count("*").alias("bids")
    )
    best = counted.groupBy("window").agg(f.max(f.struct("bids", "auction")).alias("best"))
    return best.select("window.start", "best.auction", "best.bids")


def q7(bid: Any) -> Any:
    from pyspark.sql import functions as f

    best = bid.df.groupBy(tumbling("dateTime", WINDOW)).agg(
        f.max(f.struct("price", "dateTime", "auction", "bidder")).alias("best")
    )
    return best.select("window.start", "best.auction", "best.bidder", "best.price", "best.dateTime")


def q8(person: Any, auction: Any) -> Any:
    new = person.df.groupBy(tumbling("dateTime", WINDOW), "id", "name").count()
    selling = auction.df.groupBy(tumbling("dateTime", WINDOW), "seller").count()
    joined = new.alias("new").join(
        selling.alias("selling"),
        (new["window"] == selling["window"]) & (new["id"] == selling["seller"]),
    )
    return joined.selectExpr("new.window.start", "id", "name")


def q11(bid: Any) -> Any:
    from pyspark.sql import functions as f

    counted = bid.df.groupBy(session("dateTime", GAP), "bidder").agg(f.count("*").alias("bids"))
    return counted.select("bidder", "window.start", "window.end", "bids")


_BUILD: Mapping[str, Callable[..., Any]] = {
    each.__name__: each for each in (q0, q1, q2, q3, q4, q5, q7, q8, q11)
}
