"""Ids of requests: the window, concurrent requests, and what a start reads back from the topic."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.confluent.clients import Kafka
from tidemill.gateway.dedup import Once, Stored, Window, rebuild


def test_a_window_forgets_the_oldest_ids_and_those_that_are_too_old() -> None:
    window = Window(most=2, age_ms=1000)
    for number, id_ in enumerate((b"a", b"b", b"c")):
        window.add(id_, Stored(0, number, 0), now_ms=number)
    assert [window.find(id_, 3) for id_ in (b"a", b"b", b"c")] == [
        None,
        Stored(0, 1, 0),
        Stored(0, 2, 0),
    ]
    assert window.find(b"b", 1000) == Stored(0, 1, 0)
    assert window.find(b"b", 1001) is None


@given(st.lists(st.tuples(st.binary(max_size=1), st.integers(0, 5)), max_size=60))
def test_a_window_answers_as_a_list_of_what_was_stored_does(steps: list[tuple[bytes, int]]) -> None:
    window, now, model = Window(most=3, age_ms=10), 0, list[tuple[bytes, int, Stored]]()
    for number, (id_, pause) in enumerate(steps):
        now += pause
        fresh = [each for each in model[-3:] if each[1] + 10 > now]
        known = next((stored for each, _, stored in fresh if each == id_), None)
        assert window.find(id_, now) == known
        if known is None:
            model = [each for each in model if each[0] != id_]
            model.append((id_, now, Stored(0, number, 0)))
        window.add(id_, Stored(0, number, 0), now)
        assert len(window) <= 3


async def test_concurrent_requests_with_one_id_store_one_record() -> None:
    once, writes, gate = Once(Window(10, 1000), lambda: 0), 0, asyncio.Event()

    async def write() -> Stored:
        nonlocal writes
        writes += 1
        await gate.wait()
        return Stored(0, 7, 1)

    calls = [asyncio.ensure_future(once.store(b"id", write)) for _ in range(3)]
    await asyncio.sleep(0)
    calls[0].cancel()  # its client has gone: the write continues
    gate.set()
    assert await asyncio.gather(*calls[1:]) == [(Stored(0, 7, 1), False)] * 2
    assert await once.store(b"id", write) == (Stored(0, 7, 1), False)
    assert writes == 1


async def test_a_request_writes_itself_if_the_first_one_with_its_id_has_failed() -> None:
    once, writes, gate = Once(Window(10, 1000), lambda: 0), 0, asyncio.Event()

    async def write() -> Stored:
        nonlocal writes
        writes += 1
        await gate.wait()
        if writes == 1:
            raise OSError("refused")
        return Stored(0, 7, 1)

    first = asyncio.ensure_future(once.store(b"id", write))
    await asyncio.sleep(0)
    second = asyncio.ensure_future(once.store(b"id", write))
    await asyncio.sleep(0)
    gate.set()
    with pytest.raises(OSError, match="refused"):
        await first
    assert await second == (Stored(0, 7, 1), True)


def test_a_start_reads_the_ids_back_from_the_end_of_the_topic(kafka: Kafka, topic: str) -> None:
    producer = kafka.producer("tests")
    now = int(time.time() * 1000)
    for number in range(6):
        ids = (b"id%d" % number, b"second") if number % 3 else ()
        headers: Any = [("id", id_) for id_ in ids]
        # The oldest timestamp, as a client that copies old records sets it.
        producer.produce(topic, b"x", partition=number % 2, headers=headers, timestamp=1 + number)
    assert producer.flush(30) == 0
    window = Window(most=3, age_ms=60_000)
    assert rebuild(window, kafka, topic, "id", now_ms=now, digest=lambda m: m.value() or b"") == 6
    assert window.find(b"id5", now + 59_999) == Stored(1, 2, 6, b"x")
    found = [window.find(b"id%d" % number, now) for number in (1, 2, 4, 5)]
    assert [each and (each.partition, each.offset) for each in found] == [
        None,  # the window keeps three
        (0, 1),
        (0, 2),
        (1, 2),
    ]
    assert window.find(b"second", now) is None


def test_a_topic_that_does_not_exist_or_is_empty_has_no_ids(kafka: Kafka, topic: str) -> None:
    window = Window(10, 1000)
    assert rebuild(window, kafka, topic, "id", now_ms=0) == 0
    assert rebuild(window, kafka, f"{topic}-missing", "id", now_ms=0) == 0
    assert len(window) == 0
    assert f"{topic}-missing" not in kafka.list_topics("tests")


def test_only_the_last_records_of_a_long_topic_are_read(kafka: Kafka, topic: str) -> None:
    producer, old = kafka.producer("tests"), int(time.time() * 1000) - 3_600_000
    for number in range(500):
        producer.produce(topic, b"", partition=0, headers=[("id", b"%d" % number)], timestamp=old)
    assert producer.flush(30) == 0
    window = Window(most=10, age_ms=60_000)
    assert rebuild(window, kafka, topic, "id", now_ms=old + 3_600_000) == 10
    assert window.find(b"499", old + 3_600_000) is not None
    assert window.find(b"489", old + 3_600_000) is None
