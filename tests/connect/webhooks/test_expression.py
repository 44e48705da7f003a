"""Filters and templates: what they mean, and that no text does harm."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.connect.webhooks.errors import ExpressionError
from tidemill.connect.webhooks.expression import parse_filter, parse_path
from tidemill.connect.webhooks.lanes import Event
from tidemill.connect.webhooks.messages import RecordScope
from tidemill.connect.webhooks.template import parse_template

VALUE = {
    "type": "order.paid",
    "cents": 250,
    "vip": True,
    "note": None,
    "customer": {"country": "NL", "a.b": 1},
    "items": [{"id": 7}, {"id": 8}],
    "one": 1,
}


def scope(value: Any = VALUE) -> RecordScope:
    raw = value if isinstance(value, bytes) else json.dumps(value).encode()
    headers = (("kind", b"test"), ("kind", b"last"), ("empty", None))
    event = Event(3, 42, 1_700_000_000_000, b"key1", raw, headers, id="msg_1")
    return RecordScope(event, "orders", ("type",))


@pytest.mark.parametrize(
    "text",
    [
        'type == "order.paid"',
        "cents > 100 and cents <= 250",
        'not (cents < 100) and customer.country in ["NL", "BE"]',
        'type == "other" or vip',
        "not note",
        "missing == null",
        "missing.deeper[3].x == null",
        "items[1].id == 8",
        'customer["a.b"] == 1',
        "items[2] == null",
        "not not vip",
        "one != true",
        'cents != "250"',
        "cents == 2.5e2",
        '$key == "key1" and $topic == "orders" and $partition == 3 and $offset == 42',
        '$headers.kind == "last" and $headers.empty == null',
        '$id == "msg_1" and $type == "order.paid" and $timestamp > 0',
        "$value.cents == 250",
        'type >= "order" and type < "p"',
        '"a\\u00e9\\"" == "a\\u00e9\\""',
        "-1 < cents",
        "note in [1, null]",
    ],
)
def test_a_record_meets_the_filter(text: str) -> None:
    assert parse_filter(text)(scope())


NOT_MET = """
false | null | note | missing | cents > "100" | vip > 0 | missing < 1 | one == true | cents in [] |
type and note | not vip | $nothing == 1 | items < 3
"""
INVALID = """
a == | == 1 | a = 1 | a b | (a | a) | a in b | a in [b] | a[ | a[x] | "open | a..b | a. | a[- |
__import__('os') | a + 1 | a == 'x' | a[1.5] | a[true] | and | "\\x" | a; b | 1 == 1 == 1 | 1e9 =
"""
ABSURD = ["", " ", "(" * 33 + "a" + ")" * 33, "a" * 5000]


@pytest.mark.parametrize("text", [each.strip() for each in NOT_MET.split("|")])
def test_a_record_does_not_meet_the_filter(text: str) -> None:
    assert not parse_filter(text)(scope())


@pytest.mark.parametrize("text", ["0", '""', "items", "customer"])
def test_everything_but_null_and_false_holds(text: str) -> None:
    assert parse_filter(text)(scope())


@pytest.mark.parametrize("text", [*(each.strip() for each in INVALID.split("|")), *ABSURD])
def test_what_is_not_an_expression_is_a_typed_error(text: str) -> None:
    with pytest.raises(ExpressionError):
        parse_filter(text)


@given(st.text(max_size=60) | st.text(alphabet='ab.$()[]"=<>! andornotin1,', max_size=40))
def test_no_text_raises_anything_else(text: str) -> None:
    try:
        condition = parse_filter(text)
    except ExpressionError:
        return
    assert condition(scope()) in (True, False)


def test_many_terms_are_evaluated_without_recursion() -> None:
    text = " and ".join(["cents > 1"] * 250)
    assert parse_filter(text)(scope())
    assert parse_filter("not " * 1000 + "vip")(scope())


@pytest.mark.parametrize("value", [[1, 2], "text", 5, None])
def test_a_value_that_is_not_an_object_has_no_fields(value: object) -> None:
    assert parse_filter("type == null")(scope(value))


def test_a_path_is_not_an_expression() -> None:
    assert parse_path("$headers.ce_type") == ("$headers", "ce_type")
    with pytest.raises(ExpressionError):
        parse_path("a == 1")


# --- templates -----------------------------------------------------------------------------------


def test_a_template_keeps_types_and_fills_texts() -> None:
    template = {
        "text": "Order ${cents} of ${customer.country}, ${missing}",
        "cents": "${cents}",
        "items": ["${items}", "$${not} $ {x}", 1, None, True],
        "plain": "no ${type} but $$",
    }
    assert parse_template(template)(scope()) == {
        "text": "Order 250 of NL, null",
        "cents": 250,
        "items": [VALUE["items"], "${not} $ {x}", 1, None, True],
        "plain": "no order.paid but $$",
    }


@given(st.text())
def test_no_value_breaks_out_of_its_text(text: str) -> None:
    made = parse_template({"a": "x ${v} y", "b": "${v}"})(
        scope({"v": text.encode("utf-8", "replace").decode()})
    )
    assert set(made) == {"a", "b"}
    assert json.loads(json.dumps(made)) == made


@pytest.mark.parametrize("template", ["${a b}", {"x": ["${}"]}, "${env:HOME}", "${a == 1}"])
def test_an_invalid_path_in_a_template_is_a_typed_error(template: object) -> None:
    with pytest.raises(ExpressionError):
        parse_template(template)
