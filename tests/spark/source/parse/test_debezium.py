"""Envelopes as columns: events in order, dead letters with reasons, deletes without an echo."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from tidemill.spark.source.captured.schema import event_schema
from tidemill.spark.source.parse import ParseSchema, make_parser


def _envelope(op: str, before: Any, after: Any, lsn: int, ms: int = 1000) -> bytes:
    source = {"connector": "postgresql", "name": "d", "lsn": lsn, "ts_ms": ms}
    made = {"op": op, "before": before, "after": after, "source": source, "transaction": None}
    return json.dumps(made).encode()


def test_events_are_rows_and_what_is_none_is_refused_or_left_out() -> None:
    schema = ParseSchema.from_ddl(
        event_schema("id INT, day DATE, amount DECIMAL(9,2)"), event_time="commit_time"
    )
    values = [
        _envelope("c", None, {"id": 1, "day": 0, "amount": "1.50"}, 10),
        b"not json",
        None,
        _envelope("u", {"id": 1}, {"id": "x", "day": "2020-01-01"}, 11),
        _envelope("d", {"id": 1, "day": "1970-01-01", "amount": "1.50"}, None, 12, 2000),
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
    schema = ParseSchema.from_ddl(event_schema("id INT"))
    parser = make_parser(schema, "debezium")
    events = pa.array([_envelope("c", None, {"id": i}, i) for i in range(3)], pa.binary())
    assert parser.parse(events).accepted is None
    echoes = parser.parse(pa.array([None, None], pa.binary()))
    assert echoes.reasons == []
    assert [len(column) for column in echoes.columns] == [0] * 7
