"""Names and schemas of Nexmark's topics. Must not know: Spark, Kafka clients."""

from __future__ import annotations

from collections.abc import Mapping

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
