"""Measures the parser of JSON values against pyarrow's reader and orjson, on one core.

The values are bids like those of Nexmark, of about 240 bytes, with seven columns. Figures are rows
in a second of processor time, the best of several turns.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable

import orjson
import pyarrow as pa
import pyarrow.json as pj

from bench.report import Aim, Section, Table
from bench.run import Run
from tidemill.spark.source.parse import ParseSchema, make_parser
from tidemill.spark.source.parse.ddl_schema import schema_of

DDL = (
    "auction BIGINT, bidder BIGINT, price BIGINT, channel STRING, url STRING, at TIMESTAMP, "
    "extra STRING"
)
AIM_ROWS = 1.5e6
AIM_RATIO = 2.5
BATCH = 16_384
NOTE = (
    "Rows in a second of processor time. pyarrow's reader gets the values joined by line feeds, "
    "which is not exact: two objects on a line are two rows. orjson makes an object for each row."
)


def section(run: Run) -> Section:
    """Measure all contenders on the same values."""
    batches = _batches(2 if run.options.quick else 12)
    schema = schema_of(DDL, event_time="at")
    parser, three = make_parser(schema), make_parser(schema, only=["auction", "price", "at"])
    refused = [pa.array([b'{"auction": "x", "bidder": 1}'] * BATCH)] * len(batches)

    def turn(work: Callable[[pa.Array], object], given: list[pa.Array]) -> float:
        return _rows_per_second(work, given, run.options.rounds)

    contenders: list[tuple[str, float]] = [
        ("tidemill", turn(parser.parse, batches)),
        ("tidemill, three of the columns", turn(three.parse, batches)),
        ("tidemill, check only", turn(parser.check, batches)),
        ("tidemill, all values refused", turn(parser.parse, refused)),
        ("pyarrow.json", turn(_arrow_reader(schema), batches)),
        ("orjson, dicts only", turn(_dicts, batches)),
    ]
    reader = dict(contenders)["pyarrow.json"]
    table = Table("Parsing JSON values", ["contender", "M rows/s", "times pyarrow"], note=NOTE)
    table.rows = [
        [name, round(rate / 1e6, 2), round(rate / reader, 2)] for name, rate in contenders
    ]
    rate = contenders[0][1]
    return Section(
        "parse",
        [table],
        [
            Aim("JSON values parsed", round(rate / 1e6, 2), AIM_ROWS / 1e6, "M rows/s", False),
            Aim("as fast as pyarrow's reader", round(rate / reader, 2), AIM_RATIO, "times", False),
        ],
    )


def _batches(count: int) -> list[pa.Array]:
    draw = random.Random(11)
    return [pa.array([_bid(draw, i) for i in range(BATCH)], pa.binary()) for _ in range(count)]


def _bid(draw: random.Random, number: int) -> bytes:
    bid = {
        "auction": draw.randrange(1000, 99_999),
        "bidder": draw.randrange(1000, 99_999),
        "price": draw.randrange(100, 9_999_999),
        "channel": draw.choice(["Google", "Facebook", "Baidu"]),
        "url": f"https://www.nexmark.com/{draw.randrange(10**9)}/item.htm?query=1&id={number}",
        "at": f"2015-07-15T00:{number // 60 % 60:02}:{number % 60:02}.{number % 1000:03}Z",
        "extra": "x" * draw.randrange(20, 70),
    }
    return json.dumps(bid).encode()


def _rows_per_second(
    work: Callable[[pa.Array], object], batches: list[pa.Array], rounds: int
) -> float:
    best = float("inf")
    for _ in range(rounds):
        began = time.process_time()
        for batch in batches:
            work(batch)
        best = min(best, time.process_time() - began)
    return sum(map(len, batches)) / best


def _arrow_reader(schema: ParseSchema) -> Callable[[pa.Array], object]:
    options = pj.ParseOptions(explicit_schema=schema.arrow)
    read = pj.ReadOptions(use_threads=False, block_size=1 << 26)

    def parse(values: pa.Array) -> pa.Table:
        lines = pa.py_buffer(b"\n".join(values.to_pylist()))
        return pj.read_json(pa.BufferReader(lines), read_options=read, parse_options=options)

    return parse


def _dicts(values: pa.Array) -> list[object]:
    return [orjson.loads(value) for value in values.to_pylist()]
