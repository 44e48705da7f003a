"""Runs Nexmark's queries in Flink SQL. It runs in a Python that has apache-flink.

    python -m bench.nexmark.flink_client BOOTSTRAP JAR

Each line of its input is a query and the topic of its result; it prints ``ready`` when it has
started, and ``done`` after each query. Must not know: tidemill, Kafka clients, measurements.
"""

from __future__ import annotations

import re
import sys
from typing import Any

from bench.nexmark.queries import (
    DOLLARS_TO_EUROS,
    GAP_S,
    LONGEST_AUCTION_S,
    Q2_MODULUS,
    Q3_CATEGORY,
    Q3_STATES,
    QUERIES,
    SCHEMAS,
    SLIDE_S,
    TOPICS,
    WATERMARK,
    WINDOW_S,
)

PARALLELISM = 2

_OPTIONS = (
    "'connector' = 'kafka', 'topic' = '{topic}', "
    "'properties.bootstrap.servers' = '{bootstrap}', "
    "'format' = 'json', 'json.timestamp-format.standard' = 'ISO-8601'"
)
_READING = (
    ", 'scan.startup.mode' = 'earliest-offset', 'scan.bounded.mode' = 'latest-offset', "
    "'properties.group.id' = 'nexmark-flink'"
)
_TYPES = {"integer": "BIGINT", "number": "DOUBLE", "text": "STRING", "time": "TIMESTAMP_LTZ(3)"}
_START = "CAST(window_start AS TIMESTAMP_LTZ(3))"
_END = "CAST(window_end AS TIMESTAMP_LTZ(3))"
_WINDOWS = "window_start, window_end"
_REAL = "(SELECT * FROM bid WHERE auction <> 1)"
"""Bids without the closing one: the end of a bounded source closes all windows, its own too."""

_SQL = {
    "q0": "SELECT auction, bidder, price, dateTime, extra FROM bid",
    "q1": f"""
        SELECT auction, bidder, price * CAST({DOLLARS_TO_EUROS} AS DOUBLE), dateTime, extra
        FROM bid""",
    "q2": f"SELECT auction, price FROM bid WHERE MOD(auction, {Q2_MODULUS}) = 0",
    "q3": f"""
        SELECT p.name, p.city, p.state, a.id FROM auction a JOIN person p ON a.seller = p.id
        WHERE a.category = {Q3_CATEGORY} AND p.state IN {Q3_STATES}""",
    "q4": f"""
        WITH valid AS (
            SELECT a.id, a.category, a.dateTime AS begins, b.price
            FROM auction a JOIN bid b ON a.id = b.auction
            AND b.dateTime BETWEEN a.dateTime
                AND a.dateTime + INTERVAL '{LONGEST_AUCTION_S}' SECOND
            AND b.dateTime <= a.expires WHERE a.id <> 1),
        closed AS (
            SELECT {_WINDOWS}, id, category, MAX(price) AS price FROM TABLE(
                TUMBLE(TABLE valid, DESCRIPTOR(begins), INTERVAL '{WINDOW_S}' SECOND))
            GROUP BY {_WINDOWS}, id, category)
        SELECT {_START}, category, AVG(CAST(price AS DOUBLE)) FROM closed
        GROUP BY {_WINDOWS}, category""",
    "q5": f"""
        WITH counted AS (
            SELECT {_WINDOWS}, auction, COUNT(*) AS bids FROM TABLE(
                HOP(TABLE real_bid, DESCRIPTOR(dateTime), INTERVAL '{SLIDE_S}' SECOND,
                    INTERVAL '{WINDOW_S}' SECOND))
            GROUP BY {_WINDOWS}, auction),
        ranked AS (
            SELECT *, ROW_NUMBER() OVER (
                PARTITION BY {_WINDOWS} ORDER BY bids DESC, auction DESC) AS place
            FROM counted)
        SELECT {_START}, auction, bids FROM ranked WHERE place = 1""",
    "q7": f"""
        WITH ranked AS (
            SELECT *, ROW_NUMBER() OVER (
                PARTITION BY {_WINDOWS}
                ORDER BY price DESC, dateTime DESC, auction DESC, bidder DESC) AS place
            FROM TABLE(
                TUMBLE(TABLE real_bid, DESCRIPTOR(dateTime), INTERVAL '{WINDOW_S}' SECOND)))
        SELECT {_START}, auction, bidder, price, dateTime FROM ranked WHERE place = 1""",
    "q8": f"""
        WITH arrived AS (
            SELECT {_WINDOWS}, id, name FROM TABLE(
                TUMBLE(TABLE person, DESCRIPTOR(dateTime), INTERVAL '{WINDOW_S}' SECOND))
            WHERE id <> 1 GROUP BY {_WINDOWS}, id, name),
        selling AS (
            SELECT {_WINDOWS}, seller FROM TABLE(
                TUMBLE(TABLE auction, DESCRIPTOR(dateTime), INTERVAL '{WINDOW_S}' SECOND))
            GROUP BY {_WINDOWS}, seller)
        SELECT CAST(arrived.window_start AS TIMESTAMP_LTZ(3)), id, name FROM arrived JOIN selling
        ON arrived.window_start = selling.window_start AND arrived.window_end = selling.window_end
        AND id = seller""",
    "q11": f"""
        SELECT bidder, {_START}, {_END}, COUNT(*) FROM TABLE(
            SESSION(TABLE real_bid PARTITION BY bidder, DESCRIPTOR(dateTime),
                    INTERVAL '{GAP_S}' SECOND))
        GROUP BY {_WINDOWS}, bidder""",
}


def quoted(text: str) -> str:
    """Quote the column ``dateTime``, which is a reserved word in Flink's SQL."""
    return re.sub(r"\bdateTime\b", "`dateTime`", text)


def environment(bootstrap: str, jar: str) -> Any:
    """Return a table environment that has the topics as tables."""
    from pyflink.table import EnvironmentSettings, TableEnvironment

    tables = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
    config = tables.get_config()
    config.set("pipeline.jars", f"file://{jar}")
    config.set("parallelism.default", str(PARALLELISM))
    config.set("table.local-time-zone", "UTC")
    for name, schema in SCHEMAS.items():
        columns = quoted(schema.replace("TIMESTAMP", "TIMESTAMP_LTZ(3)"))
        delay, unit = WATERMARK.split()
        watermark = f"`dateTime` - INTERVAL '{delay}' {unit.rstrip('s').upper()}"
        options = _OPTIONS.format(topic=TOPICS[name], bootstrap=bootstrap) + _READING
        tables.execute_sql(
            f"CREATE TABLE {name} ({columns}, WATERMARK FOR `dateTime` AS {watermark}) "
            f"WITH ({options})"
        )
    tables.execute_sql(f"CREATE VIEW real_bid AS {_REAL[1:-1]}")
    return tables


def run(tables: Any, bootstrap: str, query: str, topic: str) -> None:
    """Run one query to its end."""
    columns = ", ".join(f"`{n}` {_TYPES[kind]}" for n, kind in QUERIES[query].columns.items())
    options = _OPTIONS.format(topic=topic, bootstrap=bootstrap)
    tables.execute_sql(f"CREATE TABLE `{topic}` ({columns}) WITH ({options})")
    tables.execute_sql(f"INSERT INTO `{topic}` {quoted(_SQL[query])}").wait()


def main() -> None:
    bootstrap, jar = sys.argv[1:]
    tables = environment(bootstrap, jar)
    print("ready", flush=True)
    for line in sys.stdin:
        query, topic = line.split()
        run(tables, bootstrap, query, topic)
        print("done", flush=True)


if __name__ == "__main__":
    main()
