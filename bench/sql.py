"""Compares one question in SQL on a topic of JSON records with other ways to the same answer.

The bare reader is our native reader and parser with a declared schema, straight into DuckDB: what
SQL adds is its price. confluent-kafka makes an object of each record, then DuckDB or pandas groups.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial

import duckdb
import pyarrow as pa
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from bench.compare import Comparison, Figures, ratio_of, typical
from bench.report import Aim, Section
from bench.run import Run
from bench.targets import tidemill
from tidemill import sql
from tidemill.reading.fetch import fetch
from tidemill.reading.parse.json_parser import JsonParser
from tidemill.reading.parse.schema import ParsedColumn, ParseSchema
from tidemill.reading.plan import FetchPlan
from tidemill.reading.ranges import OffsetRange

TOPIC = "orders"
QUESTION = f"SELECT item, count(*), sum(price) FROM {TOPIC} GROUP BY item"
_RATE = "M records/s"
NOTE = (
    "SELECT item, count(*), sum(price) ... GROUP BY item, over JSON records of about 90 bytes with "
    "100 items, in one partition. Each turn begins with a new client."
)
FIRST = (
    "import sys, tidemill.sql; "
    f"tidemill.sql.connect(sys.argv[1]).execute('SELECT * FROM {TOPIC} LIMIT 5').fetchall()"
)
ASKED = (
    "import sys, tidemill.sql; "
    f"found = tidemill.sql.connect(sys.argv[1]).execute('{QUESTION}').fetchall(); "
    "assert len(found) == 100"
)
SPARK = f"""
import sys
from tidemill.spark import spark_session
spark = spark_session("bench")
reader = spark.read.format("tidemill").option("kafka.bootstrap.servers", sys.argv[1])
reader = reader.option("subscribe", "{TOPIC}").option("value.format", "json")
reader = reader.schema("item STRING, price DOUBLE")
reader.load().createOrReplaceTempView("{TOPIC}")
assert len(spark.sql("{QUESTION}").collect()) == 100
"""


def section(run: Run) -> Section:
    """Measure the contenders in turns."""
    count = 200_000 if run.options.quick else 1_000_000
    grouped = Comparison(run, "SQL on a topic", [_RATE], base="bare reader", by=[_RATE], note=NOTE)
    first = Comparison(run, "SQL: the first rows of LIMIT 5", ["s"], base="imports")
    result = Comparison(run, "SQL: the result of a whole program", ["s"], base="Spark", by=["s"])
    with tidemill(run.options.folder) as target:
        servers = target.bootstrap
        fill(servers, count)
        contenders: dict[str, Callable[[], object]] = {
            "tidemill": partial(asked, servers),
            "bare reader": partial(bare, servers, count),
            "confluent-kafka, DuckDB": partial(through_duckdb, servers, count),
            "confluent-kafka, pandas": partial(through_pandas, servers, count),
        }
        turns = {name: partial(timed, work, count) for name, work in contenders.items()}
        rows = grouped.measure([f"{count} records"], turns)
        programs = {
            "tidemill": [sys.executable, "-c", FIRST, servers],
            "imports": [sys.executable, "-c", "import duckdb, pyarrow"],
        }
        found = first.measure(
            ["LIMIT 5"], {name: partial(program, line) for name, line in programs.items()}
        )
        whole = {
            "tidemill": [sys.executable, "-c", ASKED, servers],
            "Spark": [sys.executable, "-c", SPARK, servers],
        }
        result.measure(
            [f"{count} records"], {name: partial(program, line) for name, line in whole.items()}
        )
    ratio = ratio_of(rows["tidemill"], rows["bare reader"], _RATE)
    taken, imports = typical(found["tidemill"], "s"), typical(found["imports"], "s")
    assert ratio is not None
    assert taken is not None
    assert imports is not None
    return Section(
        "sql",
        [grouped.table(), first.table(), result.table()],
        [
            Aim("SQL: records grouped, to the bare reader", ratio, 0.8, "", at_most=False),
            Aim("SQL: LIMIT 5, beyond imports", round(taken - imports, 3), 0.3, "s", at_most=True),
        ],
    )


def fill(servers: str, count: int) -> None:
    """Write the records."""
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic(TOPIC, 1)])[TOPIC].result(60)
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 20, "acks": "1"})
    draw = random.Random(7)
    for number in range(count):
        order = {
            "id": number,
            "item": f"item-{draw.randrange(100)}",
            "price": draw.randrange(100, 99_999) / 100,
            "note": "x" * 20,
        }
        producer.produce(TOPIC, json.dumps(order))
        if number % 1000 == 0:
            producer.poll(0)
    producer.flush(120)


def timed(work: Callable[[], object], count: int) -> Figures:
    """Return the rate of one turn."""
    began = time.monotonic()
    assert work() == 100, "another number of groups"
    return {_RATE: count / (time.monotonic() - began) / 1e6}


def program(line: list[str]) -> Figures:
    """Return the time of a process."""
    began = time.monotonic()
    subprocess.run(line, check=True, timeout=120, capture_output=True)
    return {"s": time.monotonic() - began}


def asked(servers: str) -> int:
    """Ask with ``tidemill.sql``."""
    with sql.connect(servers) as connection:
        return len(connection.execute(QUESTION).fetchall())


def bare(servers: str, count: int) -> int:
    """Read with our reader, parse the two columns, and group in DuckDB."""
    columns = (
        ParsedColumn("item", "STRING", pa.string()),
        ParsedColumn("price", "DOUBLE", pa.float64()),
    )
    parser = JsonParser(ParseSchema(columns), (True, True))
    schema = pa.schema([(each.name, each.arrow) for each in columns])
    plan = FetchPlan({"bootstrap.servers": servers, "isolation.level": "read_committed"})
    batches = (
        pa.RecordBatch.from_arrays(parser.parse(batch.column("value")).columns, schema=schema)
        for batch in fetch(OffsetRange(TOPIC, 0, 0, count), plan)
    )
    with duckdb.connect() as database:
        database.register(TOPIC, pa.RecordBatchReader.from_batches(schema, batches))
        return len(database.execute(QUESTION).fetchall())


def consumed(servers: str, count: int) -> list[dict[str, object]]:
    """Read all records as objects with confluent-kafka."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "bench"})
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    rows: list[dict[str, object]] = []
    while len(rows) < count:
        rows += [json.loads(each.value() or b"") for each in consumer.consume(10_000, 1.0)]
    consumer.close()
    return rows


def through_duckdb(servers: str, count: int) -> int:
    """Group the objects with DuckDB."""
    with duckdb.connect() as database:
        database.register(TOPIC, pa.Table.from_pylist(consumed(servers, count)))
        return len(database.execute(QUESTION).fetchall())


def through_pandas(servers: str, count: int) -> int:
    """Group the objects with pandas."""
    import pandas as pd  # type: ignore[import-untyped,unused-ignore]

    frame = pd.DataFrame(consumed(servers, count))
    return len(frame.groupby("item").agg({"id": "count", "price": "sum"}))
