"""Rules for rows, the outbox router, and transaction metadata."""

from __future__ import annotations

import hashlib
import hmac
import json
from dataclasses import replace
from typing import Any

import pytest

from tests.support.spans import PARENT
from tidemill.connect.cdc.contract import Change, Column, Row, Table
from tidemill.connect.cdc.definition import Outbox, parse
from tidemill.connect.cdc.errors import DefinitionError
from tidemill.connect.cdc.routing import (
    OutboxRouter,
    Rules,
    TransactionCounter,
    parse_condition,
    unused_rules,
)
from tidemill.connect.cdc.state import WorkerState

TABLE = Table(
    "d",
    "main",
    "people",
    tuple(Column(name, "TEXT", "text") for name in ("id", "email", "phone", "notes", "country")),
    ("id",),
)
OUTBOX = Table(
    "d",
    "main",
    "outbox",
    tuple(
        Column(name, "TEXT", "text")
        for name in ("id", "aggregatetype", "aggregateid", "type", "payload")
    ),
    ("id",),
)


def row(number: str = "1", country: str | None = "DE") -> Row:
    return {
        "id": number,
        "email": "a@b.c",
        "phone": "123",
        "notes": "secret",
        "country": country,
    }


def rules(monkeypatch: pytest.MonkeyPatch, **of_table: Any) -> Rules:
    monkeypatch.setenv("HASH_KEY", "k")
    return Rules(
        parse(
            {
                "name": "x",
                "kind": "sqlite",
                "hash_key": "${env:HASH_KEY}",
                "table": {"main.people": of_table},
            }
        )
    )


def test_columns_are_left_out_masked_and_hashed(monkeypatch: pytest.MonkeyPatch) -> None:
    applied = rules(
        monkeypatch, exclude_columns=["notes"], mask={"phone": "***"}, hash=["email", "id"]
    )
    change = applied.apply(Change(TABLE, "u", row(), row(), 1, {}))
    assert change is not None
    assert change.after == change.before
    assert change.after == {
        "id": hmac.new(b"k", b"1", hashlib.sha256).hexdigest(),
        "email": hmac.new(b"k", b"a@b.c", hashlib.sha256).hexdigest(),
        "phone": "***",
        "country": "DE",
    }
    assert change.table is not None
    assert [each.name for each in change.table.columns] == ["id", "email", "phone", "country"]
    assert "secret" not in json.dumps(change.after)


@pytest.mark.parametrize(
    ("op", "before", "after", "expected"),
    [
        ("c", None, "DE", "c"),
        ("c", None, "NL", None),
        ("r", None, "NL", None),
        ("u", "DE", "DE", "u"),
        ("u", "DE", "NL", "d"),  # it leaves the selection
        ("u", "NL", "DE", "c"),  # it enters it
        ("u", "NL", "NL", "d"),  # a delete of what is not there changes nothing
        ("d", "DE", None, "d"),
        ("c", None, None, None),  # NULL does not equal 'DE'
    ],
)
def test_conditions_select_rows(
    monkeypatch: pytest.MonkeyPatch,
    op: Any,
    before: str | None,
    after: str | None,
    expected: str | None,
) -> None:
    applied = rules(monkeypatch, where=["country = 'DE'"])
    change = Change(
        TABLE,
        op,
        row(country=before) if op in ("u", "d") else None,
        None if op == "d" else row(country=after),
        1,
        {},
    )
    found = applied.apply(change)
    assert (found and found.op) == expected


KEY_ONLY: Row = {"id": "1"}


@pytest.mark.parametrize(
    ("op", "before", "after", "expected"),
    [
        ("u", row(country="NL"), row(country="NL"), KEY_ONLY),
        ("u", None, row(country="NL"), KEY_ONLY),
        ("u", {"id": "1"}, row("2", country="NL"), KEY_ONLY),
        ("d", row(country="NL"), None, KEY_ONLY),
        ("d", {"id": "1"}, None, KEY_ONLY),
        ("u", row(country="DE"), row(country="NL"), row(country="DE")),
        ("d", row(country="DE"), None, row(country="DE")),
    ],
)
def test_no_delete_has_the_values_of_a_row_outside_of_the_selection(
    monkeypatch: pytest.MonkeyPatch,
    op: Any,
    before: Row | None,
    after: Row | None,
    expected: Row,
) -> None:
    applied = rules(monkeypatch, where=["country = 'DE'"])
    found = applied.apply(Change(TABLE, op, before, after, 1, {}))
    assert found is not None
    assert (found.op, found.before, found.after) == ("d", expected, None)


@pytest.mark.parametrize("op", ["u", "d"])
def test_of_a_table_without_a_key_nothing_outside_of_the_selection_is_written(
    monkeypatch: pytest.MonkeyPatch, op: Any
) -> None:
    applied = rules(monkeypatch, where=["country = 'DE'"])
    after = row(country="NL") if op == "u" else None
    change = Change(replace(TABLE, key=()), op, row(country="NL"), after, 1, {})
    assert applied.apply(change) is None


def test_an_empty_key_of_hashes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HASH_KEY", "")
    definition = parse(
        {
            "name": "x",
            "kind": "sqlite",
            "hash_key": "${env:HASH_KEY}",
            "table": {"main.people": {"hash": ["email"]}},
        }
    )
    with pytest.raises(DefinitionError, match=r"hash_key \$\{env:HASH_KEY\} is empty"):
        Rules(definition)


@pytest.mark.parametrize(
    ("more", "unused"),
    [
        ({"table": {"main.people": {}, "outbox": {}}}, []),
        ({"table": {"main.poeple": {"mask": {"phone": "x"}}}}, ["main.poeple"]),
        ({"table": {"people": {}}, "outbox": {"table": "main.outbox"}}, []),
        ({"outbox": {"table": "events"}}, ["events"]),
        # The router sees the rows before the rules do.
        ({"table": {"main.outbox": {}}, "outbox": {"table": "outbox"}}, ["main.outbox"]),
    ],
)
def test_rules_without_effect_are_found(more: dict[str, Any], unused: list[str]) -> None:
    definition = parse({"name": "x", "kind": "sqlite", **more})
    assert unused_rules(definition, [TABLE, OUTBOX]) == unused


@pytest.mark.parametrize(
    ("text", "value", "holds"),
    [
        ("a = 'it''s'", "it's", True),
        ("a >= 10", 10, True),
        ("a >= 10", "9.99", False),  # a decimal is a string
        ("a < -1.5", -2, True),
        ("a != true", False, True),
        ("a IS NULL", None, True),
        ("a is not null", None, False),
        ("a = 'x'", None, False),
        ("a <> 'x'", None, False),
        ("a = 1", "text", False),
    ],
)
def test_a_condition_compares_values(text: str, value: Any, holds: bool) -> None:
    column, test = parse_condition(text)
    assert column == "a"
    assert test({"a": value}) is holds


@pytest.mark.parametrize("text", ["", "a", "a = ", "a = b", "a = 'x' OR 1 = 1", "a LIKE 'x'"])
def test_anything_else_is_not_a_condition(text: str) -> None:
    with pytest.raises(DefinitionError, match="invalid condition"):
        parse_condition(text)


@pytest.mark.parametrize(
    ("of_table", "text"),
    [
        ({"mask": {"nothing": "x"}}, "has no column nothing"),
        ({"exclude_columns": ["id"]}, "is in the primary key"),
        ({"where": ["nothing = 1"]}, "has no column nothing"),
    ],
)
def test_rules_that_do_not_fit_are_refused(
    monkeypatch: pytest.MonkeyPatch, of_table: Any, text: str
) -> None:
    applied = rules(monkeypatch, **of_table)
    with pytest.raises(DefinitionError, match=text):
        applied.apply(Change(TABLE, "c", None, row(), 1, {}))


def test_an_outbox_row_is_an_event_of_its_aggregate() -> None:
    router = OutboxRouter(Outbox(table="outbox"))
    event_row = {
        "id": "e1",
        "aggregatetype": "Order",
        "aggregateid": 7,
        "type": "OrderPlaced",
        "payload": '{"total": 5}',
    }
    assert router.takes(OUTBOX)
    assert not router.takes(TABLE)
    event = router.route(Change(OUTBOX, "c", None, event_row, 5, {}))
    assert event is not None
    assert (event.topic, event.key, event.value) == (
        "outbox.event.Order",
        b"7",
        b'{"total": 5}',
    )
    assert event.headers == [("id", b"e1"), ("eventType", b"OrderPlaced")]
    assert router.route(Change(OUTBOX, "d", event_row, None, 5, {})) is None
    with pytest.raises(DefinitionError, match="has no column payload"):
        router.route(Change(OUTBOX, "c", None, {k: 1 for k in event_row if k != "payload"}, 5, {}))


@pytest.mark.parametrize(
    ("columns", "kept"),
    [
        ({"traceparent": PARENT}, [("traceparent", PARENT.encode())]),
        (
            {"tracingspancontext": f"#Java\ntraceparent={PARENT}\ntracestate=a=b\nother\n"},
            [("traceparent", PARENT.encode()), ("tracestate", b"a=b")],
        ),
        ({"tracingspancontext": None, "traceparent": None}, []),
        ({"traceparent": "nonsense", "tracestate": "a=b"}, []),
        ({"traceparent": 7, "tracingspancontext": b"\xff=" * 100}, []),
    ],
)
def test_an_event_of_the_outbox_keeps_the_trace_of_its_row(
    columns: dict[str, Any], kept: list[tuple[str, bytes]]
) -> None:
    row = {"id": "e1", "aggregatetype": "Order", "aggregateid": 7, "payload": "{}", **columns}
    event = OutboxRouter(Outbox(table="outbox")).route(Change(OUTBOX, "c", None, row, 5, {}))
    assert event is not None
    assert event.headers == [("id", b"e1"), *kept]


def test_transactions_are_counted_across_a_restart() -> None:
    state = WorkerState()
    counter = TransactionCounter("p", state)

    def change(number: str) -> Change:
        return Change(TABLE, "c", None, row(), 1, {}, number)

    (begin,) = counter.begin(change("1"), {})
    assert counter.count(change("1")) == {
        "id": "1",
        "total_order": 1,
        "data_collection_order": 1,
    }
    counter = TransactionCounter("p", WorkerState.decode(state.encode()))
    assert list(counter.begin(change("1"), {})) == []
    assert counter.count(change("1"))["total_order"] == 2
    end, begin_next = counter.begin(change("2"), {"1": 99})
    shown = [json.loads(each.value or b"") for each in (begin, end, begin_next)]
    assert [(each["status"], each["id"], each["event_count"]) for each in shown] == [
        ("BEGIN", "1", None),
        ("END", "1", 2),
        ("BEGIN", "2", None),
    ]
    assert shown[1]["ts_ms"] == 99
    assert shown[1]["data_collections"] == [{"data_collection": "main.people", "event_count": 2}]
    assert list(counter.end("unknown", 1)) == []
