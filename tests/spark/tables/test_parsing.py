"""Streams, tables and captured tables parse the same JSON to the same values.

The cases are the tables of docs/json-values.md. The source gives the expected value or reason.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from tests.spark.changelogs import Changelog, rows
from tests.spark.source.parse.tables import ACCEPTED, EPOCHS, REFUSED
from tidemill.spark import enrich, join_tables
from tidemill.spark.errors import JoinError, SchemaError
from tidemill.spark.pipelines.inputs import TableInput
from tidemill.spark.source.captured.schema import event_schema
from tidemill.spark.source.parse import make_parser
from tidemill.spark.source.parse.ddl_schema import schema_of
from tidemill.spark.tables.captured_records import CapturedRecords, Record
from tidemill.spark.tables.changes import TableSpec, canonical
from tidemill.spark.tables.parsing import RowParser
from tidemill.spark.tables.records import TableSchema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tests.spark.conftest import Broker

CASES = [(ddl, text, "iso") for ddl, text, _ in ACCEPTED + REFUSED] + [
    ("TIMESTAMP", text, times) for times, text, _ in EPOCHS
]

OTHERWISE_IN_ENVELOPES = {
    # Numbers are read as integers of 64 bits and as doubles.
    ("BIGINT", "9.223372036854775807e18"),
    ("BIGINT", "1.00000000000000000001"),
    ("FLOAT", "1.00000017881393432617187500"),
    ("FLOAT", "1.00000017881393432617187501"),
    ("FLOAT", "1.00000005960464477539062500"),
    ("FLOAT", "7.006492321624086e-46"),
    ("FLOAT", "340282356779733661637539395458142568448"),
    ("DOUBLE", "-0"),
    ("DECIMAL(38, 0)", "9" * 38),
    ("DECIMAL(38, 0)", "-" + "9" * 38),
    ("DECIMAL(38, 38)", "0." + "9" * 38),
    ("STRING", "1.50"),
    ("STRING", "-0"),
    ("STRING", "1e2"),
    ("TIMESTAMP", "1357016400.1234569"),
    ("TIMESTAMP", "-1e-999999"),
    ("TIMESTAMP", "253402300799999.999"),
    # Kafka Connect counts days.
    ("DATE", "15706"),
    # The last one counts.
    ("MAP<STRING, INT>", '{"a":1,"a":2}'),
    ("MAP<STRING, INT>", '{"a":1,"b":2,"\\u0061":1}'),
}

Outcome = tuple[str, str]
"""Whether a value is accepted, and the value or the reason."""


def in_stream(ddl: str, text: str, times: str) -> Outcome:
    schema = schema_of(f"x {ddl}", timestamp_format=times)
    parsed = make_parser(schema).parse(pa.array([f'{{"x": {text}}}'.encode()]))
    if parsed.reasons:
        return "refused", parsed.reasons[0][1]
    return "accepted", repr(parsed.columns[0].to_pylist()[0])


def in_table(ddl: str, value: bytes | None, times: str) -> Outcome:
    parser = RowParser("t", TableSchema(f"id STRING, x {ddl}", ["id"], times))
    try:
        [row] = parser.rows(pa.array([value]), lambda _: "the row").to_pylist()
    except JoinError as error:
        return "refused", str(error).removeprefix("table t: the row can't be parsed: ")
    return "accepted", repr(row["x"])


def envelope(text: str) -> bytes:
    after = f'{{"id": "a", "x": {text}}}'
    return f'{{"op": "c", "before": null, "after": {after}, "source": {{"ts_ms": 1}}}}'.encode()


def in_captured_stream(ddl: str, text: str, times: str) -> Outcome:
    schema = schema_of(event_schema(f"id STRING, x {ddl}"), timestamp_format=times)
    parsed = make_parser(schema, "debezium").parse(pa.array([envelope(text)]))
    if parsed.reasons:
        return "refused", parsed.reasons[0][1]
    return "accepted", repr(parsed.columns[2].to_pylist()[0]["x"])


def in_captured_table(ddl: str, text: str, times: str) -> Outcome:
    columns = (("id", "STRING"), ("x", ddl))
    spec = TableSpec("t", ("id",), (), columns, captured=columns, timestamp_format=times)
    try:
        [change] = CapturedRecords(spec).changes(Record(b'{"id": "a"}', envelope(text), 0, 0, 0))
    except JoinError as error:
        return "refused", str(error)
    return in_table(ddl, change.value, times)


@pytest.mark.parametrize(("ddl", "text", "times"), CASES)
def test_a_table_has_the_values_and_reasons_of_a_stream(ddl: str, text: str, times: str) -> None:
    assert in_table(ddl, f'{{"x": {text}}}'.encode(), times) == in_stream(ddl, text, times)


@pytest.mark.parametrize(("ddl", "text", "times"), CASES)
def test_captured_tables_and_streams_accept_what_a_stream_accepts(
    ddl: str, text: str, times: str
) -> None:
    expected = in_stream(ddl, text, times)
    stream, table = in_captured_stream(ddl, text, times), in_captured_table(ddl, text, times)
    assert stream == table or (stream[0], table[0]) == ("refused", "refused")
    is_same = table == expected or (table[0], expected[0]) == ("refused", "refused")
    assert is_same == ((ddl, text) not in OTHERWISE_IN_ENVELOPES)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"[1]", "the value is not a JSON object"),
        (b'{"id": "a"} x', "the value has more than its JSON object"),
        (b'{"id": "\xff"}', "the value is not UTF-8 text"),
        (b'{"id": "a", "X": 1}', "the field X differs from x only in case"),
    ],
)
def test_what_is_not_a_row_is_refused_for_the_reason_of_a_stream(value: bytes, reason: str) -> None:
    assert in_table("INT", value, "iso") == ("refused", reason)


def test_rows_that_are_null_stay_where_they_are() -> None:
    parser = RowParser("t", TableSchema("id STRING, x ARRAY<INT>", ["id"]))
    values = pa.array([None, b'{"id": "a", "x": [1]}', None, b"{}"])
    found = parser.rows(values, str)
    found.validate(full=True)
    assert found.to_pylist() == [None, {"id": "a", "x": [1]}, None, {"id": None, "x": None}]
    bad = pa.array([None, b"{}", None, b'{"x": 1}'])
    with pytest.raises(JoinError, match=r"table t: 3 can't be parsed: x is not ARRAY<INT>: 1"):
        parser.rows(bad, str)


def test_a_number_in_a_timestamp_has_a_hint_that_names_the_option() -> None:
    parser = RowParser("t", TableSchema("id STRING, x TIMESTAMP", ["id"]))
    with pytest.raises(JoinError, match="x is not TIMESTAMP: 1363000000") as refused:
        parser.rows(pa.array([b'{"x": 1363000000}']), str)
    assert 'timestamp_format="epoch_s"' in refused.value.hint
    with pytest.raises(JoinError) as refused:
        parser.rows(pa.array([b'{"x": "soon"}']), str)
    assert "timestamp_format" not in refused.value.hint


@pytest.mark.parametrize(
    "ddl",
    [
        "tail STRING, seats INT",
        "tail: STRING, seats: INT",
        "tail STRING NOT NULL, seats INT COMMENT 'of all classes'",
        "tail STRING, -- its number\n seats INT -- of all classes",
        "`tail` STRING,\n seats: INT\n",
    ],
)
def test_a_schema_may_be_written_as_a_stream_s(ddl: str) -> None:
    parser = RowParser("t", TableSchema(ddl, ["tail"]))
    found = parser.rows(pa.array([b'{"tail": "a", "seats": 1}']), str)
    assert found.to_pylist() == [{"tail": "a", "seats": 1}]


def test_a_type_that_values_are_not_parsed_to_is_refused() -> None:
    with pytest.raises(SchemaError, match="column x: the type INTERVAL is not supported"):
        _ = TableSchema("id STRING, x INTERVAL", ["id"]).parsed


# --- keys ----------------------------------------------------------------------------------------

KEYS = [
    ("STRING", b" 01", "' 01'"),
    ("STRING", b"", "''"),
    ("BINARY", b"\xff\x00", r"b'\xff\x00'"),
    ("INT", b"7", "7"),
    ("INT", b" +07", "7"),
    ("BIGINT", b"-9223372036854775808", "-9223372036854775808"),
    ("BOOLEAN", b"true", "True"),
    ("BOOLEAN", b" Yes", "True"),
    ("DOUBLE", b"1.0E10", "10000000000.0"),
    ("DOUBLE", b"NaN", "nan"),
    ("DECIMAL(5, 2)", b"1.50", "Decimal('1.50')"),
    ("DATE", b"2024-1-2 5:00Z", "datetime.date(2024, 1, 2)"),
    ("TIMESTAMP_NTZ", b"2013-01-01 05:00:00", "datetime.datetime(2013, 1, 1, 5, 0)"),
]


@pytest.mark.parametrize(("kind", "key", "value"), KEYS)
def test_a_key_of_one_column_is_its_text(kind: str, key: bytes, value: str) -> None:
    parser = RowParser("t", TableSchema(f"`the id` {kind}", ["the id"]))
    [found] = parser.keys(pa.array([key, key], pa.binary()), str)
    assert [repr(each) for each in found.to_pylist()] == [value, value]
    [again] = parser.keys(pa.array([b"0" if kind == "INT" else key, key], pa.binary()), str)
    assert again[1] == found[1] or kind == "DOUBLE"


@pytest.mark.parametrize(
    ("kind", "key", "problem"),
    [
        ("INT", b"x", "has an invalid key: id is not INT: x"),
        ("INT", b"1.0", "has an invalid key: id is not INT: 1.0"),
        ("INT", b'1, "id": 2', 'has an invalid key: id is not INT: 1, "id": 2'),
        ("INT", b"", "has an invalid key: id is not INT: "),
        ("TINYINT", b"128", "has an invalid key: id is not TINYINT: 128"),
        ("BOOLEAN", b"maybe", "has an invalid key: id is not BOOLEAN: maybe"),
        ("DATE", b"2024", "has an invalid key: id is not DATE: 2024"),
        ("STRING", b"\xff", "has an invalid key: it is not UTF-8 text"),
        ("STRING", None, "has no key of id"),
    ],
)
def test_an_invalid_key_is_refused(kind: str, key: bytes | None, problem: str) -> None:
    parser = RowParser("t", TableSchema(f"id {kind}", ["id"]))
    with pytest.raises(JoinError) as refused:
        parser.keys(pa.array([key], pa.binary()), lambda index: f"the record {index}")
    assert str(refused.value) == f"table t: the record 0 {problem}"


def test_a_key_of_several_columns_is_a_json_object() -> None:
    schema = TableSchema("a INT, b STRING, x DOUBLE", ["b", "a"])
    parser = RowParser("t", schema)
    keys = [b'{"a": 1.0, "b": "x"}', b'{"b": 2, "a": 1, "more": []}']
    found = parser.keys(pa.array(keys), str)
    assert [column.to_pylist() for column in found] == [["x", "2"], [1, 1]]
    for key, problem in (
        (b"x", "0 has an invalid key: it is not a JSON object"),
        (b'{"a": "1", "b": "x"}', "0 has an invalid key: a is not INT: 1"),
        (b'{"a": 1, "b": null}', "0 has a key without b"),
    ):
        with pytest.raises(JoinError, match=problem):
            parser.keys(pa.array([key]), str)


def test_keys_with_equal_values_are_equal_in_the_cache() -> None:
    two = TableSpec("t", ("b", "a"), (), (("a", "INT"), ("b", "STRING")))
    assert canonical(b'{"a": 1.0, "b": true}', two) == canonical(b'{"b":"true","a":1}', two)


# --- in Spark ------------------------------------------------------------------------------------

TYPES = list(dict.fromkeys(ddl for ddl, _, _ in ACCEPTED))
SCHEMA = ", ".join(["id STRING", *(f"`c {i}` {ddl}" for i, ddl in enumerate(TYPES))])


def objects(count: int) -> list[bytes]:
    """Return JSON objects that have an accepted value in each column."""
    made = []
    for number in range(count):
        fields = [f'"id": "{number}"']
        for i, ddl in enumerate(TYPES):
            texts = [text for each, text, _ in ACCEPTED if each == ddl and "0000-" not in text]
            fields.append(f'"c {i}": {texts[number % len(texts)]}')
        made.append(f"{{{', '.join(fields)}}}".encode())
    return made


def read_table(table: TableInput, spark: SparkSession) -> dict[str, Callable[[], DataFrame]]:
    """Return all ways to read the rows of a table."""
    events = spark.range(0, 12, 1, 2).selectExpr("string(id) AS id")

    def changes(frame: DataFrame) -> DataFrame:
        name = f"m{uuid.uuid4().hex}"
        query = frame.writeStream.format("memory").queryName(name).outputMode("update")
        running = query.trigger(availableNow=True).start()
        running.awaitTermination()
        return spark.table(name)

    names = table.schema.names
    wanted = [f"`{name}`" for name in names]
    view = join_tables(table, table, foreign_key="id", right_prefix="r ")
    return {
        "rows": lambda: table.df,
        "versions": lambda: table.versions.select(*wanted),
        "changes": lambda: changes(table.changes).select(*wanted),
        "enrich": lambda: enrich(events, table, "id", "inner"),
        "view": lambda: changes(view).select("id", *[f"`r {name}`" for name in names[1:]]),
    }


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("zone", ["UTC", "America/New_York"])
def test_each_way_to_read_a_table_gives_the_rows_of_a_stream(
    spark: SparkSession, tidemill_broker: Broker, zone: str
) -> None:
    spark = spark.newSession()
    spark.conf.set("spark.sql.session.timeZone", zone)
    spark.conf.set("spark.sql.shuffle.partitions", "1")
    topic = tidemill_broker.topic()
    values = objects(12)
    records = [{"key": str(i).encode(), "value": value} for i, value in enumerate(values)]
    tidemill_broker.produce(topic, records)
    log = Changelog(tidemill_broker, SCHEMA, ("id",), topic)
    reader = spark.read.format("tidemill").option("subscribe", topic).schema(SCHEMA)
    reader = reader.option("kafka.bootstrap.servers", tidemill_broker.bootstrap)
    expected = [repr(row) for row in rows(reader.option("value.format", "json").load())]
    assert len(expected) == 12
    for name, read in read_table(log.table(spark, keep_versions="1 day"), spark).items():
        assert (name, [repr(row) for row in rows(read())]) == (name, expected)


@pytest.mark.spark
@pytest.mark.slow
def test_each_way_to_read_a_table_reports_the_reason_of_a_stream(
    spark: SparkSession, tidemill_broker: Broker
) -> None:
    log = Changelog(tidemill_broker, "id STRING, at TIMESTAMP", ("id",))
    log.put({"id": "0", "at": 1363000000})
    log.flush()
    for read in read_table(log.table(spark, keep_versions="1 day"), spark).values():
        with pytest.raises(Exception, match="can't be parsed: at is not TIMESTAMP: 1363000000"):
            read().collect()
