"""Searching, following, exporting and sending the records of a topic."""

from __future__ import annotations

import csv
import io
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.gateway_process import GatewayProcess
from tidemill.confluent.clients import Kafka
from tidemill.gateway.console.messages.decoding import FULL_BYTES

Place = dict[str, str | int]
HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>"


def write(kafka: Kafka, topic: str, *records: tuple[Any, Any], headers: Any = None) -> None:
    """Write records, each a key and a value, to partition 0 and 1 in turn."""
    producer = kafka.producer("tests", message_max_bytes=20_000_000)
    now_ms = time.time_ns() // 1_000_000
    for number, (key, value) in enumerate(records):
        place: dict[str, Any] = {"partition": number % 2, "timestamp": now_ms + number}
        producer.produce(topic, value, key, headers=headers, **place)
    assert producer.flush(60) == 0


def find(http: httpx.Client, topic: str, **parameters: Any) -> dict[str, Any]:
    given = {"topic": topic, **parameters}
    answer = http.get("/console/messages.json", params=given)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def find_all(http: httpx.Client, topic: str, **parameters: Any) -> dict[str, Any]:
    """Search to the end, as a page does that continues."""
    found = find(http, topic, **parameters)
    while found["next"]:
        more = find(http, topic, **parameters, at=found["next"])
        more["rows"] = found["rows"] + more["rows"]
        more["scanned"] += found["scanned"]
        found = more
    return found


def places(found: dict[str, Any]) -> set[str]:
    return {f"{row['partition']}:{row['offset']}" for row in found["rows"]}


def post(http: httpx.Client, url: str, **fields: Any) -> httpx.Response:
    """Send a form of a page, as a browser does."""
    page = http.get(url)
    token = re.search(r'name="csrf" value="(\w+)"', page.text)
    assert token is not None, page.text
    return http.post(url, data={"csrf": token[1], **fields})


def events(http: httpx.Client, url: str, kind: str) -> Iterator[Any]:
    """Yield the data of events of one kind."""
    with http.stream("GET", url) as answer:
        assert answer.status_code == 200
        name = ""
        for line in answer.iter_lines():
            if line.startswith("event: "):
                name = line[7:]
            elif line.startswith("data: ") and name == kind:
                yield orjson.loads(line[6:])


def test_the_latest_records_come_first_and_a_search_goes_on(
    http: httpx.Client, kafka: Kafka, topic: str
) -> None:
    records = [(f"k{n}".encode(), orjson.dumps({"n": n, "at": {"x": n % 3}})) for n in range(200)]
    write(kafka, topic, *records)
    found = find(http, topic, limit=10)
    assert places(found) == {f"{n % 2}:{n // 2}" for n in range(190, 200)}
    times = [row["timestamp_ms"] for row in found["rows"]]
    assert times == sorted(times, reverse=True)
    found = find_all(http, topic, where="n >= 50 and at.x == 0", limit=10)
    assert places(found) == {f"{n % 2}:{n // 2}" for n in range(50, 200) if n % 3 == 0}
    assert found["scanned"] >= 200
    assert found["is_done"]
    assert places(find_all(http, topic, key="k19")) == {"1:9", *places(find(http, topic, limit=10))}
    assert len(find_all(http, topic, text='"n":7')["rows"]) == 11
    assert places(find_all(http, topic, partition=1, **{"from": "98"})) == {"1:98", "1:99"}
    first = find(http, topic, **{"from": "beginning", "limit": 4, "partition": 0})
    assert (places(first), first["left"]) == ({f"0:{n}" for n in range(4)}, 96)
    latest = find(http, topic, **{"from": "end"})
    assert (latest["rows"], latest["is_done"]) == ([], True)


def test_fields_that_a_form_leaves_empty_are_not_given(http: httpx.Client, topic: str) -> None:
    names = ("from", "partition", "key", "header", "text", "where", "limit", "at")
    assert find(http, topic, **dict.fromkeys(names, ""))["is_latest"]


def test_headers_are_searched(http: httpx.Client, kafka: Kafka, topic: str) -> None:
    write(kafka, topic, (None, b"a"), headers=[("tenant", b"acme"), ("x", None)])
    write(kafka, topic, (None, b"not json"), headers=[("tenant", b"other")])
    assert len(find_all(http, topic, header="tenant")["rows"]) == 2
    assert len(find_all(http, topic, header="tenant=acme")["rows"]) == 1
    assert len(find_all(http, topic, header="x")["rows"]) == 1
    found = find_all(http, topic, where='$headers.tenant == "other"')
    assert [row["value"]["text"] for row in found["rows"]] == ["not json"]


@pytest.mark.parametrize(
    "parameters",
    [
        {"where": "n =="},
        {"where": "__import__('os')"},
        {"where": "(" * 1000},
        {"from": "yesterday"},
        {"partition": "-1"},
        {"at": "0:1;1:2"},
        {"limit": "1000000"},
        {"limit": "0"},
        {"topic": "a b"},
    ],
)
def test_what_is_malformed_is_refused_in_words(
    http: httpx.Client, topic: str, parameters: dict[str, str]
) -> None:
    for suffix in ("", ".json", ".scan", ".tail", ".export"):
        given = {"topic": topic, **parameters}
        if suffix in (".tail", ".export") and not {"where", "topic"} & set(parameters):
            continue
        answer = http.get(f"/console/messages{suffix}", params=given)
        assert answer.status_code in (400, 404, 502), (suffix, answer.text)
        assert "internal error" not in answer.text


def test_hostile_content_harms_no_page(http: httpx.Client, kafka: Kafka, topic: str) -> None:
    header = [(HOSTILE, HOSTILE.encode()), ("source.topic", HOSTILE.encode())]
    records = [
        (HOSTILE.encode(), HOSTILE.encode()),
        (b"\xff\xfe" * 50_000, b"\xff" * 100_000),
        (b"k" * 200_000, orjson.dumps({HOSTILE: HOSTILE})),
        (None, None),
        (b"", b"[" * 100_000),
        (b"big", b'{"a":"' + b"x" * 900_000 + b'"}'),
    ]
    write(kafka, topic, *records, headers=header)
    answer = http.get("/console/messages", params={"topic": topic})
    assert answer.status_code == 200
    assert len(answer.content) < 100_000
    assert "<script>alert" not in answer.text
    assert "<img" not in answer.text
    found = find(http, topic)
    assert len(found["rows"]) == len(records)
    assert all(len(row["key"]["text"]) <= 400 for row in found["rows"])
    for row in found["rows"]:
        place = {"topic": topic, "partition": row["partition"], "offset": row["offset"]}
        page = http.get("/console/message", params=place)
        assert page.status_code == 200
        assert len(page.content) < 3 * FULL_BYTES
        assert "<script>alert" not in page.text
        assert "<img" not in page.text
    scan = "".join(
        events(http, f"/console/messages.scan?topic={topic}&header=source.topic", "rows")
    )
    assert "<script>alert" not in scan


def test_a_search_is_followed_with_its_progress(
    http: httpx.Client, kafka: Kafka, topic: str
) -> None:
    write(kafka, topic, *((None, b'{"n":%d}' % n) for n in range(100)))
    url = f"/console/messages.scan?topic={topic}&where=n%20%3E%2089"
    (done,) = events(http, url, "done")
    assert done == {"next": ""}
    progress = [*events(http, url, "progress")][-1]
    assert (progress["scanned"], progress["matched"], progress["left"]) == (100, 10, 0)
    assert "".join(events(http, url, "rows")).count("<tr>") == 10
    (done,) = events(http, f"{url}&limit=3", "done")  # it stops, and says where it continues
    assert re.fullmatch(r"\d:\d+(,\d:\d+)*", done["next"])


def test_new_records_are_followed(http: httpx.Client, kafka: Kafka, topic: str) -> None:
    with http.stream("GET", f"/console/messages.tail?topic={topic}&where=n==1") as answer:
        lines = answer.iter_lines()
        assert '"scanned":0' in next(line for line in lines if line.startswith("data"))
        write(kafka, topic, (b"\xff", b'{"n":0}'), (HOSTILE.encode(), b'{"n":1}'))
        rows = next(line for line in lines if line.startswith("data") and "tr" in line)
        assert "<script>" not in rows
        assert rows.count("<tr>") == 1


def test_records_are_exported(http: httpx.Client, kafka: Kafka, topic: str) -> None:
    write(kafka, topic, (b"=1+1", b'{"n":1}'), (None, b"\xff"), (b"k", None))
    answer = http.get("/console/messages.export", params={"topic": topic})
    assert answer.headers["content-disposition"] == f'attachment; filename="{topic}.jsonl"'
    lines = [json.loads(line) for line in answer.text.splitlines()]
    assert {(line["key"], line["value"]) for line in lines} == {
        ("=1+1", '{"n":1}'),
        (None, "/w=="),
        ("k", None),
    }
    answer = http.get("/console/messages.export", params={"topic": topic, "format": "csv"})
    cells = [*csv.DictReader(io.StringIO(answer.text))]
    assert [row["key"] for row in cells if row["key"].startswith("'")] == ["'=1+1"]
    assert {row["value"] for row in cells} == {'{"n":1}', "base64:/w==", ""}


def test_a_record_is_written_edited_and_imported(
    http: httpx.Client, kafka: Kafka, topic: str
) -> None:
    url = f"/console/produce?topic={topic}"
    fields = {"action": "send", "topic": topic, "key": "k", "encoding": "json"}
    value = '{\r\n  "n": 1.10,\r\n  "text": "a b"\r\n}'
    headers = "tenant: acme\r\nempty:"
    done = post(http, url, **fields, value=value, headers=headers, partition="1")
    assert done.status_code == 303
    place = httpx.URL(done.headers["location"]).params
    page = http.get(done.headers["location"])
    assert "Stored in" in page.text
    assert "Stored in" not in http.get(done.headers["location"]).text  # it is said once
    raw = http.get("/console/message.raw", params=place)
    assert raw.content == b'{"n":1.10,"text":"a b"}'
    assert "sandbox" in raw.headers["content-security-policy"]
    shown = http.get("/console/message.json", params=place).json()
    assert shown["headers"][0][0] == "tenant"
    edit = http.get("/console/produce.json", params=place).json()
    assert (edit["key"], edit["encoding"]) == ("k", "json")
    assert edit["headers"] == "tenant: acme\nempty: "
    lines = '{"key":"a","value":{"n":2},"partition":0}\r\n\r\n{"value":"b"}'
    done = post(http, url, action="import", topic=topic, lines=lines, partitions="keep")
    assert done.status_code == 303, done.text
    assert len(find(http, topic)["rows"]) == 3
    for wrong, status in (
        ({"action": "import", "lines": '{"valu":1}'}, 400),
        ({"action": "import", "lines": "\n"}, 400),
        # Without the partition, a record would be stored elsewhere in silence.
        ({"action": "import", "partitions": "keep", "lines": '{"partition":2,"value":1}'}, 400),
        ({"action": "send", "encoding": "json", "value": "{"}, 400),
        ({"action": "send", "encoding": "json", "value": '1,"key":2'}, 400),
        ({"action": "send", "encoding": "json", "value": "[" * 9999}, 400),
        ({"action": "send", "encoding": "none", "value": "a"}, 400),
        ({"action": "send", "encoding": "hex", "value": "xyz"}, 400),
        ({"action": "send", "encoding": "base64", "value": "?"}, 400),
        ({"action": "send", "headers": "no colon"}, 400),
        ({"action": "send", "partition": "99"}, 400),
        ({"action": "send", "partition": "0000000000099"}, 400),
        ({"action": "send", "topic": "__consumer_offsets"}, 403),
        ({"action": "send", "topic": "missing"}, 404),
        ({"action": "nothing"}, 404),
    ):
        answer = post(http, url, **{"topic": topic, **wrong})
        assert answer.status_code == status, (wrong, answer.text)
    assert len(find(http, topic)["rows"]) == 3
    wrong = {"action": "send", "topic": topic, "encoding": "json", "value": "nul"}
    assert "the value is not JSON: Expecting value at column 1" in post(http, url, **wrong).text


def test_dead_letters_go_back_to_their_origin(http: httpx.Client, kafka: Kafka, topic: str) -> None:
    letters = f"{topic}-letters"
    kafka.create_topics("tests", {letters: (2, {})})
    added = [("error.reason", b"not JSON"), ("source.offset", b"7"), ("pipeline", b"p")]
    own = [("tenant", b"acme"), *added, ("source.topic", topic.encode())]
    write(kafka, letters, (b"a", b"1"), (b"b", b"2"), (b"c", b"3"), headers=own)
    url = f"/console/messages?topic={letters}"
    page = http.get(url).text
    assert "Dead letters go back" in page
    done = post(http, url, action="resend", which="chosen", record=["0:0", "1:0"], to="")
    assert done.status_code == 303, done.text
    assert "2 of 2 records were stored" in http.get(done.headers["location"]).text
    rows = find(http, topic)["rows"]
    assert {row["key"]["text"] for row in rows} == {"a", "b"}
    assert [row["headers"] for row in rows] == [[["tenant", "acme"]]] * 2
    done = post(http, f"{url}&key=c", action="resend", which="all", to="")
    assert done.status_code == 303, done.text
    assert len(find(http, topic)["rows"]) == 3
    plain = f"/console/messages?topic={topic}"  # not dead letters
    wrongs: list[dict[str, Any]] = [
        {"record": []},
        {"record": "0:0", "to": ""},
        {"record": "x"},
        {"record": ["0:0"] * 501},
    ]
    for wrong in wrongs:
        answer = post(http, plain, **{"action": "resend", "to": topic, **wrong})
        assert answer.status_code == 400, wrong
    answer = post(http, plain, action="resend", record="0:999", to=topic)
    assert answer.status_code == 404


def test_a_record_that_is_not_there_is_not_found(http: httpx.Client, topic: str) -> None:
    for partition, offset in ((0, 0), (99, 0), (0, 2**62)):
        place: Place = {"topic": topic, "partition": partition, "offset": offset}
        answer = http.get("/console/message", params=place)
        assert answer.status_code == 404
        assert "has no record" in answer.text


def test_masked_read_only_and_without_exports(
    tmp_path: Path, broker: BrokerProcess, kafka: Kafka, topic: str
) -> None:
    write(kafka, topic, (b"k", b'{"card":"4111","n":1}'))
    settings = {
        "console.mask": f"{topic}:card",
        "console.read_only": "true",
        "console.export": "false",
    }
    with (
        GatewayProcess(tmp_path / "g", broker.bootstrap, settings=settings) as gateway,
        httpx.Client(base_url=gateway.url, timeout=60, trust_env=False) as http,
    ):
        place: Place = {"topic": topic, "partition": 0, "offset": 0}
        for path in ("messages", "message", "messages.json", "message.json"):
            answer = http.get(f"/console/{path}", params=place)
            assert answer.status_code == 200
            assert "4111" not in answer.text
        assert find(http, topic, text="4111")["rows"] == []  # a search must not guess it
        assert find(http, topic, where='card == "4111"')["rows"] == []
        for path in ("messages.export", "message.raw", "produce"):
            assert http.get(f"/console/{path}", params=place).status_code == 403
        assert '<form method="post"' not in http.get("/console/topics").text
        token = re.search(r'value="(\w{64})"', http.get("/console/login").text)
        assert token is None  # nothing to log in to
