"""Keys that are equal to PostgreSQL and have different texts: one record for each row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from tests.connect.cdc.postgres.folding import Folded, assert_equal
from tests.connect.cdc.postgres.reading import Reading

Sql = psycopg.Connection[Any]
Make = Callable[..., Reading]

TYPES = {
    "citext": ("'a'", "'A'"),
    "text COLLATE ignoring": ("'a'", "'A'"),
    "numeric": ("1", "1.00"),
    "numeric(6, 2)": ("1", "1.00"),
    "float8": ("'0'", "'-0'"),
    "float4": ("'0'", "'-0'"),
    "char(4)": ("'a'", "'a  '"),
    "bpchar": ("'a'", "'a  '"),
    "varchar(9)": ("'a'", "'a '"),
    "interval": ("'1 day'", "'24 hours'"),
    "jsonb": ("""'{"a": 1, "b": 2}'""", """'{"b": 2, "a": 1.0}'"""),
    "timetz": ("'10:00+00'", "'11:00+01'"),
    "timestamptz": ("'2026-01-01 00:00+00'", "'2026-01-01 01:00+01'"),
    "numeric[]": ("'{1,2}'", "'{1.0,2}'"),
    "bytea[]": (r"""'{"\\x00ff",NULL}'""", r"""'{"\\x00FF",NULL}'"""),
    "text[]": ("""'{"a b","c\\"d",NULL,"NULL",""}'""", """'{{"x,y"},{z}}'"""),
    "bool[]": ("'{t,f}'", "'{t,NULL}'"),
    "pair": ("'(1,2.0)'", "'(1,2.00)'"),
    "amount": ("1", "1.0"),
    "numrange": ("'[1,2)'", "'[1.0,2.00)'"),
    "inet": ("'10.0.0.1'", "'10.0.0.1/32'"),
    "bytea": (r"'\x00ff'", r"'\x00FF'"),
    "uuid": ("'00000000-0000-0000-0000-00000000000a'", "'00000000-0000-0000-0000-00000000000A'"),
    "bool": ("true", "false"),
    "date": ("'infinity'", "'-infinity'"),
    "money": ("'1'", "'1.00'"),
    "name": ("'a'", "'b'"),
    "oid": ("1", "2"),
    "bit(3)": ("'101'", "'011'"),
}
CREATE = """
CREATE EXTENSION citext;
CREATE COLLATION ignoring (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
CREATE TYPE pair AS (a int, b numeric);
CREATE DOMAIN amount AS numeric;
"""
LARGE = "(SELECT string_agg(md5((i * {})::text), '') FROM generate_series(1, 300) i)"


def test_equal_keys_have_one_record(sql: Sql, reading: Make) -> None:
    """By an update, an upsert, and a delete and an insert; each with a large value beside it."""
    try:
        sql.execute(CREATE)
    except psycopg.errors.FeatureNotSupported as missing:
        pytest.skip(f"this PostgreSQL lacks {missing}")
    statements = [
        "UPDATE {t} SET id = {b}, n = 1 WHERE id = {a}",
        "UPDATE {t} SET n = 2",
        "DELETE FROM {t}; INSERT INTO {t} VALUES ({a}, 0, " + LARGE.format(2) + ")",
        "INSERT INTO {t} VALUES ({b}, 0, '') ON CONFLICT (id) DO UPDATE SET n = 5",
        "UPDATE {t} SET id = {b}, n = 6 WHERE id = {b}",
        "BEGIN; DELETE FROM {t}; INSERT INTO {t} VALUES ({b}, 7, 'x');"
        " DELETE FROM {t}; INSERT INTO {t} VALUES ({a}, 8, 'y'); COMMIT",
    ]
    types = {f"t{number}": each.partition(" COLLATE")[0] for number, each in enumerate(TYPES)}
    names = {f"t{number}": each for number, each in enumerate(TYPES.items())}
    for table, (type_name, (a, _)) in names.items():
        sql.execute(f"CREATE TABLE {table} (id {type_name} PRIMARY KEY, n int, v text)".encode())
        sql.execute(f"INSERT INTO {table} VALUES ({a}, 0, {LARGE.format(1)})".encode())
    folded = Folded(reading())
    for statement in statements:
        for table, (_, (a, b)) in names.items():
            typed = {"a": f"({a})::{types[table]}", "b": f"({b})::{types[table]}"}
            sql.execute(statement.format(t=table, **typed).encode())
        folded.follow()
        for table, (type_name, _) in names.items():
            rows = folded.rows(f"public.{table}")
            (count,) = sql.execute(f"SELECT count(*) FROM {table}".encode()).fetchone() or (0,)
            assert len(rows) == count, (type_name, statement, rows)

            assert sorted(rows, key=repr) == sorted(read_again(folded, table), key=repr), type_name
    assert_equal(folded, sql, "t2")


def read_again(folded: Folded, name: str) -> list[dict[str, Any]]:
    """Return the rows of a table as a snapshot reads them, chunk by chunk."""
    source = folded.reading.source
    table = source.find_table("public", name)
    assert table is not None
    found: list[dict[str, Any]] = []
    after = None
    while True:
        chunk = source.read_chunk(table, after, 1)
        found += chunk.rows
        assert len(found) < 9, "the chunks do not end"
        after = chunk.last_key
        if after is None:
            return found
