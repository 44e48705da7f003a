"""GET of partitions, topics and groups: what is answered, and that a request can be repeated."""

from __future__ import annotations

import threading
import time
from typing import Any

import httpx
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.gateway.conftest import producer_of
from tests.support.topics import remove_before
from tidemill.confluent.clients import Kafka


def produce(kafka: Kafka, topic: str, values: list[bytes], **more: Any) -> None:
    producer = producer_of(kafka.servers)
    for value in values:
        producer.produce(topic, value, **{"partition": 0, **more})
    assert producer.flush(30) == 0


def values(answer: httpx.Response) -> list[str]:
    assert answer.status_code == 200, answer.text
    return [each["value"] for each in answer.json()["records"]]


def test_pages_have_each_record_once_and_can_be_asked_for_again(
    http: httpx.Client, kafka: Kafka, topic: str
) -> None:
    produce(kafka, topic, [b"%d" % n for n in range(250)], key="k", headers=[("h", b"\xff")])
    url, found = f"/topics/{topic}/partitions/0?limit=100", list[str]()
    for count in (100, 100, 50, 0):
        first, again = http.get(url), http.get(url)
        assert first.content == again.content
        assert len(values(first)) == count
        found += values(first)
        url = first.json()["links"]["next"]
        assert first.headers["link"] == f'<{url}>; rel="next"'
    assert found == [str(n) for n in range(250)]
    record = http.get(f"/topics/{topic}/partitions/0?from=7&limit=1").json()["records"][0]
    del record["timestamp"]
    assert record == {
        "topic": topic,
        "partition": 0,
        "offset": 7,
        "key": "k",
        "value": "7",
        "headers": [["h", "/w==", "base64"]],
    }


def test_a_position_is_an_offset_a_word_or_a_time(
    http: httpx.Client, kafka: Kafka, topic: str
) -> None:
    start = 1_700_000_000_000
    for number in range(4):
        produce(kafka, topic, [b"%d" % number], timestamp=start + number * 1000)
    for position, expected in {
        "beginning": ["0", "1", "2", "3"],
        "2": ["2", "3"],
        "4": [],
        "end": [],
        "-1": ["3"],
        "-9": ["0", "1", "2", "3"],
        f"@{start + 1001}": ["2", "3"],
        "2023-11-14T22:13:22Z": ["2", "3"],
        "2033-01-01": [],
        "1969-12-31T23:59:59.999Z": ["0", "1", "2", "3"],  # -1 would mean the end
    }.items():
        answer = http.get(f"/topics/{topic}/partitions/0", params={"from": position})
        assert values(answer) == expected, position


def test_an_answer_has_a_limit_of_bytes_but_at_least_one_record(
    http: httpx.Client, kafka: Kafka, topic: str
) -> None:
    produce(kafka, topic, [b"x" * 700_000] * 3)
    answer = http.get(f"/topics/{topic}/partitions/0?bytes=1")
    assert (len(values(answer)), answer.json()["next"]) == (1, 1)
    assert len(values(http.get(f"/topics/{topic}/partitions/0"))) == 2
    assert len(values(http.get(f"/topics/{topic}/partitions/0?bytes=16000000"))) == 3


def test_a_long_poll_is_answered_when_a_record_comes(
    http: httpx.Client, kafka: Kafka, topic: str
) -> None:
    answers: list[httpx.Response] = []

    def poll() -> None:
        answers.append(http.get(f"/topics/{topic}/partitions/0?wait=30"))

    waiting = [threading.Thread(target=poll) for _ in range(20)]
    began = time.monotonic()
    for thread in waiting:
        thread.start()
    produce(kafka, topic, [b"other"], partition=1)
    produce(kafka, topic, [b"x"])
    for thread in waiting:
        thread.join()
    assert [values(answer) for answer in answers] == [["x"]] * 20
    assert time.monotonic() - began < 25
    assert values(http.get(f"/topics/{topic}/partitions/0?from=1&wait=1")) == []


def test_records_that_are_deleted_or_not_there_yet_are_an_error_with_the_range(
    http: httpx.Client, kafka: Kafka, topic: str
) -> None:
    produce(kafka, topic, [b"0", b"1", b"2"])
    remove_before(kafka.servers, topic, 2)
    for offset in (1, 4, 2**62):
        answer = http.get(f"/topics/{topic}/partitions/0?from={offset}")
        found = answer.json()
        assert (answer.status_code, found["error"]) == (416, "offset_out_of_range")
        assert (found["start"], found["end"]) == (2, 3)
    assert values(http.get(f"/topics/{topic}/partitions/0")) == ["2"]


def test_only_what_is_committed_is_read(http: httpx.Client, kafka: Kafka, topic: str) -> None:
    producer: Producer = kafka.producer("tests", transactional_id=topic)
    producer.init_transactions(30)
    url = f"/topics/{topic}/partitions/0"
    for commit in (True, False, True):
        producer.begin_transaction()
        producer.produce(topic, b"committed" if commit else b"aborted", partition=0)
        producer.flush(30)
        before = http.get(url).json()
        assert before["next"] < before["end"]
        producer.commit_transaction(30) if commit else producer.abort_transaction(30)
    answer = http.get(url)
    assert values(answer) == ["committed", "committed"]
    assert answer.json()["next"] == answer.json()["end"] == 6


@pytest.mark.parametrize(
    ("path", "status", "error"),
    [
        ("topics/missing/partitions/0", 404, "unknown_topic"),
        ("topics/T/partitions/2", 404, "unknown_partition"),
        ("topics/T/partitions/-1", 404, "unknown_partition"),
        ("topics/T/partitions/x", 404, "unknown_partition"),
        ("topics/T/partitions/99999999999999999999", 404, "unknown_partition"),
        ("topics/T/partitions/0?from=soon", 400, "invalid_request"),
        ("topics/T/partitions/0?from=@soon", 400, "invalid_request"),
        ("topics/T/partitions/0?from=9223372036854775808", 400, "invalid_request"),
        ("topics/T/partitions/0?from=--1", 400, "invalid_request"),
        ("topics/T/partitions/0?from=-@1", 400, "invalid_request"),
        ("topics/T/partitions/0?from=-2026-01-01", 400, "invalid_request"),
        ("topics/T/partitions/0?from=" + "9" * 40, 400, "invalid_request"),
        ("topics/T/partitions/0?limit=0", 400, "invalid_request"),
        ("topics/T/partitions/0?limit=1000000", 400, "invalid_request"),
        ("topics/T/partitions/0?wait=61", 400, "invalid_request"),
        ("topics/T/partitions/0?wait=nan", 400, "invalid_request"),
        ("topics/T/partitions/0?size=1", 400, "invalid_request"),
        ("topics/T?limit=1", 400, "invalid_request"),
        ("topics/missing", 404, "unknown_topic"),
        ("groups/missing", 404, "unknown_group"),
        ("nothing", 404, "not_found"),
    ],
)
def test_what_can_not_be_answered_is_refused_with_its_reason(
    http: httpx.Client, kafka: Kafka, topic: str, path: str, status: int, error: str
) -> None:
    answer = http.get("/" + path.replace("T", topic, 1))
    assert (answer.status_code, answer.json()["error"]) == (status, error)
    assert "missing" not in kafka.list_topics("tests")


def test_topics_and_their_offsets_are_listed(http: httpx.Client, kafka: Kafka, topic: str) -> None:
    produce(kafka, topic, [b"a", b"b"])
    listed = http.get("/topics").json()["topics"]
    assert {"topic": topic, "partitions": 2} in listed
    assert not any(each["topic"].startswith("__") for each in listed)
    found = http.get(f"/topics/{topic}").json()
    assert [(each["partition"], each["start"], each["end"]) for each in found["partitions"]] == [
        (0, 0, 2),
        (1, 0, 0),
    ]
    assert http.get(found["partitions"][0]["link"]).status_code == 200


def test_the_lag_of_a_group_is_what_it_has_not_read(
    http: httpx.Client, kafka: Kafka, topic: str
) -> None:
    produce(kafka, topic, [b"a", b"b", b"c"])
    group = f"group-{topic}"
    consumer: Consumer = kafka.make(
        Consumer, kafka.config("tests", group_id=group, enable_auto_commit=False)
    )
    consumer.commit(offsets=[TopicPartition(topic, 0, 1)], asynchronous=False)
    consumer.close()
    found = http.get(f"/groups/{group}").json()
    assert (found["group"], found["state"], found["lag"]) == (group, "empty", 2)
    assert found["partitions"] == [
        {"topic": topic, "partition": 0, "committed": 1, "end": 3, "lag": 2}
    ]
    assert {"group": group, "state": "empty"} in http.get("/groups").json()["groups"]
