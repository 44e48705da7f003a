"""Properties of messages: what pamqp writes is read; added headers change nothing else."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pamqp.commands import Basic

from tests.support.effort import examples
from tidemill.protocols.amqp.codec.properties import NONE, parse, with_headers, with_value
from tidemill.protocols.amqp.errors import MalformedError

ALL: dict[str, Any] = {
    "content_type": "text/plain",
    "content_encoding": "utf-8",
    "headers": {"a": 1, "b": "x"},
    "delivery_mode": 2,
    "priority": 7,
    "correlation_id": "c",
    "reply_to": "r",
    "expiration": "60000",
    "message_id": "m",
    "timestamp": datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC),
    "message_type": "t",
    "user_id": "guest",
    "app_id": "app",
}


def pamqp_bytes(**values: Any) -> bytes:
    return Basic.Properties(**values).marshal()


def pamqp_values(data: bytes) -> dict[str, Any]:
    properties = Basic.Properties()
    properties.unmarshal(int.from_bytes(data[:2], "big"), data[2:])
    return {name: value for name, value in properties if value not in (None, "")}


@pytest.mark.parametrize("name", ALL)
def test_each_property_alone(name: str) -> None:
    data = pamqp_bytes(**{name: ALL[name]})
    properties = parse(data)
    assert properties.data == data
    if name == "headers":
        assert (properties.headers, properties.values) == (ALL["headers"], {})
        return
    ((found, value),) = properties.values.items()
    assert found == {"message_type": "type"}.get(name, name)
    expected = ALL[name]
    if isinstance(expected, datetime.datetime):
        expected = int(expected.timestamp())
    assert value == (expected.encode() if isinstance(expected, str) else expected)


def test_all_together_and_none() -> None:
    assert len(parse(pamqp_bytes(**ALL)).values) == len(ALL) - 1
    assert parse(NONE) == (NONE, {}, {})


@given(chosen=st.sets(st.sampled_from(sorted(ALL))))
@settings(max_examples=examples(100))
def test_added_headers_change_nothing_else(chosen: set[str]) -> None:
    values = {name: ALL[name] for name in chosen}
    data = with_headers(pamqp_bytes(**values), {"b": "new", "c": [1, {"d": "e"}]}, ["a"])
    expected = {**values, "headers": {"b": "new", "c": [1, {"d": "e"}]}}
    assert pamqp_values(data) == expected


def test_the_expiration_of_a_dead_letter_is_removed() -> None:
    data = with_headers(pamqp_bytes(**ALL), {"x": 1}, expires=False)
    values = pamqp_values(data)
    assert "expiration" not in values
    assert values["reply_to"] == "r"
    assert values["message_id"] == "m"
    assert values["headers"] == {"a": 1, "b": "x", "x": 1}


def test_a_value_is_replaced() -> None:
    data = with_value(pamqp_bytes(**ALL), "reply_to", b"somewhere")
    assert pamqp_values(data) == {**pamqp_values(pamqp_bytes(**ALL)), "reply_to": "somewhere"}
    without = pamqp_bytes(app_id="a")
    assert with_value(without, "reply_to", b"x") == without


@pytest.mark.parametrize("data", [b"", b"\x80", b"\x00\x01", b"\x00\x02", NONE + b"x"])
def test_what_is_not_properties_is_refused(data: bytes) -> None:
    with pytest.raises(MalformedError):
        parse(data)


def test_properties_that_are_cut_are_refused() -> None:
    data = pamqp_bytes(**ALL)
    for size in range(len(data)):
        with pytest.raises(MalformedError):
            parse(data[:size])


@given(data=st.binary(max_size=100))
@settings(max_examples=examples(300))
def test_any_bytes_are_properties_or_refused(data: bytes) -> None:
    try:
        properties = parse(data)
    except MalformedError:
        return
    assert parse(with_headers(properties.data, {"k": "v"})).headers["k"] == "v"
