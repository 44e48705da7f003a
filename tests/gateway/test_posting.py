"""POST /topics/NAME: what is stored, and what is answered."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import subprocess
from typing import Any, NoReturn

import httpx
import pytest
from confluent_kafka.admin import NewPartitions
from starlette.requests import Request
from starlette.types import Message, Receive, Scope, Send

from tests.support.gateway_process import GatewayProcess
from tests.support.processes import poll_until
from tests.support.spans import PARENT, TRACE_ID, recorded, trace_of
from tidemill.confluent.clients import Kafka
from tidemill.confluent.reading import Follower, end_offsets
from tidemill.gateway import posting
from tidemill.gateway.errors import HttpError
from tidemill.gateway.guard import Budget
from tidemill.gateway.metrics import TRACE, Measured
from tidemill.gateway.parts import Parts
from tidemill.gateway.settings import GatewaySettings
from tidemill.gateway.topics import Topic
from tidemill.gateway.writing import Writer
from tidemill.metrics.registry import Registry
from tidemill.record_json import InputRecord

Record = tuple[int, int, bytes | None, bytes | None, list[Any]]


def stored(kafka: Kafka, topic: str) -> list[Record]:
    """Return the records of a topic, as a Kafka client reads them."""
    ends = end_offsets(kafka, "tests", topic)
    if not ends:
        return []
    follower = Follower.of(kafka, "tests", ends, fetch_wait_max_ms=10)
    found: list[Record] = []
    while follower.behind(ends):
        for message in follower.poll(1.0):
            key: Any = message.key()
            value: Any = message.value()
            place = int(message.partition() or 0), int(message.offset() or 0)
            found.append((*place, key, value, [*(message.headers() or [])]))
    follower.close()
    return sorted(found)


def test_one_record_is_stored_with_all_its_parts(
    http: httpx.Client, kafka: Kafka, topic: str
) -> None:
    record = {
        "value": {"total": 12.50},
        "key": "o1",
        "headers": {"kind": "order"},
        "partition": 1,
        "timestamp": 1_700_000_000_000,
    }
    answer = http.post(f"/topics/{topic}", json=record)
    assert (answer.status_code, answer.json()) == (
        200,
        {"topic": topic, "partition": 1, "offset": 0, "timestamp": 1_700_000_000_000},
    )
    assert stored(kafka, topic) == [(1, 0, b"o1", b'{"total":12.5}', [("kind", b"order")])]


def test_a_list_is_answered_in_its_order(http: httpx.Client, kafka: Kafka, topic: str) -> None:
    binary = base64.b64encode(bytes(range(256))).decode()
    records = [
        {"value": "text", "partition": 0},
        {"value": binary, "value_encoding": "base64", "partition": 0},
        {"value": None, "key": "gone", "partition": 0},
    ]
    answer = http.post(f"/topics/{topic}", json={"records": records}).json()
    assert [(each["partition"], each["offset"]) for each in answer["records"]] == [
        (0, 0),
        (0, 1),
        (0, 2),
    ]
    assert [each[2:4] for each in stored(kafka, topic)] == [
        (None, b"text"),
        (None, bytes(range(256))),
        (b"gone", None),
    ]


def test_a_value_as_it_is_has_its_key_in_the_url(
    http: httpx.Client, kafka: Kafka, topic: str
) -> None:
    raw = bytes(range(256))
    answer = http.post(
        f"/topics/{topic}?key=%C3%A4&partition=1&timestamp=2023-11-14T22:13:20Z"
        "&header=a:1&header=a:b:c",
        content=raw,
        headers={"content-type": "application/octet-stream"},
    )
    assert answer.json()["timestamp"] == 1_700_000_000_000
    assert stored(kafka, topic) == [(1, 0, "ä".encode(), raw, [("a", b"1"), ("a", b"b:c")])]


@pytest.mark.parametrize(
    "query", ["timestamp=0", "timestamp=1969-01-01", "header=a%00b:1", "header=a:%ff"]
)
def test_what_a_client_library_would_change_in_silence_is_refused(
    http: httpx.Client, topic: str, query: str
) -> None:
    kind = {"content-type": "text/plain"}
    answer = http.post(f"/topics/{topic}?{query}", content=b"x", headers=kind)
    assert (answer.status_code, answer.json()["error"]) == (400, "invalid_request")


def test_curl_sends_lines_and_gets_an_answer_for_each(
    gateway: GatewayProcess, kafka: Kafka, topic: str
) -> None:
    lines = "".join(f'{{"value":{n},"partition":0}}\n' for n in range(5000))
    lines = lines.replace('"value":7,', '"valu":7,').replace(
        '"value":8,"partition":0', '"value":8,"partition":2'
    )
    done = subprocess.run(
        [
            *("curl", "-sS", "--fail", "-H", "content-type: application/x-ndjson"),
            *("-T", "-", "-X", "POST", f"{gateway.url}/topics/{topic}"),
        ],
        input=lines.encode(),
        capture_output=True,
        check=True,
        timeout=60,
    )
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == 5000
    assert answers[7] == {"error": "invalid_request", "detail": "unknown field 'valu'", "line": 8}
    assert (answers[8]["error"], answers[8]["line"]) == ("unknown_partition", 9)
    offsets = [each["offset"] for each in answers if "offset" in each]
    assert offsets == list(range(4998))
    values = [each[3] for each in stored(kafka, topic)]
    assert values == [b"%d" % n for n in range(5000) if n not in (7, 8)]


def test_a_stream_can_be_answered_with_its_errors_only(http: httpx.Client, topic: str) -> None:
    lines = b'{"value":1}\n\n  \r\n{"value":2}\r\nno\n{"value":3}'
    headers = {"content-type": "application/x-ndjson"}
    answer = http.post(f"/topics/{topic}?answer=errors", content=lines, headers=headers)
    assert [json.loads(line) for line in answer.iter_lines()] == [
        {"error": "invalid_request", "detail": "not JSON: Expecting value at column 1", "line": 3},
        {"stored": 3, "failed": 1},
    ]


@pytest.mark.parametrize(
    ("path", "kind", "body", "status", "error"),
    [
        ("missing-topic", "application/json", '{"value":1}', 404, "unknown_topic"),
        ("bad%20name", "application/json", '{"value":1}', 404, "unknown_topic"),
        ("x" * 300, "application/json", '{"value":1}', 404, "unknown_topic"),
        ("__consumer_offsets", "application/json", '{"value":1}', 403, "internal_topic"),
        ("T", "application/json", "", 400, "invalid_request"),
        ("T", "application/json", "[1]", 400, "invalid_request"),
        ("T", "application/json", '{"a":1}', 400, "invalid_request"),
        ("T", "application/json", "[" * 100_000, 400, "invalid_request"),
        ("T", "application/json", '{"value":1,"partition":2}', 400, "unknown_partition"),
        ("T", "application/json", '{"records":[{"value":1},{}]}', 400, "invalid_request"),
        ("T", "application/json", '{"value":1,"timestamp":-1}', 400, "invalid_request"),
        ("T", "application/x-www-form-urlencoded", "a=1", 415, "unsupported_media_type"),
        ("T?partition=2", "text/plain", "x", 400, "unknown_partition"),
        ("T?partition=-1", "text/plain", "x", 400, "invalid_request"),
        ("T?partition=9999999999999999999999", "text/plain", "x", 400, "invalid_request"),
        ("T?partition=%D9%A3", "text/plain", "x", 400, "invalid_request"),
        ("T?key=1&key=2", "text/plain", "x", 400, "invalid_request"),
        ("T?kye=1", "text/plain", "x", 400, "invalid_request"),
        ("T?key=%ff", "text/plain", "x", 400, "invalid_request"),
        ("T?header=novalue", "text/plain", "x", 400, "invalid_request"),
        ("T?timestamp=noon", "text/plain", "x", 400, "invalid_request"),
        ("T", "text/plain", "x" * 2_000_000, 413, "record_too_large"),
        ("T", "text/plain", "x" * 11_000_000, 413, "body_too_large"),
    ],
)
def test_what_can_not_be_stored_is_refused_with_its_reason(
    http: httpx.Client,
    kafka: Kafka,
    topic: str,
    path: str,
    kind: str,
    body: str,
    status: int,
    error: str,
) -> None:
    path = path.replace("T", topic, 1) if path[0] == "T" else path
    answer = http.post(f"/topics/{path}", content=body, headers={"content-type": kind})
    assert (answer.status_code, answer.json()["error"]) == (status, error)
    assert answer.headers["content-type"] == "application/problem+json"
    assert stored(kafka, topic) == []
    assert "missing-topic" not in kafka.list_topics("tests")


def test_a_compressed_body_is_refused_and_not_stored_as_it_is(
    http: httpx.Client, kafka: Kafka, topic: str
) -> None:
    headers = {"content-encoding": "gzip", "content-type": "text/plain"}
    answer = http.post(f"/topics/{topic}", content=gzip.compress(b"x"), headers=headers)
    assert (answer.status_code, answer.json()["error"]) == (415, "unsupported_encoding")
    assert stored(kafka, topic) == []


def test_a_list_with_a_record_that_is_too_large_stores_the_others(
    http: httpx.Client, kafka: Kafka, topic: str
) -> None:
    records = [
        {"value": "a", "partition": 0},
        {"value": "x" * 2_000_000},
        {"value": "b", "partition": 0},
    ]
    answer = http.post(f"/topics/{topic}", json={"records": records})
    assert answer.status_code == 413
    assert [each.get("error") for each in answer.json()["records"]] == [
        None,
        "record_too_large",
        None,
    ]
    assert [each[3] for each in stored(kafka, topic)] == [b"a", b"b"]


def test_a_topic_that_was_deleted_is_not_created_again(
    http: httpx.Client, kafka: Kafka, topic: str
) -> None:
    assert http.post(f"/topics/{topic}", json={"value": 1}).status_code == 200
    kafka.delete_topics("tests", [topic])
    answer = http.post(f"/topics/{topic}", json={"value": 1})
    assert (answer.status_code, answer.json()["error"]) == (404, "unknown_topic")
    assert topic not in kafka.list_topics("tests")


@pytest.mark.nightly  # for as long as a producer believes what it knows about partitions
def test_a_partition_that_was_added_can_be_written_soon(
    http: httpx.Client, kafka: Kafka, topic: str
) -> None:
    assert http.post(f"/topics/{topic}", json={"value": 1}).status_code == 200
    admin = kafka.admin("tests")
    (future,) = admin.create_partitions([NewPartitions(topic, 4)]).values()
    future.result(30)

    def is_stored() -> bool:
        answer = http.post(f"/topics/{topic}", json={"value": 1, "partition": 3})
        assert answer.status_code in (200, 400, 503)
        return answer.status_code == 200

    poll_until(is_stored, 30, "the new partition is written", interval=0.2)


class TestIdempotencyKey:
    """A record that is posted again with its key is stored once."""

    def test_a_retry_gets_the_place_of_the_first(
        self, http: httpx.Client, kafka: Kafka, topic: str
    ) -> None:
        headers = {"idempotency-key": '"8e03978e-40d5"'}
        first, again = (
            http.post(f"/topics/{topic}", json={"value": 1}, headers=headers) for _ in range(2)
        )
        assert first.json() == again.json()
        (record,) = stored(kafka, topic)
        assert record[4] == [("idempotency-key", b"8e03978e-40d5")]

    def test_a_retry_of_a_list_stores_what_is_missing(
        self, http: httpx.Client, kafka: Kafka, topic: str
    ) -> None:
        headers = {"idempotency-key": "k"}
        records = [{"value": n, "partition": 0} for n in range(4)]
        for count in (2, 4, 3):
            body = {"records": records[:count]}
            answer = http.post(f"/topics/{topic}", json=body, headers=headers).json()
            assert [each["offset"] for each in answer["records"]] == list(range(count))
        assert [each[3] for each in stored(kafka, topic)] == [b"0", b"1", b"2", b"3"]

    def test_a_key_of_another_record_is_refused(self, http: httpx.Client, topic: str) -> None:
        headers = {"idempotency-key": "k"}
        http.post(f"/topics/{topic}", json={"value": 1}, headers=headers)
        answer = http.post(f"/topics/{topic}", json={"value": 2}, headers=headers)
        assert (answer.status_code, answer.json()["error"]) == (422, "idempotency_key_reused")

    @pytest.mark.parametrize("key", ["", '""', "a b", "x" * 201])
    def test_a_malformed_key_is_refused(self, http: httpx.Client, topic: str, key: str) -> None:
        answer = http.post(f"/topics/{topic}", json={"value": 2}, headers={"idempotency-key": key})
        assert answer.status_code == 400

    def test_two_keys_are_refused(self, http: httpx.Client, topic: str) -> None:
        headers = [("idempotency-key", "a"), ("idempotency-key", "b")]
        answer = http.post(f"/topics/{topic}", json={"value": 1}, headers=headers)
        assert (answer.status_code, answer.json()["error"]) == (400, "invalid_request")

    def test_another_gateway_reads_the_keys_from_the_topic(
        self, http: httpx.Client, kafka: Kafka, topic: str, broker: Any, tmp_path: Any
    ) -> None:
        headers = {"idempotency-key": "k"}
        first = http.post(f"/topics/{topic}", json={"value": 1, "timestamp": 5}, headers=headers)
        with GatewayProcess(tmp_path, broker.bootstrap) as other:
            again = httpx.post(
                f"{other.url}/topics/{topic}", json={"value": 1, "timestamp": 5}, headers=headers
            )
        assert again.json() == first.json()
        assert len(stored(kafka, topic)) == 1


def test_records_keep_the_trace_of_their_request(
    http: httpx.Client, kafka: Kafka, topic: str
) -> None:
    trace = {"traceparent": PARENT, "tracestate": "a=b"}
    kept = [("traceparent", PARENT.encode()), ("tracestate", b"a=b")]
    own = {"value": 2, "headers": {"traceparent": "its own"}, "partition": 0}
    records = {"records": [{"value": 1, "partition": 0}, own]}
    assert http.post(f"/topics/{topic}", json=records, headers=trace).status_code == 200
    raw = {**trace, "content-type": "text/plain"}
    http.post(f"/topics/{topic}", content=b"3", params={"partition": 0}, headers=raw)
    lines = {**trace, "content-type": "application/x-ndjson"}
    http.post(f"/topics/{topic}", content=b'{"value":4,"partition":0}\n', headers=lines)
    broken = {"traceparent": "00-nonsense"}
    http.post(f"/topics/{topic}", json={"value": 5, "partition": 0}, headers=broken)
    headers = [each[4] for each in stored(kafka, topic)]
    assert headers == [kept, [("traceparent", b"its own")], kept, kept, []]


async def test_a_request_is_a_span_whose_context_is_passed_on() -> None:
    seen: list[dict[str, str]] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope[TRACE])
        await send({"type": "http.response.start", "status": 201, "headers": []})

    async def receive() -> Message:
        raise NotImplementedError

    async def send(message: Message) -> None:
        pass

    headers = [(b"host", b"x"), (b"traceparent", PARENT.encode())]
    scope = {"type": "http", "method": "POST", "path": "/topics/t", "headers": headers}
    with recorded() as spans:
        await Measured(app, Registry(), "topics")(scope, receive, send)
    made = spans()["POST topics"]
    assert trace_of(made) == TRACE_ID
    assert seen[0]["traceparent"][36:52] == f"{made.context.span_id:016x}"
    assert made.attributes["http.response.status_code"] == 201
    assert made.attributes["url.path"] == "/topics/t"


async def errors_of_lines(parts: Parts, body: bytes, key: str | None = None) -> list[str]:
    """Send a stream of lines to a topic, and return the errors in the answer."""
    sent: list[Any] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    scope: Scope = {"type": "http", "method": "POST", "path": "/topics/t", "headers": []}
    writing = posting._Writing(parts, Topic("t", "", 1), key, {})
    async with asyncio.timeout(60):
        await posting._Stream(Request(scope, receive), writing, only_errors=False)(
            scope, receive, send
        )
    lines = b"".join(each.get("body", b"") for each in sent).splitlines()
    return [json.loads(each)["error"] for each in lines]


async def test_a_fault_within_a_stream_of_lines_is_a_line_of_the_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(topic: str, record: InputRecord) -> NoReturn:
        raise RuntimeError("a fault")

    parts = Parts.start(Kafka("127.0.0.1:1"), GatewaySettings())
    monkeypatch.setattr(parts.writer, "send", fail)
    errors = await errors_of_lines(parts, b'{"value":1}\n{"value":2}\n')
    assert errors == ["internal_error"]
    await parts.close()


async def test_a_line_that_waits_to_be_stored_holds_no_memory_that_it_waits_for() -> None:
    budget, parts = Budget(10_000), iter([b"x" * 5000, b"x" * 3000 + b"\nab", b"c\n"])

    async def receive() -> Message:
        return {"type": "http.request", "body": next(parts, b""), "more_body": True}

    request = Request({"type": "http", "method": "POST", "path": "/", "headers": []}, receive)
    with budget.taken() as take:
        lines = posting._lines(request, 10_000, take, 30)
        assert len(await anext(lines)) == 8000
        assert budget.used == 2  # the beginning of the next one
        assert await anext(lines) == b"abc"
    assert budget.used == 0


async def test_the_beginning_of_a_line_waits_for_memory() -> None:
    budget = Budget(100)

    async def receive() -> Message:
        return {"type": "http.request", "body": b"1\n" + b"x" * 50, "more_body": True}

    request = Request({"type": "http", "method": "POST", "path": "/", "headers": []}, receive)
    budget.take(80)  # records that are not acknowledged yet
    with budget.taken() as take:
        lines = posting._lines(request, 10_000, take, 30)
        assert await anext(lines) == b"1"
        asyncio.get_running_loop().call_later(0.05, budget.give, 80)
        assert await anext(lines) == b"x" * 50 + b"1"
    budget.take(80)
    with budget.taken() as take, pytest.raises(HttpError, match="too many requests"):
        async for _ in posting._lines(request, 10_000, take, 0.05):
            pass


@pytest.mark.parametrize("key", [None, "k"], ids=["without_key", "with_key"])
async def test_a_line_is_refused_if_others_keep_the_memory(key: str | None) -> None:
    settings = GatewaySettings(inflight_bytes=1 << 20, slow_client_seconds=1)
    parts = Parts.start(Kafka("127.0.0.1:1"), settings)
    parts.budget.take(1 << 20)  # clients that send half a line, and wait
    assert await errors_of_lines(parts, b'{"value":1}\n', key) == ["busy"]
    assert parts.budget.used == 1 << 20
    await parts.close()


async def test_a_record_that_never_fits_into_memory_is_refused_for_good() -> None:
    budget = Budget(10_000)
    writer = Writer(Kafka("127.0.0.1:1"), budget)
    for record in (
        InputRecord(None, b"x" * 10_000),
        InputRecord(None, b"x", [("a", b"x" * 10_000)]),
        InputRecord(None, b"x", [("a", None)] * 100),
    ):
        with pytest.raises(HttpError, match="bytes of memory") as refused:
            writer.send("t", record)
        assert refused.value.status == 413
    assert budget.used == 0
    await writer.close()


async def test_a_record_that_can_not_be_sent_gives_its_memory_back() -> None:
    budget = Budget(1 << 20)
    writer = Writer(Kafka("127.0.0.1:1"), budget)
    absurd: Any = [("a", object())]
    with pytest.raises(TypeError):
        writer.send("t", InputRecord(None, b"x", absurd))
    assert budget.used == 0
    await writer.close()
