"""Bytes that are anyone's are shown without harm, and without loss of what they say."""

from __future__ import annotations

import json

import pytest

from tidemill.gateway.console.messages.decoding import (
    compact,
    facts,
    full,
    hex_table,
    indented,
    short,
)
from tidemill.gateway.console.messages.masking import MASK, Mask


@pytest.mark.parametrize(
    ("data", "kind", "text"),
    [
        (None, "null", "null"),
        (b"", "empty", ""),
        (b"plain", "text", "plain"),
        ("Zoë".encode(), "text", "Zoë"),
        (b'{"a": 1}', "json", '{"a": 1}'),
        (b"{not json", "text", "{not json"),
        (b"[1,\n 2]", "json", "[1, 2]"),
        (b"\xff\xfe\x00", "hex", "ff fe 00"),
        (b"\0" * 9, "hex", "00 00 00 00 00 00 00 00 00"),
        ("a\u202eb\u200bc\ufeff".encode(), "text", "a\\u202eb\\u200bc\\ufeff"),
        (b"\x1b[31mred\x07", "text", "\\u001b[31mred\\u0007"),
    ],
)
def test_a_value_in_a_list(data: bytes | None, kind: str, text: str) -> None:
    assert (short(data).kind, short(data).text) == (kind, text)


def test_a_large_value_is_cut_also_within_a_character() -> None:
    for before in range(4):
        data = b"a" * (400 - before) + "\U0001f30a".encode() * 10
        found = short(data)
        assert (found.kind, found.is_cut, found.size) == ("text", True, len(data))
        assert found.text.startswith("a" * (400 - before))
    found = short(b'{"a": "' + b"x" * 10_000_000)
    assert (found.kind, found.is_cut, len(found.text)) == ("json", True, 400)
    assert len(full(b"\xff" * 10_000_000).text) < 200_000


def test_json_is_indented_and_keeps_its_characters() -> None:
    text = r'{"n":12345678901234567890.10,"a":[1,{"b":"x, y: {z} \" \\"},[],{}],"é":null}'
    shown = indented(text)
    assert json.loads(shown) == json.loads(text)
    assert "12345678901234567890.10" in shown
    assert '\n  "n": 12345678901234567890.10,\n  "a": [\n    1,\n    {\n      "b"' in shown
    assert "[],\n    {}" in shown
    assert compact(shown) == text
    deep = "[" * 5000 + "]" * 5000
    assert len(indented(deep)) < 1_500_000


def test_bytes_are_a_table() -> None:
    assert hex_table(b"\x00AB" + bytes(range(20))).splitlines() == [
        "00000000  00 41 42 00 01 02 03 04 05 06 07 08 09 0a 0b 0c  .AB.............",
        "00000010  0d 0e 0f 10 11 12 13                             .......",
    ]


def test_traces_events_and_letters_are_recognised() -> None:
    trace = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    headers = [
        ("traceparent", trace),
        ("ce_type", b"order.paid"),
        ("ce_source", b"/shop"),
        ("error.reason", b"not JSON"),
    ]
    found = dict(facts(headers, b"x"))
    assert found["Trace"].endswith("span 00f067aa0ba902b7, sampled")
    assert (found["CloudEvent type"], found["CloudEvent source"]) == ("order.paid", "/shop")
    assert found["Dead letter"] == "not JSON"
    structured = [("content-type", b"application/cloudevents+json; charset=utf-8")]
    event = b'{"specversion":"1.0","type":"a","source":"b","id":"c","data":{}}'
    assert dict(facts(structured, event))["CloudEvent id"] == "c"
    assert facts(structured, b"{") == []
    assert facts([("traceparent", b"nonsense"), ("ce_type", None)], None) == []
    assert dict(facts([], b"\0\0\0\0\x07abc"))["Schema registry"] == "perhaps schema 7"


@pytest.mark.parametrize("depth", [300, 900, 1020, 2000])
def test_a_value_that_is_nested_too_deep_is_hidden_as_a_whole(depth: int) -> None:
    mask = Mask("customers", [("*", "card.number")])
    assert mask.value(b"[" * depth + b"4111" + b"]" * depth) == MASK.encode()


def test_fields_are_hidden_by_topic_also_in_lists() -> None:
    settings = [("cust*", "card.number"), ("cust*", "items.iban"), ("cust*", "$headers.Auth")]
    mask = Mask("customers", settings)
    value = b'{"card":{"number":4111,"x":1},"items":[{"iban":"a"},{"iban":"b","y":2},7]}'
    assert json.loads(mask.value(value) or b"") == {
        "card": {"number": MASK, "x": 1},
        "items": [{"iban": MASK}, {"iban": MASK, "y": 2}, 7],
    }
    assert mask.value(b"4111 is not JSON") == MASK.encode()
    assert mask.value(None) is None
    assert mask.key(b"k") == b"k"
    assert mask.headers([("auth", b"x"), ("b", b"y")]) == [("auth", MASK.encode()), ("b", b"y")]
    assert not Mask("orders", settings).is_needed
    whole = Mask("t", [("*", "$value"), ("t", "$key")])
    assert (whole.key(b"k"), whole.value(b"{}")) == (MASK.encode(), MASK.encode())
