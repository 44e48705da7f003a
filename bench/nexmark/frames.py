"""Nexmark's queries as functions of DataFrames, for both contenders.

They differ in the functions that make windows, and in a join with a bound of time: tidemill's, or
Spark's public ones (``window``, ``session_window``). Must not know: how queries are run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from bench.nexmark.queries import (
    DOLLARS_TO_EUROS,
    GAP_S,
    LONGEST_AUCTION_S,
    Q2_MODULUS,
    Q3_CATEGORY,
    Q3_STATES,
    SLIDE_S,
    WINDOW_S,
)
from tidemill.spark import session, sliding, stream_stream, tumbling

WINDOW, SLIDE, GAP = (f"{seconds} seconds" for seconds in (WINDOW_S, SLIDE_S, GAP_S))


@dataclass(frozen=True)
class Functions:
    """The functions of a contender.

    Attributes:
        rows: Returns the DataFrame of an input.
        tumbling: Returns the column of a tumbling window.
        sliding: The same for a sliding window.
        session: The same for a session window.
        bids_of: Joins auctions with their bids.
    """

    rows: Callable[[Any], Any]
    tumbling: Callable[[], Any]
    sliding: Callable[[], Any]
    session: Callable[[], Any]
    bids_of: Callable[[Any, Any], Any]


TIDEMILL = Functions(
    rows=lambda stream: stream.df,
    tumbling=lambda: tumbling("dateTime", WINDOW),
    sliding=lambda: sliding("dateTime", WINDOW, SLIDE),
    session=lambda: session("dateTime", GAP),
    bids_of=lambda auctions, bids: stream_stream(
        *(auctions, bids),
        on={"id": "auction"},
        within=("0 seconds", f"{LONGEST_AUCTION_S} seconds"),
    ).where("bidTime <= expires"),
)


def plain() -> Functions:
    """Return the functions of Spark."""
    from pyspark.sql import functions as f

    bound = (
        "id = auction AND bidTime >= dateTime AND bidTime <= expires "
        f"AND bidTime <= dateTime + INTERVAL {LONGEST_AUCTION_S} SECONDS"
    )
    return Functions(
        rows=lambda frame: frame,
        tumbling=lambda: f.window("dateTime", WINDOW).alias("window"),
        sliding=lambda: f.window("dateTime", WINDOW, SLIDE).alias("window"),
        session=lambda: f.session_window("dateTime", GAP).alias("window"),
        bids_of=lambda auctions, bids: auctions.join(bids, f.expr(bound)),
    )


def q0(bid: Any, of: Functions = TIDEMILL) -> Any:
    return of.rows(bid).select("auction", "bidder", "price", "dateTime", "extra")


def q1(bid: Any, of: Functions = TIDEMILL) -> Any:
    euros = f"price * {DOLLARS_TO_EUROS}D AS price"
    return of.rows(bid).selectExpr("auction", "bidder", euros, "dateTime", "extra")


def q2(bid: Any, of: Functions = TIDEMILL) -> Any:
    return of.rows(bid).where(f"auction % {Q2_MODULUS} = 0").select("auction", "price")


def q3(auction: Any, person: Any, of: Functions = TIDEMILL) -> Any:
    wanted = of.rows(auction).where(f"category = {Q3_CATEGORY}")
    local = of.rows(person).where(f"state IN {Q3_STATES}")
    joined = wanted.alias("a").join(local.alias("p"), wanted.seller == local.id)
    return joined.select("p.name", "p.city", "p.state", "a.id")


def q4(auction: Any, bid: Any, of: Functions = TIDEMILL) -> Any:
    bids = of.rows(bid).selectExpr("auction", "price", "dateTime AS bidTime")
    valid = of.bids_of(of.rows(auction).select("id", "category", "dateTime", "expires"), bids)
    closed = valid.groupBy(of.tumbling(), "id", "category").agg({"price": "max"})
    average = closed.groupBy("window", "category").agg({"max(price)": "avg"})
    return average.selectExpr("window.start", "category", "`avg(max(price))` AS price")


def q5(bid: Any, of: Functions = TIDEMILL) -> Any:
    from pyspark.sql import functions as f

    counted = of.rows(bid).groupBy(of.sliding(), "auction").agg(f.count("*").alias("bids"))
    best = counted.groupBy("window").agg(f.max(f.struct("bids", "auction")).alias("best"))
    return best.select("window.start", "best.auction", "best.bids")


def q7(bid: Any, of: Functions = TIDEMILL) -> Any:
    from pyspark.sql import functions as f

    highest = f.max(f.struct("price", "dateTime", "auction", "bidder")).alias("best")
    best = of.rows(bid).groupBy(of.tumbling()).agg(highest)
    return best.select("window.start", "best.auction", "best.bidder", "best.price", "best.dateTime")


def q8(person: Any, auction: Any, of: Functions = TIDEMILL) -> Any:
    new = of.rows(person).groupBy(of.tumbling(), "id", "name").count()
    selling = of.rows(auction).groupBy(of.tumbling(), "seller").count()
    joined = new.alias("new").join(
        selling.alias("selling"),
        (new["window"] == selling["window"]) & (new["id"] == selling["seller"]),
    )
    return joined.selectExpr("new.window.start", "id", "name")


def q11(bid: Any, of: Functions = TIDEMILL) -> Any:
    from pyspark.sql import functions as f

    counted = of.rows(bid).groupBy(of.session(), "bidder").agg(f.count("*").alias("bids"))
    return counted.select("bidder", "window.start", "window.end", "bids")


FRAMES: Mapping[str, Callable[..., Any]] = {
    each.__name__: each for each in (q0, q1, q2, q3, q4, q5, q7, q8, q11)
}
"""Name of a query -> its function."""
