"""Runs of short Produce requests give what the same requests give one by one."""

from __future__ import annotations

import asyncio
import random
import struct
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest

from tests.engine.transactions.support import noted
from tests.protocols.kafka.in_memory import Connection
from tests.protocols.kafka.produce_requests import (
    ALL,
    LEADER,
    NONE,
    NOW_MS,
    answers,
    batch,
    by_python,
    check_equal_outcomes,
    check_facts,
    connected,
    error_codes,
    request,
    request_to,
    started,
)
from tests.protocols.link import MemoryLink
from tidemill.engine.api import AlterOp, ConfigChange, NewTopic
from tidemill.engine.journaling import Journaling
from tidemill.errors import TidemillError
from tidemill.kafka_codec.hot import read_run
from tidemill.log.config.topic import LogConfig
from tidemill.log.format.batch import parse_header, stamp_max_timestamp
from tidemill.log.format.validate import check_client_batch
from tidemill.log.steps import run_steps


@pytest.fixture
def one_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all that arrives together start in the same turn, however busy the machine is."""
    monkeypatch.setattr("tidemill.net.turns.TURN_SECONDS", 300.0)


# --- the native decoder, and what Python says ----------------------------------------------------


RUN_BYTES = 224 << 10


def requests_with_mistakes() -> Iterator[bytes]:
    rng = random.Random(7)
    for version in range(3, 14):
        topic: str | UUID = UUID(int=9) if version >= 13 else "topic"
        for acks in (ALL, LEADER, NONE, 5):
            yield request(batch(), version=version, acks=acks, topic=topic, number=-acks)
        yield request(batch(records=9), version=version, topic=topic, client=None)
        yield request(batch(), version=version, topic=topic, client="é".encode())
        yield request(batch(), version=version, topic=topic, transactional=b"x")
        yield request(batch(), version=version, topic=topic, transactional=b"")
        yield request(batch(codec=1), version=version, topic=topic)
        yield request(batch(), version=version, topic=topic, tags=b"\1\0\0")
        yield request(b"", version=version, topic=topic)
        for size in (33_000, 220_000, RUN_BYTES):
            yield request(batch(b"x" * size), version=version, topic=topic)
        whole = request(batch(records=3), version=version, topic=topic)
        for _ in range(150):
            changed = bytearray(whole)
            changed[rng.randrange(4, len(changed))] ^= 1 << rng.randrange(8)
            yield bytes(changed)
            yield whole[: rng.randrange(4, len(whole))]
        yield whole + b"\0"


def test_the_native_decoder_takes_what_python_accepts() -> None:
    taken = 0
    for whole in requests_with_mistakes():
        frame = whole[4:]
        version, acks, found = read_run([memoryview(bytearray(frame))])
        expected = by_python(frame)
        if expected is None:
            assert found == []
        elif found:
            taken += 1
            ((number, ((name, topic_id, ((index, start, end, facts),)),)),) = found
            ((known, ((_, data),)),) = expected[3]
            assert (version, acks, number, frame[start:end]) == (*expected[:3], data)
            assert (topic_id or name, [index]) == (known, [each[0] for each in expected[3][0][1]])
            walked = check_client_batch(data, LogConfig(), NOW_MS)
            assert run_steps(walked).headers == [parse_header(data)]
            check_facts(facts, data)
    assert taken > 20


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


# --- two brokers ---------------------------------------------------------------------------------


def stream(rng: random.Random, count: int) -> list[bytes]:
    """Requests of one client: most of them ordinary, others not, and some invalid."""
    sequences = [0, 0, 0, 0]
    frames = []
    for number in range(count):
        partition, acks = rng.randrange(4), LEADER if rng.randrange(10) == 0 else ALL
        match rng.randrange(80):
            case 0:
                data = batch(b"x" * rng.choice([100, 9_000, 33_000]), codec=rng.randrange(5))
            case 1:
                broken = bytearray(batch(records=3))
                broken[rng.randrange(len(broken))] ^= 8
                data = bytes(broken)
            case 2 | 3 | 4:
                skipped = rng.choice([0, 0, 0, 0, -1, 1])
                sequence = sequences[partition] + skipped
                data = batch(producer_id=5, producer_epoch=0, base_sequence=sequence)
                sequences[partition] += skipped == 0
            case 5:
                partition, data = 4 + rng.randrange(2), batch()
            case 6:
                late = bytearray(batch())
                stamp_max_timestamp(late, 0, NOW_MS + 5)
                data = bytes(late)
            case 7:
                data = batch(timestamp_ms=NOW_MS + rng.choice([0, 3_700_000]))
            case 8 | 9 | 10:
                data = batch(b"x" * rng.choice([50_000, 70_000, 300_000]))
            case _:
                data = batch(b"x" * rng.randrange(200), rng.randrange(1, 5), b"k")
        topic = "t"
        if rng.randrange(16) == 0:
            topic = rng.choice(["u", "compacted", "stamped", "zipped", "short", "none", "small"])
            partition = 0
        version = rng.choice([3, 8, 12]) if rng.randrange(30) == 0 else 9
        fields = {"partition": partition, "acks": acks, "version": version, "number": number}
        frames.append(request(data, topic=topic, **fields))
    return frames


@pytest.mark.parametrize("seed", range(6))
async def test_a_stream_gets_the_same_answers_and_leaves_the_same_logs(
    seed: int, taken: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    frames = stream(random.Random(seed), 400)
    await check_equal_outcomes(frames, seed, taken, monkeypatch)
    assert max(taken) > 1
    assert sum(taken) > 100


async def test_topics_that_do_not_exist_are_not_remembered() -> None:
    """Their names can be long, and there is no end of them."""
    async with connected() as (_, connection, _):
        runs = connection.session._runs
        for number in range(50):
            name = f"{number}" + "n" * 200
            one = [(0, batch())]
            await connection.deliver(
                request(batch(), topic=name)
                + request_to([(name, [*one, (1, batch())])])
                + request_to([(name, []), ("t", one), ("u", one)])
                + request_to([(UUID(int=number), one), (UUID(int=1), one)], version=13)
            )
            assert len(answers(await connection.answered())) == 4
        assert set(runs._targets) <= {"t", "u"}
        await connection.deliver(request_to([("t", one), ("u", one)]) + request(batch()))
        await connection.answered()
        assert set(runs._targets) == {"t", "u"}


# --- what changes between runs -------------------------------------------------------------------


async def test_a_run_sees_the_present_configs_of_a_topic(taken: list[int]) -> None:
    async with connected() as (engine, connection, _):
        frames = [request(batch(b"x" * 100), number=n) for n in range(3)]
        await connection.deliver(b"".join(frames))
        assert error_codes(await connection.answered()) == [0, 0, 0]
        change = ConfigChange("max.message.bytes", AlterOp.SET, "50")
        await engine.configs.alter_topic("t", [change])
        await connection.deliver(b"".join(frames))
        assert error_codes(await connection.answered()) == [10, 10, 10]
        assert sum(taken) == 3


@pytest.mark.parametrize("version", [9, 13])
async def test_a_run_does_not_write_to_a_deleted_topic(version: int, taken: list[int]) -> None:
    async with connected() as (engine, connection, _):
        old = engine.topics.get("t").topic_id
        topic = old if version == 13 else "t"
        frame = request(batch(), topic=topic, version=version)
        await connection.deliver(frame * 3)
        assert len(answers(await connection.answered())) == 3
        assert await engine.topics.delete(["t"]) == [None]
        await connection.deliver(frame)
        refused = answers(await connection.answered())[0][1]
        at = 1 + 1 + (16 if version == 13 else 2) + 1 + 4
        assert struct.unpack_from(">h", refused, at)[0] == (100 if version == 13 else 3)
        await engine.topics.create([NewTopic("t", 1)])
        await connection.deliver(frame)
        answer = answers(await connection.answered())[0][1]
        assert struct.unpack_from(">h", answer, at)[0] == (100 if version == 13 else 0)


async def test_requests_to_a_topic_that_is_deleted_meanwhile_fail_alone(one_turn: None) -> None:
    async with connected() as (engine, connection, _):
        frames = [request(batch(), topic=topic) for topic in "tutu"]
        await connection.deliver(b"".join(frames))
        log = next(log for tp, log in engine._store.partitions.items() if tp.topic == "u")
        engine._flusher.forget(log)
        assert error_codes(await connection.answered()) == [0, 56, 0, 56]


# --- waiting for the disk ------------------------------------------------------------------------


async def test_answers_that_wait_for_the_disk_keep_the_order_of_their_requests() -> None:
    async with connected() as (_, connection, _):
        acks = [ALL, LEADER, ALL, ALL, LEADER, ALL]
        frames = [
            request(batch(), partition=number % 2, acks=each, number=number)
            for number, each in enumerate(acks)
        ]
        await connection.deliver(b"".join(frames))
        assert connection.session.is_busy
        sent = await connection.answered()
        assert [number for number, _ in answers(sent)] == list(range(len(acks)))
        assert error_codes(sent) == [0] * len(acks)


async def test_a_client_that_leaves_before_its_answer_leaves_nothing_behind() -> None:
    async with started() as (engine, server, _):
        connection = Connection(server)
        await connection.deliver(request(batch()) * 20 + request(batch(), partition=1))
        assert server.listener.budget.used > 0
        connection.close()
        async with asyncio.timeout(300):
            while server.listener.budget.used:
                await asyncio.sleep(0)
        assert await engine.records.find_offset("t", 0, 0) is not None
        assert not engine.failed.done()


# --- a disk that fails ---------------------------------------------------------------------------


async def test_what_fits_on_a_full_disk_is_appended() -> None:
    async with connected() as (engine, connection, fs):
        one = batch(b"x" * 100)
        await connection.deliver(request(one) * 2)
        assert error_codes(await connection.answered()) == [0, 0]
        fs.capacity = fs.used() + 2 * len(one) + len(one) // 2
        await connection.deliver(request(one, acks=LEADER) * 4)
        assert error_codes(await connection.answered()) == [0, 0, 56, 56]
        fs.capacity = None
        await connection.deliver(request(one) * 2)
        assert error_codes(await connection.answered()) == [0, 0]
        log = next(log for tp, log in engine._store.partitions.items() if tp == ("t", 0))
        assert log.log_end_offset == log.high_watermark == 6


async def test_all_requests_of_a_run_fail_with_a_failed_sync() -> None:
    async with connected() as (engine, connection, fs):
        fs.fail("sync", times=-1)
        frames = [request(batch(), partition=n % 4, number=n) for n in range(8)]
        await connection.deliver(b"".join(frames))
        sent = await connection.answered()
        assert [number for number, _ in answers(sent)] == list(range(8))
        assert error_codes(sent) == [56] * 8
        assert isinstance(await engine.failed, TidemillError)


async def test_a_group_of_batches_does_not_outgrow_its_segment() -> None:
    async with connected() as (engine, connection, _):
        frame = request(batch(b"x" * 15_000), topic="small")
        for _ in range(40):
            await connection.deliver(frame * 4)
            await connection.answered()
        log = next(log for tp, log in engine._store.partitions.items() if tp.topic == "small")
        assert len(log.segments) == 3
        assert all(segment.size <= 1_048_576 for segment in log.segments)


async def test_a_lone_answer_is_sent_when_the_disk_reports_and_others_together(
    monkeypatch: pytest.MonkeyPatch, one_turn: None
) -> None:
    events: list[str] = []
    report, write = Journaling._written, MemoryLink.write

    def reporting(self: Journaling, *arguments: Any) -> None:
        report(self, *arguments)
        events.append("reported")

    def writing(self: MemoryLink, buffers: list[bytes]) -> None:
        write(self, buffers)
        events.append("sent")

    async with connected() as (engine, connection, _):
        await connection.deliver(request(batch()))
        await connection.answered()
        await noted(engine)
        monkeypatch.setattr(Journaling, "_written", reporting)
        monkeypatch.setattr(MemoryLink, "write", writing)
        await connection.deliver(request(batch()))
        await connection.answered()
        assert events == ["sent", "reported"]
        events.clear()
        await connection.deliver(request(batch()) * 20)  # more than one run
        await connection.answered()
        assert events == ["reported", "sent"]
