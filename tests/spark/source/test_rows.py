"""From records to typed rows, or to the records that are refused."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tidemill.reading.fetch import SCHEMA, SCHEMA_WITH_HEADERS
from tidemill.spark.errors import RecordError, SchemaError
from tidemill.spark.source.planning.parsing import RowPlan
from tidemill.spark.source.rows import parse_records
from tidemill.spark.source.used_columns import UsedColumns

STAMP = datetime(2026, 3, 1, 12, tzinfo=UTC)


def records(
    *values: bytes | None, first: int = 0, schema: pa.Schema = SCHEMA_WITH_HEADERS
) -> pa.RecordBatch:
    count = len(values)
    columns: list[Any] = [
        pa.array([b"k%d" % i for i in range(count)], pa.binary()),
        pa.array(values, pa.binary()),
        pa.array(["t"] * count, pa.string()),
        pa.array([3] * count, pa.int32()),
        pa.array(range(first, first + count), pa.int64()),
        pa.array([STAMP] * count, pa.timestamp("us", tz="UTC")),
        pa.array([0] * count, pa.int32()),
        pa.array([None] * count, SCHEMA_WITH_HEADERS.field("headers").type),
    ]
    return pa.RecordBatch.from_arrays(columns[: len(schema)], schema=schema)


def parsed(plan: RowPlan, *batches: pa.RecordBatch) -> list[dict[str, Any]]:
    made = list(parse_records(batches, plan))
    assert all(batch.num_rows for batch in made)
    return [row for batch in made for row in batch.to_pylist()]


def test_columns_are_in_the_order_of_the_schema() -> None:
    plan = RowPlan("_offset BIGINT, b STRING, _key BINARY, a INT, _timestamp TIMESTAMP")
    (batch,) = parse_records([records(b'{"a": 1, "b": "x"}', first=7)], plan)

    assert batch.schema.names == ["_offset", "b", "_key", "a", "_timestamp"]
    assert batch.to_pylist() == [
        {"_offset": 7, "b": "x", "_key": b"k0", "a": 1, "_timestamp": STAMP}
    ]


def test_columns_of_the_record_are_those_of_the_accepted_values() -> None:
    plan = RowPlan("a INT, _offset BIGINT, _key BINARY", drop_malformed=True)
    batches = [records(b"x", b'{"a": 1}', None, b'{"a": 2}'), records(b"{}", b"[]", first=4)]

    rows = parsed(plan, *batches)
    assert [(row["a"], row["_offset"], row["_key"]) for row in rows] == [
        (1, 1, b"k1"),
        (2, 3, b"k3"),
        (None, 4, b"k0"),
    ]


def test_a_column_that_is_not_used_is_checked_and_has_no_values() -> None:
    used = UsedColumns()
    plan = RowPlan("a INT, b INT, _offset BIGINT", drop_malformed=True, used=used.path)
    used.write(["a", "_offset"])

    rows = parsed(plan, records(b'{"a": 1, "b": 2}', b'{"a": 3, "b": "x"}', b'{"a": 4}'))
    assert rows == [{"a": 1, "b": None, "_offset": 0}, {"a": 4, "b": None, "_offset": 2}]


@pytest.mark.parametrize("content", [None, "", "{}", '["a'])
def test_without_a_list_of_used_columns_all_have_values(
    tmp_path: Path, content: str | None
) -> None:
    path = tmp_path / "columns"
    if content is not None:
        path.write_text(content)

    plan = RowPlan("a INT, b INT", used=str(path))
    assert parsed(plan, records(b'{"a": 1, "b": 2}')) == [{"a": 1, "b": 2}]


def test_a_query_that_uses_no_column_gets_as_many_rows() -> None:
    used = UsedColumns()
    used.write([])
    plan = RowPlan("a INT, b STRING", drop_malformed=True, used=used.path)

    assert parsed(plan, records(b'{"a": 1}', b"x", b"{}")) == [{"a": None, "b": None}] * 2


def test_batches_of_which_nothing_is_left_are_not_yielded() -> None:
    good, bad = records(b"{}"), records(b"x")
    assert parsed(RowPlan("a INT", drop_malformed=True), bad, bad) == []
    assert parsed(RowPlan("a INT", refused=True), good, good) == []


def test_refused_records_keep_their_columns_and_get_a_reason() -> None:
    plan = RowPlan("a INT", refused=True)
    batch = records(b"x", b'{"a": 1}', b'{"a": "one"}', None, schema=SCHEMA)

    rows = parsed(plan, batch)
    assert [row["offset"] for row in rows] == [0, 2, 3]
    assert [row["value"] for row in rows] == [b"x", b'{"a": "one"}', None]
    assert rows[1]["reason"] == "a is not INT: one"
    assert list(rows[0]) == [*SCHEMA.names, "reason"]


def test_a_record_that_cant_be_parsed_is_named_and_ends_the_rows() -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        yield records(b"{}")
        yield records(b"{}", b"x", first=1)
        pytest.fail("read on after the error")

    rows = parse_records(batches(), RowPlan("a INT"))
    assert next(rows).num_rows == 1
    with pytest.raises(RecordError, match="topic t: the record at offset 2 of partition 3 can't"):
        next(rows)


def test_the_event_time_may_be_that_of_the_record() -> None:
    plan = RowPlan("a INT, _timestamp TIMESTAMP", event_time="_timestamp")
    assert parsed(plan, records(b"{}")) == [{"a": None, "_timestamp": STAMP}]


def test_times_of_another_zone_and_large_arrays_are_taken() -> None:
    """Spark's connector has times in the zone of the session."""
    batch = records(b'{"a": 1}', schema=SCHEMA)
    zone = batch.column("timestamp").cast(pa.timestamp("us", tz="Asia/Tokyo"))
    batch = batch.set_column(5, "timestamp", zone)
    batch = batch.set_column(1, "value", batch.column("value").cast(pa.large_binary()))
    plan = RowPlan("a INT, _timestamp TIMESTAMP")
    (made,) = parse_records([batch], plan)

    assert made.schema.field("_timestamp").type == pa.timestamp("us", tz="UTC")
    assert made.to_pylist() == [{"a": 1, "_timestamp": STAMP}]


@pytest.mark.parametrize(
    "schema", ["_offset INT, a INT", "_Key BINARY, a INT", "_offset BIGINT", "a VARIANT", ""]
)
def test_a_schema_that_cant_be_read_is_refused(schema: str) -> None:
    with pytest.raises(SchemaError):
        parsed(RowPlan(schema), records(b"{}"))
