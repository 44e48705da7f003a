"""What the native decoder of Produce requests takes is what Python makes of the same bytes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from uuid import UUID

from tests.protocols.kafka.produce_requests import (
    ALL,
    LEADER,
    NONE,
    NOW_MS,
    Topics,
    batch,
    request,
    request_to,
)
from tidemill.errors import ProtocolError, TidemillError
from tidemill.kafka_codec.headers import parse_header as parse_request_header
from tidemill.kafka_codec.headers import peek_header
from tidemill.kafka_codec.hot import BatchFacts, RunTopic, read_run
from tidemill.kafka_codec.messages import decode_request
from tidemill.log.config.topic import LogConfig
from tidemill.log.format.batch import parse_header
from tidemill.log.format.validate import check_client_batch
from tidemill.log.steps import run_steps

RUN_BYTES = 224 << 10


def read(frame: bytes) -> tuple[int, int, int, list[RunTopic]] | None:
    """Return what the native decoder finds in a request with its length."""
    version, acks, requests = read_run([memoryview(bytearray(frame[4:]))])
    return (version, acks, *requests[0]) if requests else None


def by_python(
    frame: bytes,
) -> tuple[int, int, int, list[tuple[str | bytes, list[tuple[int, bytes]]]]] | None:
    """Return version, acks, correlation id and topics of a request for the native decoder.

    A topic has a name or an id, and the index and the batch of each partition.
    """
    try:
        key, version, number = peek_header(frame)
        if key != 0 or not 5 <= version <= 13:
            return None
        client, position = parse_request_header(frame, key, version)
        asked = decode_request(key, version, frame, position)
        if asked.acks not in (1, -1) or asked.transactional_id is not None or not client.isascii():
            return None
        topics: list[tuple[str | bytes, list[tuple[int, bytes]]]] = []
        for topic in asked.topic_data:
            batches = [(each.index, bytes(each.records or b"")) for each in topic.partition_data]
            known = (topic.topic_id or UUID(int=0)).bytes if version >= 13 else topic.name
            topics.append((known, batches))
            for _, data in batches:
                checked = run_steps(check_client_batch(data, LogConfig(), NOW_MS))
                header = parse_header(data)
                is_same = not header.attributes and bytes(checked.data) == data
                if not is_same or header.base_timestamp < 0:
                    return None
    except (TidemillError, ProtocolError, ValueError, IndexError):
        return None
    return version, asked.acks, number, topics


def check_facts(facts: BatchFacts, data: bytes) -> None:
    """Compare what the native decoder says about a batch with its header."""
    header = parse_header(data)
    assert run_steps(check_client_batch(data, LogConfig(), NOW_MS)).headers == [header]
    assert facts[0] == header.record_count
    assert facts[1:3] == (header.max_timestamp, NOW_MS)
    assert facts[4] == header.producer_id


def requests_with_mistakes() -> Iterator[bytes]:
    """Yield requests of all versions, with changed and missing bytes."""
    rng = random.Random(3)
    for version in range(3, 14):
        names: list[str | UUID] = ["one", "zwei ö"]
        if version >= 13:
            names = [UUID(int=1), UUID(int=2)]
        one: Topics = [(names[0], [(0, batch(records=3))])]
        few: Topics = [(names[0], [(0, batch()), (7, batch(records=3))])]
        long: Topics = [(names[1], [(1, batch(b"x" * 40_000, producer_id=3, producer_epoch=0))])]
        for topics in (one, [*few, *long]):
            for acks in (ALL, LEADER, NONE, 5):
                yield request_to(topics, version=version, acks=acks, number=acks + 9)
            for client in (None, "é".encode()):
                yield request_to(topics, version=version, client=client)
            for name in (b"", b"x"):
                yield request_to(topics, version=version, transactional=name)
            yield request_to(topics, version=version, tags=b"\1\0\0")
        large = [batch(b"x" * size) for size in (33_000, 220_000, RUN_BYTES)]
        for data in (None, b"", batch(codec=1), *large):
            yield request_to([(names[0], [(0, data)])], version=version)
        yield request_to([(names[0], [])], version=version)
        yield request_to([], version=version)
        for topics in (one, few):
            whole = request_to(topics, version=version)
            for _ in range(150):
                changed = bytearray(whole)
                changed[rng.randrange(4, len(changed))] ^= 1 << rng.randrange(8)
                yield bytes(changed)
                yield whole[: rng.randrange(4, len(whole))]
            yield whole + b"\0"


def test_the_native_decoder_takes_what_python_accepts() -> None:
    taken = {True: 0, False: 0}
    for frame in requests_with_mistakes():
        found, expected = read(frame), by_python(frame[4:])
        if found is None:
            continue
        assert expected is not None
        version, acks, number, topics = found
        batches = [
            (
                name if topic_id is None else topic_id,
                [(index, frame[4 + start : 4 + end]) for index, start, end, _ in partitions],
            )
            for name, topic_id, partitions in topics
        ]
        assert (version, acks, number, batches) == expected
        taken[sum(len(partitions) for _, partitions in batches) > 1] += 1
        for (_, _, partitions), (_, known) in zip(topics, batches, strict=True):
            for (*_, facts), (_, data) in zip(partitions, known, strict=True):
                check_facts(facts, data)
    assert min(taken.values()) > 20


def test_a_run_has_one_version_and_the_same_acks() -> None:
    def views(*frames: bytes) -> list[memoryview]:
        return [memoryview(bytearray(frame[4:])) for frame in frames]

    frames = views(request(batch()), request(batch(), acks=LEADER))
    assert len(read_run(frames)[2]) == 1
    frames = views(request(batch()), request(batch(), version=8))
    assert len(read_run(frames)[2]) == 1
    frames = views(*[request(batch(), number=n) for n in range(5)])
    assert [number for number, _ in read_run(frames)[2]] == [0, 1, 2, 3, 4]
    long = views(*[request(batch(b"x" * 50_000))] * 9)
    assert len(read_run(long)[2]) == 4
    large = views(request(batch(b"x" * 500_000)), request(batch()))
    assert len(read_run(large)[2]) == 1
    wide = views(*[request_to([("t", [(n, batch()) for n in range(50)])])] * 3)
    assert len(read_run(wide)[2]) == 2
    assert read_run([]) == (0, 0, [])


def test_a_large_request_is_left_to_the_handler() -> None:
    def partitions(count: int, data: bytes) -> bytes:
        return request_to([("t", [(index, data) for index in range(count)])])

    small, long = batch(), batch(b"x" * 10_000)
    assert read(partitions(128, small)) is not None
    assert read(partitions(129, small)) is None
    assert read(partitions(100, long)) is not None
    assert read(partitions(110, long)) is None  # more than a megabyte
    assert read(partitions(4, batch(records=2048))) is not None
    assert read(partitions(5, batch(records=2048))) is None
    assert read(request(batch(b"x" * 900_000))) is not None
