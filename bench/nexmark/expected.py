"""Computes the results of Nexmark's queries over all events in one batch, with DuckDB.

The closing records are part of the results without a window, and of no window, because no record
after them moves the watermark past their windows. Must not know: Spark, topics.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import duckdb

from bench.nexmark.generator import CLOSING_ID, Events
from bench.nexmark.queries import (
    DOLLARS_TO_EUROS,
    GAP_S,
    Q2_MODULUS,
    Q3_CATEGORY,
    Q3_STATES,
    SLIDE_S,
    WINDOW_S,
)
from bench.nexmark.rows import Digest, digest

_WINDOW_MS, _SLIDE_MS, _GAP_MS = WINDOW_S * 1000, SLIDE_S * 1000, GAP_S * 1000

_SQL = {
    "q0": "SELECT auction, bidder, price, dateTime * 1000, extra FROM bids",
    "q1": f"""
        SELECT auction, bidder, price * {DOLLARS_TO_EUROS}::DOUBLE, dateTime * 1000, extra
        FROM bids""",
    "q2": f"SELECT auction, price FROM bids WHERE auction % {Q2_MODULUS} = 0",
    "q3": f"""
        SELECT p.name, p.city, p.state, a.id FROM auctions a JOIN persons p ON a.seller = p.id
        WHERE a.category = {Q3_CATEGORY} AND p.state IN {Q3_STATES}""",
    "q4": f"""
        WITH closed AS (
            SELECT a.id, a.category, a.dateTime - a.dateTime % {_WINDOW_MS} AS start,
                   max(b.price) AS price
            FROM auctions a JOIN bids b ON a.id = b.auction
            WHERE b.dateTime BETWEEN a.dateTime AND a.expires AND a.id <> {CLOSING_ID}
            GROUP BY ALL)
        SELECT start * 1000, category, avg(price) FROM closed GROUP BY ALL""",
    "q5": f"""
        WITH counted AS (
            SELECT dateTime - dateTime % {_SLIDE_MS} - step * {_SLIDE_MS} AS start, auction,
                   count(*) AS bids
            FROM bids, range({WINDOW_S // SLIDE_S}) AS steps(step)
            WHERE auction <> {CLOSING_ID}
            GROUP BY ALL),
        best AS (SELECT start, max((bids, auction)) AS best FROM counted GROUP BY ALL)
        SELECT start * 1000, best[2], best[1] FROM best""",
    "q7": f"""
        WITH best AS (
            SELECT dateTime - dateTime % {_WINDOW_MS} AS start,
                   max((price, dateTime, auction, bidder)) AS best
            FROM bids WHERE auction <> {CLOSING_ID} GROUP BY ALL)
        SELECT start * 1000, best[3], best[4], best[1], best[2] * 1000 FROM best""",
    "q8": f"""
        SELECT DISTINCT (p.dateTime - p.dateTime % {_WINDOW_MS}) * 1000, p.id, p.name
        FROM persons p JOIN auctions a ON a.seller = p.id
             AND p.dateTime // {_WINDOW_MS} = a.dateTime // {_WINDOW_MS}
        WHERE p.id <> {CLOSING_ID}""",
    "q11": f"""
        WITH marked AS (
            SELECT bidder, dateTime, coalesce(dateTime - lag(dateTime) OVER each > {_GAP_MS}, true)
                   AS is_first
            FROM bids WHERE bidder <> {CLOSING_ID}
            WINDOW each AS (PARTITION BY bidder ORDER BY dateTime)),
        numbered AS (
            SELECT bidder, dateTime, sum(is_first::INT) OVER (
                PARTITION BY bidder ORDER BY dateTime ROWS UNBOUNDED PRECEDING) AS number
            FROM marked)
        SELECT bidder, min(dateTime) * 1000, (max(dateTime) + {_GAP_MS}) * 1000, count(*)
        FROM numbered GROUP BY bidder, number""",
}


def expected(events: Events, query: str) -> Digest:
    """Return the digest of a query's result.

    Args:
        events: All events, with the closing records.
        query: Name of the query.
    """
    return digest(result(events, query))


def result(events: Events, query: str) -> Iterator[tuple[Any, ...]]:
    """Return the rows of a query's result in canonical form, in any order."""
    with duckdb.connect() as connection:
        connection.execute("SET threads = 2")
        connection.register("persons", events.persons)
        connection.register("auctions", events.auctions)
        connection.register("bids", events.bids)
        cursor = connection.execute(_SQL[query])
        while rows := cursor.fetchmany(50_000):
            yield from rows
