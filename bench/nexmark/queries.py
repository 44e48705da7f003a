"""The topics of Nexmark, and the queries that are measured, with the columns of their results.

Must not know: Spark, how results are computed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Kind = Literal["integer", "number", "text", "time"]

PERSONS, AUCTIONS, BIDS = "nexmark.person", "nexmark.auction", "nexmark.bid"
TOPICS: Mapping[str, str] = {"person": PERSONS, "auction": AUCTIONS, "bid": BIDS}

SCHEMAS: Mapping[str, str] = {
    "person": (
        "id BIGINT, name STRING, emailAddress STRING, creditCard STRING, city STRING, "
        "state STRING, dateTime TIMESTAMP, extra STRING"
    ),
    "auction": (
        "id BIGINT, itemName STRING, description STRING, initialBid BIGINT, reserve BIGINT, "
        "dateTime TIMESTAMP, expires TIMESTAMP, seller BIGINT, category BIGINT, extra STRING"
    ),
    "bid": (
        "auction BIGINT, bidder BIGINT, price BIGINT, channel STRING, url STRING, "
        "dateTime TIMESTAMP, extra STRING"
    ),
}
"""Name of a stream -> all columns of its records, as DDL."""

WINDOW_S, SLIDE_S, GAP_S = 10, 2, 10
"""Length of windows, slide of the sliding window, and gap of the sessions, in seconds."""
WATERMARK = "4 seconds"
LONGEST_AUCTION_S = 1
"""No auction lasts longer, so the join of bids with their auction has this bound."""
Q2_MODULUS = 123
Q3_CATEGORY, Q3_STATES = 10, ("OR", "ID", "CA")
DOLLARS_TO_EUROS = 0.908


@dataclass(frozen=True)
class Query:
    """A query.

    Attributes:
        what: One line about it.
        columns: Name -> kind of each column of the result.
        inputs: The streams that it reads.
    """

    what: str
    columns: Mapping[str, Kind]
    inputs: tuple[str, ...] = ("bid",)


_BID: Mapping[str, Kind] = {"auction": "integer", "bidder": "integer"}

QUERIES: Mapping[str, Query] = {
    "q0": Query(
        "bids, unchanged", {**_BID, "price": "integer", "dateTime": "time", "extra": "text"}
    ),
    "q1": Query(
        "bids, with prices in euros",
        {**_BID, "price": "number", "dateTime": "time", "extra": "text"},
    ),
    "q2": Query("bids for some auctions", {"auction": "integer", "price": "integer"}),
    "q3": Query(
        "who sells in a category and in some states (join without a bound of time)",
        {"name": "text", "city": "text", "state": "text", "id": "integer"},
        ("auction", "person"),
    ),
    "q4": Query(
        "average closing price of a category, each 10 s (join, two aggregations)",
        {"start": "time", "category": "integer", "price": "number"},
        ("auction", "bid"),
    ),
    "q5": Query(
        "auction with the most bids in 10 s, every 2 s (sliding, two aggregations)",
        {"start": "time", "auction": "integer", "bids": "integer"},
    ),
    "q7": Query(
        "highest bid of each 10 s (tumbling)",
        {"start": "time", **_BID, "price": "integer", "dateTime": "time"},
    ),
    "q8": Query(
        "persons who sell in the 10 s in which they are new (tumbling, join)",
        {"start": "time", "id": "integer", "name": "text"},
        ("person", "auction"),
    ),
    "q11": Query(
        "bids of a bidder in each session, gap 10 s",
        {"bidder": "integer", "start": "time", "end": "time", "bids": "integer"},
    ),
}
