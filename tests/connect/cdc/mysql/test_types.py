"""Values of all types of MySQL: the stream gives what the server gives for a SELECT."""

from __future__ import annotations

import json
import random
import struct
from typing import Any

import pytest

from tests.connect.cdc.binlog_servers import Execute, poll_all
from tests.connect.cdc.mysql import test_contract
from tests.connect.cdc.test_packed import STAMP, both
from tests.contracts.binlog import COMMON_TYPES
from tests.support.effort import examples
from tests.support.mysql import MySql
from tidemill.connect.cdc.mysql import MySqlSource
from tidemill.connect.cdc.packed import Changes

ALL_TYPES = [*test_contract.TestMySql.TYPES, *COMMON_TYPES]


@pytest.mark.parametrize("compression", ["OFF", "ON"])
def test_compiled_records_of_all_types_equal_unpacked_ones(
    source: MySqlSource, execute: Execute, compression: str
) -> None:
    columns = ", ".join(f"c{i} {each[0]}" for i, each in enumerate(ALL_TYPES))
    values = ", ".join(each[1] for each in ALL_TYPES)
    names = ", ".join(f"c{i}" for i in range(len(ALL_TYPES)))
    execute(
        "SET sql_mode = ''",
        "SET time_zone = '+00:00'",
        f"CREATE TABLE t (id INT PRIMARY KEY, {columns})",
        f"SET SESSION binlog_transaction_compression = {compression}",
        "SET SESSION binlog_rows_query_log_events = ON",
    )
    source.start(None)
    execute(
        "BEGIN",
        *[f"INSERT INTO t (id, {names}) VALUES ({i}, {values})" for i in range(5)],
        "UPDATE t SET id = id + 100 WHERE id = 4",
        "DELETE FROM t WHERE id < 3",
        "COMMIT",
    )
    packed = 0
    while not packed:
        batch = source.poll(60)
        assert batch is not None
        assert isinstance(batch.changes, Changes)
        for part in batch.changes.parts:
            if isinstance(part, list):
                continue
            packed += len(part)
            envelope, producer, encoders = both(plain=False)
            expected = [record for each in part.unpack() for record in envelope.encode(each)]
            assert part.encode(encoders, STAMP) == len(expected)
            assert producer.taken() == expected
    assert packed >= 7


JSON = [
    ("'null'", "null"),
    ("'true'", "true"),
    ("'\"a\"'", '"a"'),
    ("'{}'", "{}"),
    ("'[]'", "[]"),
    ("'[1, -1, 65535, 65536, -2147483648, 4294967296, 18446744073709551615]'", None),
    ("'[1.0, -0.0, 1e15, 1e16, 1e-15, 1e-16, 123456.789, 1.5e300, 5e-324, 0.1]'", None),
    ("json_array('a\"\\\\\\\\', '\\b\\n\\r\\t', char(12), char(1), char(127), 'é😀', '/')", None),
    ("json_object('bb', 1, 'a', 2, '', 3, 'é', 4)", None),
    ("json_array(cast(1.10 as decimal(5,2)), cast(-0.5 as decimal(65,30)), 3.14)", None),
    ("json_array(cast('2020-01-02' as date), cast('-12:00:01.5' as time(1)))", None),
    ("json_array(cast('2020-01-02 03:04:05.000001' as datetime(6)), timestamp'2020-01-02 1:2:3')",
     None),
    ("json_array(cast('838:59:59' as time), cast('0:0:0' as time), cast('0000-00-00' as date))",
     None),
    ("json_array(cast('x' as binary), x'00ff', b'101', point(1, 2), cast('' as binary))", None),
    ("json_array(cast(2020 as year), 1 = 1, null)", None),
    ("json_object('k', repeat('x', 70000), 'l', json_array(repeat('y', 200), 70000, 5000000000))",
     None),
    ("json_array(repeat('x', 127), repeat('x', 128), repeat('x', 16384))", None),
    ("concat(repeat('[', 100), repeat(']', 100))", "[" * 100 + "]" * 100),
    ("concat('[', repeat('1,', 70000), '1]')", None),
]  # fmt: skip


def test_json_of_the_binary_log_has_the_text_of_the_server(
    source: MySqlSource, execute: Execute
) -> None:
    execute("SET sql_mode = ''", "CREATE TABLE t (id INT PRIMARY KEY, j JSON)")
    source.start(None)
    execute(*[f"INSERT INTO t VALUES ({i}, {each})" for i, (each, _) in enumerate(JSON)])
    changes = poll_all(source, len(JSON))
    (table,) = source.tables()
    rows = source.read_chunk(table, None, 1000).rows
    for change, row, (_, text) in zip(changes, rows, JSON, strict=True):
        assert change.after == row
        assert text is None or row["j"] == text


def _random_json(rng: random.Random, depth: int = 0) -> Any:
    match rng.randrange(9 if depth < 4 else 6):
        case 0:
            return rng.choice([None, True, False])
        case 1:
            return rng.randint(-(2 ** rng.randint(0, 63)), 2 ** rng.randint(0, 63))
        case 2:
            return _random_double(rng)
        case 3:
            return rng.uniform(-1000, 1000)
        case 4:
            return round(rng.uniform(-1e6, 1e6), rng.randint(0, 6)) * 10.0 ** rng.randint(-25, 25)
        case 5:
            return "".join(chr(rng.choice([rng.randrange(32, 127), rng.randrange(32),
                                           rng.randrange(0xA0, 0x2000), 0x1F600]))
                           for _ in range(rng.randrange(40)))  # fmt: skip
        case 6:
            return [_random_json(rng, depth + 1) for _ in range(rng.randrange(6))]
        case _:
            return {
                f"{'k' * rng.randrange(5)}{rng.randrange(9)}": _random_json(rng, depth + 1)
                for _ in range(rng.randrange(6))
            }


def _random_double(rng: random.Random) -> float:
    """Return any finite double."""
    while True:
        (value,) = struct.unpack("<d", rng.randbytes(8))
        if value - value == 0:
            return float(value)


def test_random_json_has_the_text_of_the_server(
    source: MySqlSource, execute: Execute, server: MySql, shop: str
) -> None:
    count = examples(500)
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    execute("CREATE TABLE t (id INT PRIMARY KEY, j JSON)")
    source.start(None)
    with server.connect(database=shop) as connection, connection.cursor() as cursor:
        documents = [(i, json.dumps(_random_json(rng))) for i in range(count)]
        cursor.executemany("INSERT INTO t VALUES (%s, %s)", documents)
        connection.commit()
    changes = poll_all(source, count)
    (table,) = source.tables()
    rows = source.read_chunk(table, None, count).rows
    assert [each.after for each in changes] == rows
