"""The list of topics, a new one, and one topic."""

from __future__ import annotations

import httpx
import pytest

from tests.gateway.console.test_messages import post, write
from tests.support.processes import poll_until
from tidemill.confluent.clients import Kafka


def names(http: httpx.Client, **parameters: str) -> list[str]:
    found = http.get("/console/topics.json", params={"size": "500", **parameters})
    return [row["name"] for row in found.json()["topics"]["rows"]]


def test_a_topic_is_created_found_and_shown(http: httpx.Client, kafka: Kafka) -> None:
    fields = {"action": "create", "name": "made-here", "partitions": "3"}
    done = post(http, "/console/topics", **fields, configs="retention.ms=1000\n\nsegment.ms = 500")
    assert (done.status_code, done.headers["location"]) == (303, "/console/topic?name=made-here")
    page = http.get(done.headers["location"])
    assert "Topic made-here was created." in page.text
    found = http.get("/console/topic.json", params={"name": "made-here"}).json()
    assert found["topic"]["partitions"] == 3
    set_here = {
        each["name"]: each["value"] for each in found["configs"] if each["source"] == "topic"
    }
    assert set_here == {"retention.ms": "1000", "segment.ms": "500"}
    assert "cleanup.policy" in {each["name"] for each in found["defaults"]}
    assert names(http, q="MADE-h") == ["made-here"]
    again = post(http, "/console/topics", **fields)
    assert again.status_code == 409


@pytest.mark.parametrize(
    "fields",
    [
        {"name": ""},
        {"name": "a b"},
        {"name": ".."},
        {"name": "x" * 250},
        {"name": "ok", "partitions": "0"},
        {"name": "ok", "partitions": "99999999999"},
        {"name": "ok", "partitions": "-5"},
        {"name": "ok", "configs": "no sign"},
        {"name": "ok", "configs": "unknown.setting=1"},
        {"name": "ok", "configs": "retention.ms=soon"},
        {"name": "__consumer_offsets"},
    ],
)
def test_an_invalid_topic_is_refused_in_words(http: httpx.Client, fields: dict[str, str]) -> None:
    answer = post(http, "/console/topics", action="create", **fields)
    exists = fields["name"].startswith("__") and answer.status_code == 409  # a group has committed
    assert exists or answer.status_code == 400, answer.text
    assert ".. <" not in answer.text
    assert "internal error" not in answer.text
    assert "ok" not in names(http)


def test_lists_are_sorted_and_paged_at_the_server(
    http: httpx.Client, kafka: Kafka, topic: str
) -> None:
    mine: dict[str, tuple[int, dict[str, str]]] = {
        f"{topic}-list-{number}": (number + 1, {}) for number in range(5)
    }
    kafka.create_topics("tests", mine)
    assert http.get("/console/topic", params={"name": f"{topic}-list-4"}).status_code == 200
    assert len(names(http, q=f"{topic}-list-")) == 5  # a topic that was missing is asked for
    asked: dict[str, str | int] = {
        "q": f"{topic}-list-",
        "sort": "-partitions",
        "size": 2,
        "page": 2,
    }
    found = http.get("/console/topics.json", params=asked).json()["topics"]
    assert [row["partitions"] for row in found["rows"]] == [3, 2]
    assert (found["found"], found["pages"]) == (5, 3)
    page = http.get("/console/topics", params=asked).text
    assert "page=3" in page
    assert "page=1" in page
    for wrong in ({"sort": "nothing"}, {"page": "0"}, {"size": "501"}, {"page": "x"}):
        assert http.get("/console/topics", params=wrong).status_code == 400
    assert http.get("/console/topics", params={"page": 999999}).status_code == 200


def test_the_readers_of_a_topic_and_how_far_they_are_behind(
    http: httpx.Client, kafka: Kafka, topic: str
) -> None:
    from confluent_kafka import Consumer, TopicPartition

    write(kafka, topic, *((None, b"x"),) * 10)
    config = kafka.config("tests", group_id=f"<b>{topic}", enable_auto_commit=False)
    consumer: Consumer = kafka.make(Consumer, config)
    consumer.commit(offsets=[TopicPartition(topic, 0, 1)], asynchronous=False)
    consumer.close()

    def reader() -> list[dict[str, object]]:
        readers: list[dict[str, object]]
        readers = http.get("/console/topic.json", params={"name": topic}).json()["readers"]
        return readers

    poll_until(lambda: bool(reader()) and reader()[0]["lag"] == 4, 60, "the snapshot has the group")
    assert reader()[0]["group"] == f"<b>{topic}"
    assert f"&lt;b&gt;{topic}" in http.get("/console/topic", params={"name": topic}).text


def test_a_missing_topic_is_not_found(http: httpx.Client) -> None:
    for name in ("missing", "x" * 10_000, "<b>"):
        answer = http.get("/console/topic", params={"name": name})
        assert answer.status_code == 404
        assert "<b>" not in answer.text
    assert http.get("/console/topic").status_code == 400
