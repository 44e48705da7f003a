"""What tidemill's own capture writes is read as the same table, with versions and large values."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from tidemill.connect.cdc.contract import Change, Column, Table
from tidemill.connect.cdc.envelope import Encoder
from tidemill.connect.cdc.values import json_value
from tidemill.spark.source.captured.schema import event_schema
from tidemill.spark.source.parse import make_parser
from tidemill.spark.source.parse.ddl_schema import schema_of
from tidemill.spark.tables.captured_records import CapturedRecords, Record
from tidemill.spark.tables.changes import TableSpec
from tidemill.spark.tables.rows import Latest

COLUMNS = (
    Column("id", "bigint", "int"),
    Column("price", "numeric(12,2)", "decimal"),
    Column("built", "date", "date"),
    Column("seen", "timestamptz", "timestamptz"),
    Column("raw", "bytea", "bytes"),
    Column("ratio", "float8", "float"),
    Column("note", "text", "text"),
)
DDL = (
    "id BIGINT, price DECIMAL(12,2), built DATE, seen TIMESTAMP, raw BINARY, ratio DOUBLE, "
    "note STRING"
)
TYPES = tuple(each.split(" ", 1) for each in DDL.replace("12,2", "12;2").split(", "))
SPEC = TableSpec(
    "t", ("id",), (), captured=tuple((name, kind.replace(";", ",")) for name, kind in TYPES)
)
TABLE = Table("d", "public", "t", COLUMNS, ("id",))
PLACES = {
    "sqlite": lambda n: {"change_id": n},
    "postgres": lambda n: {"lsn": n, "commit_lsn": n},
    "mariadb": lambda n: {"file": "b.000001", "pos": n, "row": 0, "server_id": 1, "gtid": "0-1-1"},
    "mysql": lambda n: {"file": "b.000001", "pos": n, "row": 0, "server_id": 1, "gtid": "a:t:1"},
}


def row(number: int, note: str | None) -> dict[str, Any]:
    values = {
        "id": number,
        "price": Decimal("-1234567890.10"),
        "built": date(1969, 12, 31),
        "seen": datetime(2013, 3, 10, 7, 0, 0, 1, UTC),
        "raw": b"\x00\xff",
        "ratio": float("nan"),
        "note": note,
    }
    return {name: json_value(value) for name, value in values.items()}


@pytest.mark.parametrize("kind", PLACES)
def test_a_table_of_our_capture_is_read_with_deletes_key_changes_and_repeats(kind: str) -> None:
    encoder = Encoder(kind, "demo")

    def change(place: int, op: Any, before: Any, after: Any) -> list[Any]:
        source = PLACES[kind](place)
        return encoder.encode(Change(TABLE, op, before, after, place * 1000, source, None))

    partial = {name: value for name, value in row(4, None).items() if name != "note"}
    written = [
        change(1, "r", None, row(1, "snapshot")),
        change(2, "c", None, row(2, "two")),
        change(3, "u", row(2, "two"), row(3, "moved")),
        change(4, "c", None, row(4, "large")),
        change(5, "u", None, partial),
        change(6, "d", {"id": 1}, None),
        change(4, "c", None, row(4, "repeated")),
    ]
    rows, records = Latest(SPEC), CapturedRecords(SPEC)
    flat = [record for each in written for record in each]
    for offset, each in enumerate(flat):
        assert each.topic == "demo.public.t"
        records.apply(Record(each.key, each.value, 0, offset, each.ts_ms * 1000), rows)
    notes = {c.key.decode(): json.loads(c.value or b"")["note"] for c in rows.all()}
    assert notes == {"3": "moved", "4": "large"}
    schema = schema_of(event_schema(DDL))
    events = pa.array([each.value for each in flat], pa.binary())
    parsed = make_parser(schema, "debezium").parse(events)
    assert parsed.reasons == []
    found = pa.table(parsed.columns, names=[c.name for c in schema.columns]).to_pylist()
    assert [each["op"] for each in found] == ["r", "c", "d", "c", "c", "u", "d", "c"]
    after = found[0]["after"]
    assert (after["price"], after["built"]) == (Decimal("-1234567890.10"), date(1969, 12, 31))
    assert after["seen"] == datetime(2013, 3, 10, 7, 0, 0, 1, UTC)
    assert (after["raw"], str(after["ratio"])) == (b"\x00\xff", "nan")
    assert [each["commit_time"].second for each in found] == [1, 2, 3, 3, 4, 5, 6, 4]
    assert None not in [each["_version"] for each in found]
