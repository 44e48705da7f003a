"""Values of all types of MySQL: the stream gives what the server gives for a SELECT."""

from __future__ import annotations

import json
import random
import struct
from typing import Any

import pytest

from tests.connect.cdc.mysql.conftest import Execute, poll_all
from tests.connect.cdc.test_packed import STAMP, both
from tests.support.effort import examples
from tests.support.mysql import MySql
from tidemill.connect.cdc.mysql import MySqlSource
from tidemill.connect.cdc.packed import Changes

ALL_TYPES: list[tuple[str, str, Any, str]] = [
    ("tinyint", "-1", -1, "int"),
    ("year", "2020", 2020, "int"),
    ("tinyint unsigned", "255", 255, "int"),
    ("point", "point(1, 2)", "AAAAAAEBAAAAAAAAAAAA8D8AAAAAAAAAQA==", "bytes"),
    ("varchar(10) character set latin1", "'é€'", "é€", "text"),
    ("vector(3)", "string_to_vector('[1,2,3]')", "AACAPwAAAEAAAEBA", "bytes"),
    ("varchar(20)", "'é € 😀'", "é € 😀", "text"),
    ("json", "'{}'", "{}", "json"),
    ("varchar(10) character set ucs2", "'é€'", "é€", "text"),
    ("geometry", "point(1, 2)", "AAAAAAEBAAAAAAAAAAAA8D8AAAAAAAAAQA==", "bytes"),
    ("varchar(9) collate utf8mb4_ja_0900_as_cs_ks", "'日本'", "日本", "text"),
    ("smallint", "-32768", -32768, "int"),
    ("mediumint", "-8388608", -8388608, "int"),
    ("mediumint unsigned", "16777215", 16777215, "int"),
    ("int unsigned", "4294967295", 4294967295, "int"),
    ("bigint", "-9223372036854775808", -(2**63), "int"),
    ("bigint unsigned", "18446744073709551615", "18446744073709551615", "int"),
    ("year", "0", 0, "int"),
    ("float", "0.1", 0.1, "float"),
    ("float", "16777216", 16777216.0, "float"),
    ("float", "3.4028235e38", 3.4028235e38, "float"),
    ("double", "0.1", 0.1, "float"),
    ("double unsigned", "1.7976931348623157e308", 1.7976931348623157e308, "float"),
    ("decimal(10,2)", "-0.05", "-0.05", "decimal"),
    ("decimal(65,30)", "-12345678901234567890.01", "-12345678901234567890.01" + "0" * 28,
     "decimal"),
    ("decimal(9,0) unsigned", "999999999", "999999999", "decimal"),
    ("varchar(300)", "''", "", "text"),
    ("char(10)", "'abc'", "abc", "text"),
    ("char(200)", "repeat('é', 200)", "é" * 200, "text"),
    ("char(200) character set utf8mb3", "repeat('é', 200)", "é" * 200, "text"),
    ("tinytext", "'t'", "t", "text"),
    ("text", "repeat('x', 60000)", "x" * 60000, "text"),
    ("mediumtext", "repeat('x', 70000)", "x" * 70000, "text"),
    ("longtext", "repeat('x', 70000)", "x" * 70000, "text"),
    ("varbinary(10)", "x'00ff'", "AP8=", "bytes"),
    ("binary(4)", "x'0102'", "AQIAAA==", "bytes"),
    ("blob", "x''", "", "bytes"),
    ("longblob", "x'00'", "AA==", "bytes"),
    ("date", "'2020-02-29'", "2020-02-29", "date"),
    ("date", "'0000-00-00'", "0000-00-00", "date"),
    ("date", "'2020-00-00'", "2020-00-00", "date"),
    ("time", "'838:59:59'", "838:59:59", "time"),
    ("time(3)", "'-01:02:03.4'", "-01:02:03.400", "time"),
    ("time(6)", "'-00:00:00.000001'", "-00:00:00.000001", "time"),
    ("time(2)", "'-12:00:00.99'", "-12:00:00.99", "time"),
    ("datetime", "'9999-12-31 23:59:59'", "9999-12-31T23:59:59", "timestamp"),
    ("datetime(6)", "'2020-01-02 03:04:05.123456'", "2020-01-02T03:04:05.123456", "timestamp"),
    ("datetime(1)", "'0000-00-00 00:00:00'", "0000-00-00T00:00:00.0", "timestamp"),
    ("timestamp null", "'2020-01-02 03:04:05'", "2020-01-02T03:04:05Z", "timestamptz"),
    ("timestamp(3) null", "'2020-01-02 03:04:05.5'", "2020-01-02T03:04:05.500Z", "timestamptz"),
    ("timestamp null", "'0000-00-00 00:00:00'", "0000-00-00T00:00:00Z", "timestamptz"),
    ("enum('x','zé')", "'zé'", "zé", "enum"),
    ("enum('x','y') character set latin1", "'wrong'", "", "enum"),
    ("set('p','q','r')", "'r,p'", "p,r", "text"),
    ("set('p','q')", "''", "", "text"),
    ("bit(1)", "b'1'", True, "bool"),
    ("bit(10)", "b'1000000001'", "1000000001", "other"),
    ("bit(64)", "b'1'", "0" * 63 + "1", "other"),
    ("bool", "true", 1, "int"),
    ("geomcollection", "geomcollection(point(0, 0))",
     "AAAAAAEHAAAAAQAAAAEBAAAAAAAAAAAAAAAAAAAAAAAAAA==", "bytes"),
]  # fmt: skip


def test_values_of_all_types_are_the_same_in_snapshot_and_stream(
    source: MySqlSource, execute: Execute
) -> None:
    columns = ", ".join(f"c{i} {each[0]}" for i, each in enumerate(ALL_TYPES))
    values = ", ".join(each[1] for each in ALL_TYPES)
    execute(
        "SET sql_mode = ''",
        "SET time_zone = '+00:00'",
        f"CREATE TABLE t (id INT PRIMARY KEY, {columns}, g INT AS (id + 1) STORED, "
        "v INT AS (id + 2) VIRTUAL, h INT DEFAULT 7 INVISIBLE, "
        "INDEX f ((c6 + 1)), INDEX m ((CAST(c7->'$.a' AS UNSIGNED ARRAY))))",
    )
    source.start(None)
    names = ", ".join(f"c{i}" for i in range(len(ALL_TYPES)))
    execute(f"INSERT INTO t (id, {names}) VALUES (1, {values})", "INSERT INTO t (id) VALUES (2)")
    full, empty = poll_all(source, 2)
    expected = {f"c{i}": each[2] for i, each in enumerate(ALL_TYPES)}
    assert full.after == {"id": 1, **expected, "g": 2, "v": 3, "h": 7}
    assert empty.after["id"] == 2
    assert {each for name, each in empty.after.items() if name.startswith("c")} == {None}
    (table,) = source.tables()
    assert source.read_chunk(table, None, 10).rows == [full.after, empty.after]
    kinds = [each[3] for each in ALL_TYPES]
    assert [each.kind for each in table.columns[1 : len(kinds) + 1]] == kinds
    assert [each.kind for each in full.table.columns[1 : len(kinds) + 1]] == kinds


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


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("INT", ["-1", "0", "7"]),
        ("BIGINT UNSIGNED", ["9007199254740993", "9007199254740994", "18446744073709551615"]),
        ("DECIMAL(30,5)", ["-1.5", "0", "1234567890123456789.00001", "1234567890123456789.00002"]),
        ("DOUBLE", ["-1e300", "0.1", "0.30000000000000004", "1e300"]),
        ("VARCHAR(20)", ["''", "'a%s'", "'B'", "'é'", "'z\\\\'"]),
        ("VARBINARY(20)", ["''", "x'00'", "x'0001'", "x'ff'"]),
        ("DATETIME(6)", ["'2020-01-01 00:00:00'", "'2020-01-01 00:00:00.000001'", "'2021-01-01'"]),
        ("ENUM('z','m','a')", ["'z'", "'m'", "'a'"]),
        ("BIT(10)", ["b'0'", "b'11'", "b'1111111111'"]),
    ],
)  # fmt: skip
def test_chunks_cover_a_table_once_in_the_order_of_its_key(
    source: MySqlSource, execute: Execute, key: str, values: list[str]
) -> None:
    rows = ", ".join(f"({value}, {n})" for value in values for n in (2, 1, 3))
    execute(
        f"CREATE TABLE a (k {key}, `n%s` INT, PRIMARY KEY (k, `n%s`))",
        f"INSERT INTO a VALUES {rows}",
    )
    (table,) = source.tables()
    for limit in (1, 2, 100):
        seen: list[Any] = []
        after = None
        while True:
            chunk = source.read_chunk(table, after, limit)
            seen += [tuple(row.values()) for row in chunk.rows]
            after = chunk.last_key
            if after is None:
                break
        assert len(seen) == len(set(seen)) == len(values) * 3
        assert [n for _, n in seen] == [1, 2, 3] * len(values)
