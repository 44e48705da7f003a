"""Keys, envelopes, tombstones and changes of the key, as Debezium writes them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tidemill import __version__
from tidemill.connect.cdc.contract import Capture, Change, Column, Operation, Row, Table
from tidemill.connect.cdc.envelope import Encoder, Record, topic_name
from tidemill.connect.cdc.values import UNAVAILABLE

TABLE = Table(
    "shop.db",
    "main",
    "orders",
    (Column("id", "INTEGER", "int", False), Column("note", "TEXT", "text")),
    ("id",),
)


def change(op: Operation, before: Row | None, after: Row | None, table: Table = TABLE) -> Change:
    return Change(table, op, before, after, 1_000, {"change_id": 7})


def encoder(**options: Any) -> Encoder:
    return Encoder("sqlite", "shop", now_ms=lambda: 2_000, **options)


def opened(records: list[Record]) -> list[tuple[Any, Any]]:
    """Return (key, op or None for a tombstone)."""
    return [
        (json.loads(each.key or b"null"), each.value and json.loads(each.value)["op"])
        for each in records
    ]


def test_an_update_has_debeziums_fields() -> None:
    (record,) = encoder().encode(
        change("u", {"id": 1, "note": "a"}, {"id": 1, "note": "b"}),
        transaction={"id": "9", "total_order": 1, "data_collection_order": 1},
    )
    assert record.topic == "shop.main.orders"
    assert record.key == b'{"id":1}'
    assert record.ts_ms == 1_000
    assert record.value is not None
    assert json.loads(record.value) == {
        "before": {"id": 1, "note": "a"},
        "after": {"id": 1, "note": "b"},
        "source": {
            "version": __version__,
            "connector": "sqlite",
            "name": "shop",
            "db": "shop.db",
            "schema": "main",
            "table": "orders",
            "snapshot": "false",
            "ts_ms": 1_000,
            "change_id": 7,
        },
        "op": "u",
        "ts_ms": 2_000,
        "transaction": {"id": "9", "total_order": 1, "data_collection_order": 1},
    }


def test_a_delete_is_followed_by_a_tombstone() -> None:
    records = encoder().encode(change("d", {"id": 1}, None))
    assert opened(records) == [({"id": 1}, "d"), ({"id": 1}, None)]


def test_a_key_change_is_a_delete_a_tombstone_and_a_create() -> None:
    records = encoder().encode(change("u", {"id": 1, "note": "a"}, {"id": 2, "note": "a"}))
    assert opened(records) == [({"id": 1}, "d"), ({"id": 1}, None), ({"id": 2}, "c")]
    assert json.loads(records[2].value or b"")["before"] is None


def test_a_table_without_a_key_has_all_columns_as_its_key() -> None:
    table = Table("shop.db", "main", "log", TABLE.columns, ())
    records = encoder().encode(
        change("u", {"id": 1, "note": "a"}, {"id": 1, "note": "b"}, table), snapshot="true"
    )
    old, new = {"id": 1, "note": "a"}, {"id": 1, "note": "b"}
    assert opened(records) == [(old, "d"), (old, None), (new, "c")]
    assert json.loads(records[2].value or b"")["source"]["snapshot"] == "true"


def test_the_plain_form_has_rows_and_tombstones_only() -> None:
    plain = encoder(plain=True)
    assert [each.value for each in plain.encode(change("c", None, {"id": 1, "note": None}))] == [
        b'{"id":1,"note":null}'
    ]
    assert [each.value for each in plain.encode(change("d", {"id": 1}, None))] == [None]


def test_a_value_that_is_not_known_is_marked() -> None:
    (record,) = encoder().encode(change("u", None, {"id": 1}))
    assert json.loads(record.value or b"")["after"] == {"id": 1, "note": UNAVAILABLE}


def test_a_truncate_has_no_record_and_a_message_goes_to_its_topic() -> None:
    assert encoder().encode(change("t", None, None)) == []
    content = {"prefix": "audit", "content": "YQ=="}
    (record,) = encoder().encode(Change(None, "m", None, content, 1_000, {"lsn": 5}))
    assert (record.topic, record.key) == ("shop.message", b'{"prefix":"audit"}')
    assert json.loads(record.value or b"")["message"] == content


@pytest.mark.parametrize(
    ("parts", "expected"),
    [(("a", "b c", "d"), "a.b_c.d"), (("shop", "main", "größe/x"), "shop.main.gr__e_x")],
)
def test_topic_names_are_valid(parts: tuple[str, ...], expected: str) -> None:
    assert topic_name(*parts) == expected


@pytest.mark.parametrize(
    ("include", "exclude", "selected"),
    [
        (("*",), (), True),
        (("orders",), (), True),
        (("main.*",), (), True),
        (("other.*",), (), False),
        (("*",), ("main.ord*",), False),
    ],
)
def test_patterns_select_tables(
    include: tuple[str, ...], exclude: tuple[str, ...], selected: bool
) -> None:
    assert Capture("s", include, exclude).selects("main", "orders") is selected
