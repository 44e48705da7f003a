"""Values keep everything, in the stream and in snapshots alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.connect.cdc.postgres.reading import Reading
from tests.support.effort import examples
from tidemill.connect.cdc.errors import CaptureError
from tidemill.connect.cdc.postgres import types

SETUP = """
CREATE EXTENSION IF NOT EXISTS hstore;
CREATE EXTENSION IF NOT EXISTS citext;
CREATE TYPE mood AS ENUM ('sad', 'so so', 'happy');
CREATE TYPE pair AS (a int, b text);
CREATE DOMAIN positive AS int CHECK (value > 0);
CREATE DOMAIN tags AS text[];
"""

# type, SQL value, kind, JSON value
VALUES: list[tuple[str, str, str, Any]] = [
    ("smallint", "-32768", "int", -32768),
    ("integer", "2147483647", "int", 2147483647),
    ("bigint", "9223372036854775807", "int", 9223372036854775807),
    ("bigint", "-9223372036854775808", "int", -9223372036854775808),
    ("numeric", "'123456789012345678901234567890.123456789'", "decimal",
     "123456789012345678901234567890.123456789"),
    ("numeric(10,2)", "1.5", "decimal", "1.50"),
    ("numeric", "'NaN'", "decimal", "NaN"),
    ("numeric", "'-infinity'", "decimal", "-Infinity"),
    ("numeric", "1e-20", "decimal", "0.00000000000000000001"),
    ("real", "0.1", "float", 0.1),
    ("double precision", "1.7976931348623157e308", "float", 1.7976931348623157e308),
    ("double precision", "'NaN'", "float", "NaN"),
    ("double precision", "'-Infinity'", "float", "-Infinity"),
    ("real", "'Infinity'", "float", "Infinity"),
    ("boolean", "true", "bool", True),
    ("boolean", "false", "bool", False),
    ("text", "E'\\u00fc \\\\ \"q\" \\n'", "text", 'ü \\ "q" \n'),
    ("text", "''", "text", ""),
    ("character varying(5)", "'abc'", "text", "abc"),
    ("character(5)", "'ab'", "text", "ab   "),
    ("citext", "'AbC'", "text", "AbC"),
    ("xml", "'<a/>'", "text", "<a/>"),
    ("bytea", "'\\x00ff10'", "bytes", "AP8Q"),
    ("bytea", "''", "bytes", ""),
    ("date", "'2026-11-22'", "date", "2026-11-22"),
    ("date", "'infinity'", "date", "infinity"),
    ("date", "'0044-03-15 BC'", "date", "0044-03-15 BC"),
    ("time", "'24:00:00'", "time", "24:00:00"),
    ("time", "'10:00:00.5'", "time", "10:00:00.5"),
    ("time with time zone", "'10:00:00.5+01'", "time", "10:00:00.5+01:00"),
    ("time with time zone", "'10:00:00-05:30'", "time", "10:00:00-05:30"),
    ("timestamp", "'2026-11-22 10:00:00.123456'", "timestamp", "2026-11-22T10:00:00.123456"),
    ("timestamp", "'-infinity'", "timestamp", "-infinity"),
    ("timestamp", "'0044-03-15 12:00:00 BC'", "timestamp", "0044-03-15 12:00:00 BC"),
    ("timestamp", "'12026-01-01 00:00:00'", "timestamp", "12026-01-01 00:00:00"),
    ("timestamptz", "'2026-11-22 10:00:00.123456+02'", "timestamptz",
     "2026-11-22T08:00:00.123456Z"),
    ("timestamptz", "'infinity'", "timestamptz", "infinity"),
    ("interval", "'1 year 2 mons 3 days 04:05:06.5'", "interval", "P1Y2M3DT4H5M6.5S"),
    ("interval", "'-1 day +02:00'", "interval", "P-1DT2H"),
    ("interval", "'0'", "interval", "PT0S"),
    ("json", "'{\"a\": 1.10,  \"a\": null}'", "json", '{"a": 1.10,  "a": null}'),
    ("jsonb", "'{\"b\":[1,2]}'", "json", '{"b": [1, 2]}'),
    ("uuid", "'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'", "uuid",
     "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
    ("integer[]", "'{1,NULL,3}'", "array", [1, None, 3]),
    ("integer[]", "'{}'", "array", []),
    ("integer[]", "'{{1,2},{3,4}}'", "array", [[1, 2], [3, 4]]),
    ("text[]", "ARRAY['a,b', 'NULL', NULL, '\"', '\\', '{}', '']", "array",
     ["a,b", "NULL", None, '"', "\\", "{}", ""]),
    ("bytea[]", "ARRAY['\\x00'::bytea, '\\xff'::bytea]", "array", ["AA==", "/w=="]),
    ("timestamptz[]", "ARRAY['2026-01-01 00:00+00'::timestamptz]", "array",
     ["2026-01-01T00:00:00Z"]),
    ("mood", "'so so'", "enum", "so so"),
    ("mood[]", "ARRAY['so so','sad']::mood[]", "array", ["so so", "sad"]),
    ("positive", "5", "int", 5),
    ("positive[]", "'{5,6}'", "array", [5, 6]),
    ("tags", "'{a,b}'", "array", ["a", "b"]),
    ("pair", "ROW(1, 'x y')", "other", '(1,"x y")'),
    ("hstore", "'a=>1'", "other", '"a"=>"1"'),
    ("int4range", "'[1,5)'", "other", "[1,5)"),
    ("money", "12.5", "other", "$12.50"),
    ("bit(3)", "B'101'", "other", "101"),
    ("inet", "'192.168.0.1/24'", "other", "192.168.0.1/24"),
    ("macaddr", "'08:00:2b:01:02:03'", "other", "08:00:2b:01:02:03"),
    ("point", "'(1,2)'", "other", "(1,2)"),
    ("box[]", "ARRAY['(1,1),(0,0)'::box, '(2,2),(0,0)'::box]", "array",
     ["(1,1),(0,0)", "(2,2),(0,0)"]),
    ("oid", "4294967295", "int", 4294967295),
]  # fmt: skip


def test_values_are_the_same_in_the_stream_and_in_a_snapshot(
    sql: psycopg.Connection[Any], started: Callable[..., Reading]
) -> None:
    sql.execute(SETUP.encode())
    columns = ", ".join(f"c{i} {kind}" for i, (kind, *_) in enumerate(VALUES))
    sql.execute(f"CREATE TABLE t (id int PRIMARY KEY, {columns})".encode())
    sql.execute("SET lc_monetary = 'C'")
    read = started()
    values = ", ".join(value for _, value, *_ in VALUES)
    sql.execute(f"INSERT INTO t VALUES (1, {values})".encode())
    sql.execute("INSERT INTO t (id) VALUES (2)")
    first, empty = read.changes(2)
    expected = {f"c{i}": each[3] for i, each in enumerate(VALUES)}
    assert first.after == {"id": 1, **expected}
    assert empty.after == {"id": 2, **dict.fromkeys(expected)}
    assert first.table is not None
    kinds = {each.name: each.kind for each in first.table.columns}
    assert kinds == {"id": "int", **{f"c{i}": each[2] for i, each in enumerate(VALUES)}}
    assert all("oid" not in each.type_name for each in first.table.columns[:-1])
    chunk = read.source.read_chunk(first.table, None, 10)
    assert chunk.rows == [first.after, empty.after]


TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))


@settings(max_examples=examples(50))
@given(
    st.recursive(
        st.lists(st.one_of(st.none(), TEXTS)),
        lambda inner: st.lists(inner, min_size=1, max_size=3),
        max_leaves=6,
    )
)
def test_arrays_are_parsed_as_they_were_quoted(values: list[Any]) -> None:
    def quoted(value: Any) -> str:
        if value is None:
            return "NULL"
        if isinstance(value, list):
            return "{" + ",".join(quoted(each) for each in value) + "}"
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'

    assert types.array(quoted(values).encode(), types.text, b",") == values


@pytest.mark.parametrize("text", [b"", b"{", b"1,2}", b'{"a}', b"{{1}", b"{1}}", b"{1}x{}"])
def test_broken_arrays_are_refused(text: bytes) -> None:
    with pytest.raises(CaptureError):
        assert types.array(text, types.text, b",") is None
