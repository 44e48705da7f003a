"""What becomes of a request: records of CloudEvents, keys, headers and ids."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest
from cloudevents.core.bindings import http, kafka
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent
from hypothesis import given
from hypothesis import strategies as st

from tests.support.spans import PARENT
from tidemill.gateway.errors import DeliveryIdError, EventError
from tidemill.gateway.hooks.cloudevents import MAX_EVENTS, allowed
from tidemill.gateway.hooks.hook import Challenge, Hook
from tidemill.gateway.hooks.mapping import Delivery, Record
from tidemill.gateway.hooks.settings import HookEntry

SECRET = "s3cret"
JSON = {"content-type": "application/json"}
STRUCTURED = {"content-type": "application/cloudevents+json; charset=utf-8"}
BATCH = {"content-type": "application/cloudevents-batch+json"}
EVENT = {"specversion": "1.0", "id": "1", "source": "/shop", "type": "order.created"}


def hook(**more: Any) -> Hook:
    given = {"name": "it", "topic": "t", "verifier": "none", **more}
    return Hook(HookEntry.model_validate(given))


def events_of(sent: Mapping[str, str], body: bytes, **more: Any) -> list[Record]:
    lower = {name.lower(): value for name, value in sent.items()}
    found = hook(format="cloudevents", **more).accept(Delivery("POST", "/", lower, body), 0)
    assert isinstance(found, list)
    return found


def records(
    body: bytes, sent: Mapping[str, str] = JSON, method: str = "POST", query: str = "", **more: Any
) -> list[Record]:
    it = hook(**more)
    path = it.parameters(["eu", "orders"]) if "path" in more else {}
    assert path is not None
    found = it.accept(Delivery(method, "/", sent, body, path, query), 0)
    assert isinstance(found, list)
    return found


# --- CloudEvents, with the library of the project at both ends -----------------------------------


def an_event(number: int = 1, **more: Any) -> CloudEvent:
    attributes = {
        "id": f"é {number}",
        "source": "https://shop.example/orders",
        "type": "order.created",
        "time": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        "datacontenttype": "application/json",
        "subject": "Grüße %",
        **more,
    }
    return CloudEvent(attributes=attributes, data={"total": 12.5, "n": number})


def to_message(record: Record) -> kafka.KafkaMessage:
    return kafka.KafkaMessage(dict(record.headers), record.key, record.value)


def same(found: Any, expected: CloudEvent) -> bool:
    return bool(
        found.get_attributes() == expected.get_attributes()
        and found.get_data() == expected.get_data()
    )


@pytest.mark.parametrize("write", [http.to_binary, http.to_structured])
def test_an_event_of_the_library_is_read_from_the_record_by_the_library(write: Any) -> None:
    event = an_event(partitionkey="customer-1")
    message = write(event, JSONFormat())
    (record,) = events_of(message.headers, message.body)
    assert record.key == b"customer-1"
    assert record.id == "it:https://shop.example/orders é 1".encode()
    found = kafka.from_kafka(to_message(record), JSONFormat())
    assert same(found, event)
    assert dict(record.headers)["ce_type"] == b"order.created"


def test_a_batch_is_a_record_for_each_event_with_its_data_unchanged() -> None:
    texts = [JSONFormat().write(an_event(number)).decode() for number in range(3)]
    data = '{"b" : 0.10000000000000000001, "a": 12345678901234567890123}'
    texts.append(json.dumps(EVENT)[:-1] + f', "data": {data} }}')
    found = events_of(BATCH, f" [ {' , '.join(texts)} ]\n".encode())
    assert found[3].value.decode() == data
    assert found[3].id == b"it:/shop 1"
    for number in range(3):
        event = kafka.from_kafka(to_message(found[number]), JSONFormat())
        assert same(event, an_event(number))
    assert events_of(BATCH, b"[]") == []


@pytest.mark.parametrize(
    ("more", "value", "kind"),
    [
        ({"data": "text"}, b'"text"', b"application/json"),
        ({"data": "text", "datacontenttype": "text/plain"}, b"text", b"text/plain"),
        ({"data": "a", "datacontenttype": "application/x+json"}, b'"a"', b"application/x+json"),
        ({"data": [1], "datacontenttype": "text/plain"}, b"[1]", b"text/plain"),
        ({"data_base64": "AP8=", "datacontenttype": "image/png"}, b"\x00\xff", b"image/png"),
        ({"data": None}, b"null", b"application/json"),
        ({}, b"", None),
    ],
)
def test_data_is_what_the_json_format_says(
    more: dict[str, Any], value: bytes, kind: bytes | None
) -> None:
    (record,) = events_of(STRUCTURED, json.dumps({**EVENT, **more}).encode())
    assert (record.value, dict(record.headers).get("content-type")) == (value, kind)


def test_the_key_of_the_hook_replaces_that_of_the_event() -> None:
    body = json.dumps({**EVENT, "partitionkey": "a", "data": {"customer": 7}}).encode()
    (record,) = events_of(STRUCTURED, body, key="json:data.customer", headers={"m": "method"})
    assert record.key == b"7"
    assert dict(record.headers)["m"] == b"POST"


def without(name: str) -> bytes:
    return json.dumps({key: value for key, value in EVENT.items() if key != name}).encode()


INVALID: dict[str, tuple[Mapping[str, str], bytes, str]] = {
    "no attributes": (JSON, b"{}", "specversion is missing"),
    "a missing id": (STRUCTURED, without("id"), "id is missing"),
    "a missing source": (STRUCTURED, without("source"), "source is missing"),
    "a missing type": (STRUCTURED, without("type"), "type is missing"),
    "an empty id": (STRUCTURED, json.dumps({**EVENT, "id": ""}).encode(), "id is missing"),
    "version 0.3": (STRUCTURED, json.dumps({**EVENT, "specversion": "0.3"}).encode(), "version"),
    "a space in the source": (
        STRUCTURED,
        json.dumps({**EVENT, "source": "a b"}).encode(),
        "not a URI",
    ),
    "an object as attribute": (STRUCTURED, json.dumps({**EVENT, "x": {}}).encode(), "must be text"),
    "a strange name": (STRUCTURED, json.dumps({**EVENT, "A_b": 1}).encode(), "invalid attribute"),
    "many attributes": (
        STRUCTURED,
        json.dumps({**EVENT, **{f"a{n}": n for n in range(200)}}).encode(),
        "more than 100",
    ),
    "an array": (STRUCTURED, b"[]", "must be a JSON object"),
    "not JSON": (STRUCTURED, b"x", "not JSON"),
    "an empty body": (STRUCTURED, b"", "not JSON"),
    "not UTF-8": (STRUCTURED, b"\xff", "not UTF-8"),
    "nested too deeply": (STRUCTURED, b'{"data":' + b"[" * 100_000, "nested too deep"),
    "a number as a name": (STRUCTURED, b"{1:2}", "not JSON"),
    "no colon": (STRUCTURED, b'{"id"}', "not JSON"),
    "no comma": (STRUCTURED, b'{"id":"1" "source":"/"}', "not JSON"),
    "an attribute twice": (STRUCTURED, b'{"id":"1","id":"2"}', "occurs twice"),
    "bad base64": (STRUCTURED, json.dumps({**EVENT, "data_base64": "!"}).encode(), "not base64"),
    "data twice": (
        STRUCTURED,
        json.dumps({**EVENT, "data": 1, "data_base64": ""}).encode(),
        "and not both",
    ),
    "a number of 5000 digits": (STRUCTURED, b'{"id":' + b"9" * 5000 + b"}", "is missing"),
    "two events": (STRUCTURED, json.dumps(EVENT).encode() * 2, "not JSON: Extra data"),
    "a batch that is an object": (BATCH, json.dumps(EVENT).encode(), "must be a JSON array"),
    "a batch with one bad event": (BATCH, f"[{json.dumps(EVENT)}, 1]".encode(), "a JSON object"),
    "a batch without an end": (BATCH, f"[{json.dumps(EVENT)}".encode(), "not JSON"),
    "a batch with a comma": (BATCH, f"[{json.dumps(EVENT)},]".encode(), "not JSON"),
    "two batches": (BATCH, b"[][]", "not JSON: Extra data"),
    "an empty batch body": (BATCH, b"", "not JSON"),
    "too many events": (
        BATCH,
        ("[" + ",".join([json.dumps(EVENT)] * (MAX_EVENTS + 1)) + "]").encode(),
        "more than 1000",
    ),
    "another format": ({"content-type": "application/cloudevents+avro"}, b"", "not supported"),
    "a header with a strange name": (
        {**JSON, **{f"ce-{name}": value for name, value in EVENT.items()}, "ce-a_b": "1"},
        b"",
        "invalid attribute",
    ),
}


@pytest.mark.parametrize("case", INVALID)
def test_an_invalid_event_is_a_typed_error(case: str) -> None:
    headers, body, message = INVALID[case]
    with pytest.raises(EventError, match=message):
        events_of(headers, body)


texts = st.text(max_size=5) | st.sampled_from(["1.0", "/a", "[", "]", ",", "{", "}", " "])
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
)
objects = st.dictionaries(st.sampled_from([*EVENT, "data", "x", "é"]), values)


@given(
    st.sampled_from([STRUCTURED, BATCH, JSON, {}]),
    st.dictionaries(st.sampled_from(["ce-id", "ce-type", "ce-", "ce-\xff"]), texts),
    st.binary(max_size=20)
    | (objects | st.lists(objects)).map(lambda each: json.dumps(each).encode()),
)
def test_random_events_raise_the_typed_error_or_are_read(
    kind: Mapping[str, str], headers: Mapping[str, str], body: bytes
) -> None:
    try:
        found = events_of({**kind, **headers}, body)
    except EventError:
        return
    assert all(each.id for each in found)


def test_options_grants_what_the_hook_allows() -> None:
    asked = {"webhook-request-origin": "Events.example.com", "webhook-request-rate": "120"}
    granted = allowed(asked, ["events.example.com"], 60)
    assert granted["webhook-allowed-origin"] == "Events.example.com"
    assert granted["webhook-allowed-rate"] == "60"
    assert allowed(asked, ["*"], None)["webhook-allowed-rate"] == "*"
    for headers, origins in ((asked, []), (asked, ["other.example.com"]), ({}, ["*"])):
        assert allowed(headers, origins, None) == {"allow": "POST, OPTIONS"}
    hostile = {"webhook-request-origin": "a\r\nx: y"}
    assert allowed(hostile, ["*"], None) == {"allow": "POST, OPTIONS"}


# --- keys, headers and ids -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("select", "key"),
    [
        ("method", b"PUT"),
        ("header:X-Event", b"push"),
        ("header:x-missing", None),
        ("query:shop", b"a b"),
        ("query:missing", None),
        ("path:shop", b"eu"),
        ("path:kind", b"orders"),
        ("json:order.id", b"12345678901234567890123"),
        ("json:order.total", b"1.10"),
        ("json:order.paid", b"true"),
        ("json:order.lines", '["é"]'.encode()),
        ("json:order.none", None),
        ("json:order.id.more", None),
        ("json:missing", None),
        ("json:half", b"?"),
    ],
)
def test_a_key_is_selected(select: str, key: bytes | None) -> None:
    order = b'{"id": 12345678901234567890123, "total": 1.10, "paid": true, "lines": ["\xc3\xa9"]'
    body = b'{"order": ' + order + b', "none": null}, "half": "\\ud800"}'
    (record,) = records(
        body,
        {**JSON, "x-event": "push"},
        "PUT",
        "shop=a+b&shop=c",
        path="/{shop}/{kind}",
        key=select,
        headers={"same": select},
    )
    assert (record.key, record.value) == (key, body)
    assert dict(record.headers).get("same") == key


@pytest.mark.parametrize(
    "body", [b"", b"\xff", b"[1]", b"1", b"[" * 100_000, b'{"a":' * 990 + b"1"]
)
def test_a_body_that_has_no_such_field_has_no_key(body: bytes) -> None:
    assert records(body, key="json:a.a")[0].key is None


def test_a_record_keeps_what_is_needed_to_read_it() -> None:
    headers = {**JSON, "content-encoding": "gzip", "cookie": "secret", "authorization": "secret"}
    (record,) = records(b"\x1f\x8b", headers)
    assert dict(record.headers) == {
        "content-type": b"application/json",
        "content-encoding": b"gzip",
    }
    assert records(b"", {}) == [Record(None, b"")]


def test_a_path_must_have_all_parameters() -> None:
    it = hook(path="/{shop}/{kind}")
    assert it.parameters(["a", "b"]) == {"shop": "a", "kind": "b"}
    for segments in ([], ["a"], ["a", ""], ["a", "b", "c"]):
        assert it.parameters(segments) is None
    assert hook().parameters([]) == {}
    assert hook().parameters([""]) is None


def test_an_id_belongs_to_its_hook_and_is_bounded() -> None:
    (record,) = records(b'{"n": 1}', delivery_id="json:n")
    assert record.id == b"it:1"
    assert records(b'{"n": 1}', delivery_id="json:n", dedupe=False)[0].id is None
    assert records(b"{}", delivery_id="json:n")[0].id is None
    with pytest.raises(DeliveryIdError):
        records(b"", {"x-id": "1" * 600}, delivery_id="header:x-id")


def test_slack_gets_its_challenge_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOK_SECRET", SECRET)
    it = hook(verifier="slack", secrets=["${env:HOOK_SECRET}"])

    def accept(value: Any) -> object:
        body = json.dumps(value).encode()
        signed = hmac.new(SECRET.encode(), b"v0:1000:" + body, hashlib.sha256).hexdigest()
        headers = {"x-slack-signature": f"v0={signed}", "x-slack-request-timestamp": "1000"}
        return it.accept(Delivery("POST", "/", headers, body), 1000)

    assert accept({"type": "url_verification", "challenge": "abc"}) == Challenge("abc")
    others: list[Any] = [{"type": "url_verification", "challenge": 1}, {"type": "x"}, [], "x"]
    assert all(isinstance(accept(each), list) for each in others)


@pytest.mark.parametrize("form", ["raw", "cloudevents"])
def test_a_record_keeps_the_trace_of_its_delivery(form: str) -> None:
    body = json.dumps({**EVENT, "data": {}}).encode()
    sent = {"content-type": "application/cloudevents+json" if form != "raw" else "text/plain"}
    delivery = Delivery("POST", "/", sent, body, trace={"traceparent": PARENT})
    found = hook(format=form).accept(delivery, 0)
    assert isinstance(found, list)
    assert ("traceparent", PARENT.encode()) in found[0].headers
    mapped = hook(format=form, headers={"traceparent": "header:content-type"})
    found = mapped.accept(delivery, 0)
    assert isinstance(found, list)
    kept = [value for name, value in found[0].headers if name == "traceparent"]
    assert kept == [sent["content-type"].encode()]
