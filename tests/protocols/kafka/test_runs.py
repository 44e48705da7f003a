"""Runs of short Produce requests give what the same requests give one by one.

A request to many partitions, or with a large batch, is a run by itself.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any
from uuid import UUID

import pytest

from tests.engine.transactions.support import noted
from tests.protocols.kafka.in_memory import Connection
from tests.protocols.kafka.produce_requests import (
    ALL,
    LEADER,
    NOW_MS,
    answers,
    batch,
    check_equal_outcomes,
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
from tidemill.log.format.batch import stamp_max_timestamp
from tidemill.log.names import TopicPartition


@pytest.fixture
def one_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all that arrives together start in the same turn, however busy the machine is."""
    monkeypatch.setattr("tidemill.net.turns.TURN_SECONDS", 300.0)


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


def wide_stream(rng: random.Random, count: int) -> list[bytes]:
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
async def test_a_stream_to_many_partitions_gets_the_same_answers_and_leaves_the_same_logs(
    seed: int, taken: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    frames = wide_stream(random.Random(seed), 250)
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
            codes = error_codes(await connection.answered(), 13)
            assert codes == [0 if topic == known else 100] * 2
        assert taken == [2, 2]


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
        refused = error_codes(await connection.answered(), version)
        assert refused == [100 if version == 13 else 3]
        await engine.topics.create([NewTopic("t", 1)])
        await connection.deliver(frame)
        codes = error_codes(await connection.answered(), version)
        assert codes == [100 if version == 13 else 0]


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


async def test_a_group_of_batches_does_not_outgrow_its_segment() -> None:
    async with connected() as (engine, connection, _):
        frame = request(batch(b"x" * 15_000), topic="small")
        for _ in range(40):
            await connection.deliver(frame * 4)
            await connection.answered()
        log = engine._store.get(TopicPartition("small", 0))
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


# --- what fails ----------------------------------------------------------------------------------

whole_or_not = pytest.mark.parametrize(
    "whole", [False, True], ids=["four requests", "four partitions of a request"]
)


def four(data: bytes, whole: bool, acks: int = ALL) -> bytes:
    """Write to four partitions, with one request or with one for each."""
    if whole:
        return request_to([("t", [(n, data) for n in range(4)])], acks=acks)
    return b"".join(request(data, partition=n, number=n, acks=acks) for n in range(4))


@whole_or_not
async def test_writes_to_a_partition_that_is_deleted_meanwhile_fail_alone(
    whole: bool, one_turn: None, taken: list[int]
) -> None:
    async with connected() as (engine, connection, _):
        await connection.deliver(four(batch(), whole))
        engine._flusher.forget(engine._store.get(TopicPartition("t", 1)))
        assert error_codes(await connection.answered()) == [0, 56, 0, 0]
        assert sum(taken) == 4


@whole_or_not
async def test_what_fits_on_a_full_disk_is_appended(
    whole: bool, one_turn: None, taken: list[int]
) -> None:
    async with connected() as (engine, connection, fs):
        one = batch(b"x" * 100)
        await connection.deliver(four(one, whole))
        assert error_codes(await connection.answered()) == [0] * 4
        fs.capacity = fs.used() + 2 * len(one) + len(one) // 2
        await connection.deliver(four(one, whole, acks=LEADER))
        assert error_codes(await connection.answered()) == [0, 0, 56, 56]
        fs.capacity = None
        await connection.deliver(four(one, whole))
        assert error_codes(await connection.answered()) == [0] * 4
        logs = [engine._store.get(TopicPartition("t", n)) for n in range(4)]
        assert [log.log_end_offset for log in logs] == [3, 3, 2, 2]
        assert [log.high_watermark for log in logs] == [3, 3, 2, 2]
        assert sum(taken) == 12


@whole_or_not
async def test_all_writes_of_a_run_fail_with_a_failed_sync(whole: bool) -> None:
    async with connected() as (engine, connection, fs):
        fs.fail("sync", times=-1)
        await connection.deliver(four(batch(), whole))
        sent = await connection.answered()
        assert [number for number, _ in answers(sent)] == ([0] if whole else [0, 1, 2, 3])
        assert error_codes(sent) == [56] * 4
        assert isinstance(await engine.failed, TidemillError)
