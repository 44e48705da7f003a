"""Definitions, and the messages that they make of records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.connect.webhooks.definition import Webhook, parse, read_file
from tidemill.connect.webhooks.errors import DefinitionError, MessageError
from tidemill.connect.webhooks.lanes import Delivery, Event
from tidemill.connect.webhooks.messages import Messages
from tidemill.connect.webhooks.signatures import new_secret


def webhook(**more: Any) -> Webhook:
    return parse({"name": "a", "topic": "t", "url": "https://x.test/", "signed": False, **more})


def event(value: bytes | None = b"{}", **more: Any) -> Event:
    return Event(2, 7, 1_700_000_000_000, b"k", value, **more)


def made(value: bytes | None, **more: Any) -> bytes:
    messages, it = Messages(webhook(**more), "topicid"), event(value)
    assert messages.accepts(it)
    return messages.message(Delivery([it])).body


# --- ids -----------------------------------------------------------------------------------------


def test_an_id_names_topic_partition_and_offset() -> None:
    it = event()
    Messages(webhook(), "topicid").accepts(it)
    assert it.id == "msg_topicid-2-7"


@pytest.mark.parametrize(
    ("given", "prefix"),
    [
        (b"evt_1", "evt_1"),
        (None, "msg_t"),
        (b"", "msg_t"),
        *((each, "msg_") for each in (b"a.b", b"x" * 500, b"\xff", b"a b", b"a\r\nX: y")),
    ],
)
def test_a_header_can_have_the_id_and_can_not_break_the_signature(
    given: bytes | None, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEY_OF_TEST", new_secret().reveal())
    messages = Messages(
        webhook(id_header="id", signed=True, secrets=["${env:KEY_OF_TEST}"]), "topicid"
    )
    ids = []
    for _ in range(2):
        it = event(headers=(("id", b"other"), ("id", given)))
        messages.accepts(it)
        message = messages.message(Delivery([it]))
        headers = messages.headers(message, 1_700_000_000)
        ids.append(headers["webhook-id"])
    assert ids[0] == ids[1]
    assert ids[0].startswith(prefix)
    assert "." not in ids[0]


@given(st.binary(max_size=300))
def test_no_id_in_a_header_is_refused_when_it_is_signed(given: bytes) -> None:
    messages = Messages(webhook(id_header="id"), "topicid")
    it = event(headers=(("id", given),))
    messages.accepts(it)
    assert it.id.isascii()
    assert it.id.isprintable()
    assert 0 < len(it.id) <= 256
    assert not set(it.id) & set(". ")


def test_the_id_of_a_batch_depends_on_its_records_only() -> None:
    messages = Messages(webhook(batch=5), "topicid")
    events = [event(b"{}", id=f"msg_{n}") for n in range(3)]
    first = messages.message(Delivery(events)).id
    assert first == messages.message(Delivery(list(events), attempts=4)).id
    assert first != messages.message(Delivery(events[:2])).id
    assert "." not in first


# --- bodies --------------------------------------------------------------------------------------


def test_a_body_is_the_value_byte_for_byte() -> None:
    assert made(b"\xff\x00 not json") == b"\xff\x00 not json"
    assert made(None) == b""


def test_headers_of_the_definition_win_and_come_once() -> None:
    messages = Messages(webhook(headers={"Content-Type": "text/x", "X-A": "1"}), "topicid")
    headers = messages.headers(messages.message(Delivery([event(id="msg_1")])), 5)
    assert headers["content-type"] == "text/x"
    assert headers["x-a"] == "1"
    assert len({name.lower() for name in headers}) == len(headers)
    assert headers["webhook-timestamp"] == "5"


DEEP = b"[" * 1000 + b"]" * 1000
HUGE = b"1" + b"0" * 400


@pytest.mark.parametrize("value", [b"not json", b"", DEEP, b'"\xff"', b"{", b"NaN", b'"\\ud800"'])
@pytest.mark.parametrize(
    "more", [{"template": "${$value}"}, {"batch": 3}, {"filter": "$value == a"}]
)
def test_a_value_of_which_no_message_can_be_made_is_one_typed_error(
    value: bytes, more: dict[str, Any]
) -> None:
    messages = Messages(webhook(**more), "topicid")
    try:
        messages.accepts(event(value))
    except MessageError:
        return
    assert "filter" in more  # a deep value can be compared with a missing one


def test_numbers_beyond_64_bits_do_not_stop_the_webhook() -> None:
    try:
        assert made(HUGE, template={"a": "${$value}"})
    except MessageError:
        return


def test_a_tombstone_has_a_template_too() -> None:
    assert orjson.loads(made(None, template={"gone": "${$key}", "v": "${a}"})) == {
        "gone": "k",
        "v": None,
    }


# --- definitions ---------------------------------------------------------------------------------

INVALID: list[dict[str, Any]] = [
    {"name": "../a"},
    {"name": ""},
    {"topic": "a b"},
    {"url": "file:///etc/passwd"},
    {"url": "https://"},
    {"url": "https://x:99999/"},
    {"url": "https://x:0/"},
    {"url": "https://x/\n"},
    {"url": "https://user:password@x/"},
    {"url": "x" * 3000},
    {"secrets": ["whsec_abc"], "signed": True},
    {"secrets": ["${env:A}"]},
    {"signed": True},
    {"headers": {"webhook-id": "x"}},
    {"headers": {"Host": "x"}},
    {"headers": {"a b": "x"}},
    {"headers": {"a": "x\r\ny: z"}},
    {"headers": {"X-Token": "abc"}},
    {"filter": "a ="},
    {"event_type": "a ="},
    {"template": {"a": "${b c}"}},
    {"template": float("nan")},
    {"template": 1 << 70},
    {"concurrency": 0},
    {"concurrency": 1_000_000},
    {"batch": 10**9},
    {"rate": 0},
    {"timeout_s": float("inf")},
    {"retries_s": [86_400.0] * 11},
    {"retries_s": [0.0]},
    {"retries_s": [1.0] * 1000},
    {"max_waiting": 0},
    {"unknown": 1},
    # What it delivers would make more to deliver, without an end.
    {"topic": "tidemill.webhook.a.attempts"},
    {"topic": "tidemill.webhook.a.dead-letters"},
    {"topic": "t", "dead_letters": "t"},
    {"topic": "t", "dead_letters": "tidemill.webhook.a.attempts"},
]


@pytest.mark.parametrize("values", INVALID, ids=lambda values: str(values)[:50])
def test_an_invalid_definition_is_a_typed_error(values: dict[str, Any]) -> None:
    with pytest.raises(DefinitionError):
        webhook(**values)


def test_a_definition_survives_its_record(tmp_path: Path) -> None:
    it = webhook(filter="a == 1", template={"x": ["${a}"]}, retries_s=[1, 2], rate=5)
    assert Webhook.decode(it.encode()) == it
    file = tmp_path / "a.toml"
    file.write_text(
        'name = "a"\ntopic = "t"\nurl = "https://x/"\nsigned = false\nca_file = "ca.pem"\n'
    )
    assert read_file(file).ca_file == tmp_path / "ca.pem"
    with pytest.raises(DefinitionError, match="not JSON"):
        Webhook.decode(b"{")
