"""A request to many partitions, or with a large batch, is one run, and gets the usual answer."""

from __future__ import annotations

import random
import struct
from uuid import UUID

import pytest

from tests.protocols.kafka.produce_requests import (
    ALL,
    LEADER,
    NONE,
    NOW_MS,
    Topics,
    answers,
    batch,
    by_python,
    check_equal_outcomes,
    check_facts,
    connected,
    request,
    request_to,
)
from tidemill.errors import TidemillError
from tidemill.kafka_codec.hot import RunTopic, read_run
from tidemill.log.format.batch import stamp_max_timestamp


def read(frame: bytes) -> tuple[int, int, int, list[RunTopic]] | None:
    """Return what the native decoder finds in a request with its length."""
    version, acks, requests = read_run([memoryview(bytearray(frame[4:]))])
    return (version, acks, *requests[0]) if requests else None


# --- the native decoder, and what Python says ----------------------------------------------------


def mistakes() -> list[bytes]:
    """Requests of all versions, with changed and missing bytes."""
    rng = random.Random(3)
    frames = []
    for version in range(3, 14):
        names: list[str | UUID] = ["one", "zwei ö"]
        if version >= 13:
            names = [UUID(int=1), UUID(int=2)]
        topics: Topics = [
            (names[0], [(0, batch()), (7, batch(records=3))]),
            (names[1], [(1, batch(b"x" * 40_000, producer_id=3, producer_epoch=0))]),
        ]
        frames += [
            request_to(topics, version=version, acks=acks, number=acks + 9)
            for acks in (ALL, LEADER, NONE)
        ]
        frames.append(request_to(topics, version=version, transactional=b"x"))
        frames.append(request_to(topics, version=version, tags=b"\1\0\0"))
        frames.append(request_to([(names[0], [(0, None)])], version=version))
        frames.append(request_to([(names[0], [(0, batch(codec=1))])], version=version))
        frames.append(request_to([(names[0], [])], version=version))
        frames.append(request_to([], version=version))
        whole = request_to([(names[0], [(0, batch()), (7, batch(records=3))])], version=version)
        for _ in range(150):
            changed = bytearray(whole)
            changed[rng.randrange(4, len(changed))] ^= 1 << rng.randrange(8)
            frames += [bytes(changed), whole[: rng.randrange(4, len(whole))]]
        frames.append(whole + b"\0")
    return frames


def test_the_native_decoder_takes_what_python_accepts() -> None:
    accepted = 0
    for frame in mistakes():
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
        accepted += sum(len(partitions) for _, partitions in batches) > 1
        for (_, _, partitions), (_, known) in zip(topics, batches, strict=True):
            for (*_, facts), (_, data) in zip(partitions, known, strict=True):
                check_facts(facts, data)
    assert accepted > 20


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


# --- two brokers ---------------------------------------------------------------------------------


def stream(rng: random.Random, count: int) -> list[bytes]:
    """Requests of one client: many are ordinary for all of their partitions, some are not."""
    frames = []
    sequence = 0
    for number in range(count):
        topics: list[tuple[str | UUID, list[tuple[int, bytes | None]]]] = []
        for name in rng.sample(["t", "u", "small"], rng.randrange(1, 4)):
            few = [rng.randrange(4) if name == "t" else 0 for _ in range(rng.randrange(1, 6))]
            topics.append((name, [(i, batch(b"x" * rng.randrange(9_000), 2, b"k")) for i in few]))
        match rng.randrange(24):
            case 0:
                other = rng.choice(["compacted", "stamped", "zipped", "short", "none"])
                topics.append((other, [(0, batch(b"x" * 50))]))
            case 1:
                topics[0][1].append((9, batch()))
            case 2:
                broken = bytearray(batch(records=3))
                broken[rng.randrange(len(broken))] ^= 8
                topics[-1][1].append((0, bytes(broken)))
            case 3 | 4:
                skipped = rng.choice([0, 0, -1, 1])
                data = batch(producer_id=5, producer_epoch=0, base_sequence=sequence + skipped)
                sequence += skipped == 0
                topics.append(("t", [(3, data)]))
            case 5:
                late = bytearray(batch())
                stamp_max_timestamp(late, 0, NOW_MS + 5)
                topics.append(("t", [(1, bytes(late))]))
            case 6:
                topics[0][1].append((0, None))
            case 7:
                topics = [("t", [(1, batch())]), ("u", [])]
            case 8 | 9:
                topics = [("t", [(2, batch(b"x" * rng.choice([60_000, 600_000])))])]
        version = rng.choice([5, 7, 8, 12]) if rng.randrange(8) == 0 else 9
        acks = LEADER if rng.randrange(8) == 0 else ALL
        frames.append(request_to(topics, acks=acks, version=version, number=number))
    return frames


@pytest.mark.parametrize("seed", range(4))
async def test_a_stream_gets_the_same_answers_and_leaves_the_same_logs(
    seed: int, taken: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    frames = stream(random.Random(seed), 250)
    await check_equal_outcomes(frames, seed, taken, monkeypatch)
    assert max(taken) > 5
    assert sum(map(bool, taken)) > 100
    assert 0 in taken


async def test_a_topic_id_names_the_topic_and_an_unknown_one_is_refused(taken: list[int]) -> None:
    async with connected() as (engine, connection, _):
        known = engine.topics.get("t").topic_id
        for topic in (known, known, UUID(int=77)):
            frame = request_to([(topic, [(0, batch()), (1, batch())])], version=13)
            await connection.deliver(frame)
            ((_, rest),) = answers(await connection.answered())
            at = 1 + 1 + 16 + 1 + 4
            assert struct.unpack_from(">h", rest, at)[0] == (0 if topic == known else 100)
        assert taken == [2, 2]


# --- what fails ----------------------------------------------------------------------------------


def codes(sent: bytes, partitions: int) -> list[int]:
    """Return the error codes of the partitions of one response of version 7 for topic ``t``."""
    ((_, rest),) = answers(sent)
    return [struct.unpack_from(">h", rest, 4 + 3 + 4 + 4 + 30 * n)[0] for n in range(partitions)]


async def test_partitions_of_a_request_fail_alone(taken: list[int]) -> None:
    async with connected() as (engine, connection, _):
        frame = request_to([("t", [(n, batch()) for n in (0, 1, 2)])], version=7)
        await connection.deliver(frame)
        log = next(log for tp, log in engine._store.partitions.items() if tp == ("t", 1))
        engine._flusher.forget(log)
        assert codes(await connection.answered(), 3) == [0, 56, 0]
        assert taken == [3]


async def test_what_a_full_disk_refuses_fails_alone(taken: list[int]) -> None:
    async with connected() as (_, connection, fs):
        one = batch(b"x" * 100)
        await connection.deliver(request_to([("t", [(n, one) for n in range(4)])], version=7))
        assert codes(await connection.answered(), 4) == [0] * 4
        fs.capacity = fs.used() + 2 * len(one) + len(one) // 2
        frame = request_to([("t", [(n, one) for n in range(4)])], version=7, acks=LEADER)
        await connection.deliver(frame)
        assert codes(await connection.answered(), 4) == [0, 0, 56, 56]
        fs.capacity = None
        assert taken == [4, 4]


async def test_all_partitions_fail_with_a_failed_sync() -> None:
    async with connected() as (engine, connection, fs):
        fs.fail("sync", times=-1)
        await connection.deliver(request_to([("t", [(n, batch()) for n in range(4)])], version=7))
        assert codes(await connection.answered(), 4) == [56] * 4
        assert isinstance(await engine.failed, TidemillError)
