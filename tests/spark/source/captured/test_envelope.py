"""Envelopes of captured tables: what they say, with and without a schema around them."""

from __future__ import annotations

import base64
import itertools
import json
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from tidemill.spark.source.captured.envelope import EnvelopeError, Envelopes
from tidemill.spark.source.captured.positions import Position, position_of
from tidemill.spark.source.captured.schema import event_schema
from tidemill.spark.source.parse import make_parser
from tidemill.spark.source.parse.ddl_schema import schema_of

COLUMNS = (("id", "BIGINT"), ("name", "STRING"), ("price", "DECIMAL(10,2)"))
SOURCE = {"connector": "postgresql", "name": "demo", "lsn": 24023128, "ts_ms": 1_700_000_000_123}


def envelope(op: str = "c", **fields: Any) -> bytes:
    made = {"before": None, "after": None, "source": SOURCE, "op": op, "ts_ms": 1, **fields}
    return json.dumps(made).encode()


def test_an_event_has_the_declared_columns_the_commit_time_and_the_position() -> None:
    row = {"id": 1, "name": "é", "price": "12.50", "other": [1]}
    text = envelope("u", before=None, after=row, transaction={"id": "571:24", "total_order": 1})
    event = Envelopes(COLUMNS).event(text)
    assert (event.op, event.before) == ("u", None)
    assert event.after == {"id": 1, "name": "é", "price": "12.50"}
    assert event.commit_us == 1_700_000_000_123_000
    assert event.position == Position("postgresql/demo", None, (24023128,), 24023128)
    assert event.transaction == "571:24"


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        ({"ts_ms": 5, "ts_us": 5123, "ts_ns": 5_123_456}, 5123),
        ({"ts_ns": 5_123_999}, 5123),
        ({"ts_ms": 5}, 5000),
        ({"ts_ms": True}, 1000),
        ({}, 1000),
    ],
)
def test_the_finest_time_of_the_source_is_the_commit_time(
    block: dict[str, Any], expected: int
) -> None:
    text = envelope(source={"connector": "mysql", **block}, after={"id": 1})
    assert Envelopes(COLUMNS).event(text).commit_us == expected


def _field(name: str, kind: str, semantic: str | None = None, **more: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"field": name, "type": kind, "optional": True, **more}
    return found if semantic is None else {**found, "name": semantic}


def _number(value: int, length: int) -> str:
    return base64.b64encode(value.to_bytes(length, "big", signed=True)).decode()


CONNECT, TIME = "org.apache.kafka.connect.data.", "io.debezium.time."
WITH_SCHEMA = [
    ("DATE", _field("x", "int32", f"{TIME}Date"), 15706, "2013-01-01"),
    ("DATE", _field("x", "int32", f"{CONNECT}Date"), -1, "1969-12-31"),
    ("TIMESTAMP", _field("x", "int64", f"{TIME}Timestamp"), 1, "1970-01-01T00:00:00.001000Z"),
    ("TIMESTAMP", _field("x", "int64", f"{TIME}MicroTimestamp"), -1, "1969-12-31T23:59:59.999999Z"),
    (
        "TIMESTAMP_NTZ",
        _field("x", "int64", f"{TIME}NanoTimestamp"),
        1999,
        "1970-01-01T00:00:00.000001",
    ),
    ("STRING", _field("x", "int64", f"{TIME}MicroTimestamp"), 0, "1970-01-01T00:00:00"),
    ("BIGINT", _field("x", "int64", f"{TIME}MicroTimestamp"), 7, 7),
    (
        "TIMESTAMP",
        _field("x", "string", f"{TIME}ZonedTimestamp"),
        "2020-01-01T00:00:00Z",
        "2020-01-01T00:00:00Z",
    ),
    ("STRING", _field("x", "int64", f"{TIME}MicroTime"), 3_661_000_001, "01:01:01.000001"),
    ("STRING", _field("x", "int32", f"{TIME}Time"), 1000, "00:00:01"),
    (
        "DECIMAL(10,2)",
        _field("x", "bytes", f"{CONNECT}Decimal", parameters={"scale": "2"}),
        _number(-1250, 2),
        "-12.50",
    ),
    (
        "DOUBLE",
        _field("x", "bytes", f"{CONNECT}Decimal", parameters={"scale": "2"}),
        _number(1250, 2),
        12.5,
    ),
    (
        "BIGINT",
        _field("x", "bytes", f"{CONNECT}Decimal", parameters={"scale": "0"}),
        _number(10**18, 9),
        10**18,
    ),
    (
        "DECIMAL(38,0)",
        _field("x", "bytes", f"{CONNECT}Decimal", parameters={"scale": "0"}),
        _number(10**37 + 1, 16),
        str(10**37 + 1),
    ),
    (
        "DECIMAL(38,9)",
        _field("x", "struct", "io.debezium.data.VariableScaleDecimal"),
        {"scale": 3, "value": _number(1, 1)},
        "0.001",
    ),
    (
        "ARRAY<DATE>",
        _field("x", "array", items={"type": "int32", "name": f"{TIME}Date"}),
        [0, None],
        ["1970-01-01", None],
    ),
    ("STRING", _field("x", "string", "io.debezium.data.Json"), '{"a":1}', '{"a":1}'),
    ("BINARY", _field("x", "bytes"), "AP8=", "AP8="),
]


@pytest.mark.parametrize(("kind", "field", "value", "expected"), WITH_SCHEMA)
def test_the_schema_around_the_payload_says_what_a_value_is(
    kind: str, field: dict[str, Any], value: Any, expected: Any
) -> None:
    row = {"type": "struct", "field": "after", "fields": [field]}
    payload = {"before": None, "after": {"x": value}, "source": SOURCE, "op": "r"}
    text = json.dumps({"schema": {"type": "struct", "fields": [row]}, "payload": payload})
    event = Envelopes([("x", kind)]).event(text.encode())
    assert event.after == {"x": expected}


def test_without_a_schema_the_type_of_the_column_decides() -> None:
    columns = (("day", "DATE"), ("at", "TIMESTAMP"), ("local", "TIMESTAMP_NTZ"), ("n", "INT"))
    row = {"day": 15706, "at": 1_000_001, "local": 5, "n": 15706}
    event = Envelopes(columns, "epoch_us").event(envelope(after=row))
    assert event.after == {
        "day": "2013-01-01",
        "at": "1970-01-01T00:00:01.000001Z",
        "local": "1970-01-01T00:00:00.000005",
        "n": 15706,
    }
    iso = {"day": "2013-01-01", "at": "2013-01-01T00:00:00+01:00", "local": None, "n": 1}
    assert Envelopes(columns).event(envelope(after=iso)).after == iso
    with pytest.raises(EnvelopeError, match="at: 5 is a number in a TIMESTAMP column"):
        Envelopes(columns).event(envelope(after={"at": 5}))


def test_a_key_is_read_with_and_without_its_schema() -> None:
    envelopes = Envelopes([("id", "DATE"), ("name", "STRING")])
    assert envelopes.key(b'{"id": 1}') == {"id": "1970-01-02"}
    schema = {"type": "struct", "fields": [_field("id", "int32", f"{TIME}Date")]}
    wrapped = json.dumps({"schema": schema, "payload": {"id": 0}}).encode()
    assert envelopes.key(wrapped) == {"id": "1970-01-01"}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"", "not a JSON object"),
        (b"[]", "not a JSON object"),
        (b'{"id": 1}', "it has no op"),
        (b'{"op": "x"}', "it has no op"),
        (b'{"op": ["c"]}', "it has no op"),
        (b'{"op": "c"}', "op c, and no row in after"),
        (b'{"op": "c", "after": 1}', "after is not a JSON object"),
        (b'{"op": "c", "after": {"ID": 1}}', "the field ID differs from id only in case"),
        (b'{"schema": null, "payload": null}', "payload of the value is not a JSON object"),
        (b'{"op": "c", "after": {"day": 99999999999}}', "day: 99999999999 is not of the type DATE"),
    ],
)
def test_what_is_not_an_envelope_is_refused_with_the_reason(text: bytes, reason: str) -> None:
    with pytest.raises(EnvelopeError, match=reason):
        Envelopes([("id", "BIGINT"), ("day", "DATE")]).event(text)


def test_a_source_block_may_hold_anything() -> None:
    blocks: list[Any] = [None, 1, [], {}, {"connector": 3}]
    for source in (*blocks, {"connector": "mysql", "file": 1, "pos": -1}):
        event = Envelopes(COLUMNS).event(envelope(source=source, after={"id": 1}))
        assert event.position is None


def _at(connector: str, op: str = "u", **source: Any) -> Position:
    found = position_of({"connector": connector, "name": "a", **source}, op)
    assert found is not None
    return found


def test_positions_of_one_server_are_ordered() -> None:
    binlog = [("b.000009", 900, 0), ("b.000010", 4, 0), ("b.000010", 4, 1), ("b.000010", 5, 0)]
    for connector in ("mysql", "mariadb"):
        places = [_at(connector, file=f, pos=p, row=r, server_id=1) for f, p, r in binlog]
        assert all(a.is_before(b) for a, b in itertools.pairwise(places))
        assert not any(b.is_before(a) for a, b in itertools.pairwise(places))
        assert [p.number for p in places] == sorted(p.number for p in places)
        other = _at(connector, file="b.000001", pos=4, server_id=2)
        assert not other.is_before(places[0])
        assert not places[0].is_before(other)
        snapshot = _at(connector, "r", file="b.000009", pos=4, server_id=0)
        assert snapshot.is_before(places[0])
    assert _at("sqlite", change_id=1).is_before(_at("sqlite", change_id=2))
    assert _at("postgresql", lsn="0/FF").is_before(_at("postgresql", lsn="1/0"))
    assert not _at("postgresql", lsn=1).is_before(_at("sqlite", change_id=2))
    first, second = (_at("postgresql", lsn=lsn, commit_lsn=c) for lsn, c in ((9, 10), (8, 20)))
    assert first.is_before(second)


def test_columns_of_the_record_are_beside_those_of_the_event() -> None:
    made = event_schema("id BIGINT NOT NULL, _offset BIGINT, `a b` ARRAY<DATE>")
    row = "STRUCT<`id`: BIGINT, `a b`: ARRAY<DATE>>"
    assert made == (
        f"op STRING, before {row}, after {row}, commit_time TIMESTAMP, _version BIGINT, "
        "source STRING, transaction_id STRING, `_offset` BIGINT"
    )


# --- as columns ---


def change(op: str, before: Any, after: Any, lsn: int, ms: int = 1000) -> bytes:
    source = {"connector": "postgresql", "name": "d", "lsn": lsn, "ts_ms": ms}
    made = {"op": op, "before": before, "after": after, "source": source, "transaction": None}
    return json.dumps(made).encode()


def test_events_are_rows_and_what_is_none_is_refused_or_left_out() -> None:
    schema = schema_of(
        event_schema("id INT, day DATE, amount DECIMAL(9,2)"), event_time="commit_time"
    )
    values = [
        change("c", None, {"id": 1, "day": 0, "amount": "1.50"}, 10),
        b"not json",
        None,
        change("u", {"id": 1}, {"id": "x", "day": "2020-01-01"}, 11),
        change("d", {"id": 1, "day": "1970-01-01", "amount": "1.50"}, None, 12, 2000),
        None,
        json.dumps({"op": "m", "message": {"prefix": "p"}}).encode(),
        json.dumps({"op": "c", "after": {"id": 2}}).encode(),
    ]
    parser = make_parser(schema, "debezium")
    parsed = parser.parse(pa.array(values, pa.binary()))
    rows = pa.table(parsed.columns, names=[c.name for c in schema.columns]).to_pylist()
    assert [row["op"] for row in rows] == ["c", "d"]
    assert rows[0]["after"]["day"].isoformat() == "1970-01-01"
    assert str(rows[0]["after"]["amount"]) == "1.50"
    assert rows[0]["before"] is None
    assert rows[1]["before"]["id"] == 1
    assert rows[1]["after"] is None
    assert [row["_version"] for row in rows] == [10, 12]
    assert [row["commit_time"] for row in rows] == [
        datetime(1970, 1, 1, 0, 0, s, tzinfo=UTC) for s in (1, 2)
    ]
    assert json.loads(rows[0]["source"])["connector"] == "postgresql"
    assert parsed.accepted is not None
    assert parsed.accepted.to_pylist() == [True, *[False] * 3, True, *[False] * 3]
    reasons = dict(parsed.reasons)
    assert list(reasons) == [1, 3, 7]
    assert reasons[1] == "the value is not a JSON object"
    assert "after" in reasons[3]
    assert reasons[7] == "the event time commit_time is missing"
    assert parser.check(pa.array(values, pa.binary())) == parsed.reasons


def test_a_batch_of_events_only_has_no_mask_and_one_of_echoes_only_has_no_rows() -> None:
    schema = schema_of(event_schema("id INT"))
    parser = make_parser(schema, "debezium")
    events = pa.array([change("c", None, {"id": i}, i) for i in range(3)], pa.binary())
    assert parser.parse(events).accepted is None
    echoes = parser.parse(pa.array([None, None], pa.binary()))
    assert echoes.reasons == []
    assert [len(column) for column in echoes.columns] == [0] * 7
