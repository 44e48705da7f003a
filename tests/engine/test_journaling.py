"""The journal in a broker: one sync for many partitions, and a journal that can't be written."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Iterator, Sequence
from pathlib import Path
from typing import cast

import pytest
from structlog.testing import capture_logs

from tests.engine.support import busy_until, entered, later, produce, running, start, until, write
from tests.engine.transactions.support import Producer, cut_power, is_noted, noted
from tests.support.faultyfs import FaultyFileSystem, Unlucky
from tests.support.written import offset_of
from tidemill import system
from tidemill.engine import flusher as flusher_module
from tidemill.engine import journaling as journaling_module
from tidemill.engine.api import Durability, NewTopic, PendingWrites, WriteResult
from tidemill.engine.engine import Engine
from tidemill.engine.flusher import ACCEPTED_PER_TURN, LARGE_APPEND, LONG_TURN_S
from tidemill.engine.journaling import WRITTEN_BYTES, Journaling
from tidemill.errors import TidemillError
from tidemill.log.errors import JournalDamagedError, SyncFailedError
from tidemill.log.journal.checkpoint import CHECKPOINT, decode_journal_checkpoint
from tidemill.log.journal.extent import EXTENT, Extent, read_extent
from tidemill.log.journal.journal import LOG_BYTES
from tidemill.log.names import TopicPartition
from tidemill.log.partition.sync import SyncTicket, run_tickets
from tidemill.settings import Log

pytestmark = pytest.mark.usefixtures("no_extents")
PARTITIONS = 12
NO_EXTENT = Extent(bytes(16), 0, 0, 1)
RARELY = Log(sync_interval_ms=3_600_000)
"""Segments are synced only when something asks for it."""


@contextlib.asynccontextmanager
async def broker(fs: FaultyFileSystem, journal_bytes: int = 1 << 20) -> AsyncIterator[Engine]:
    """Run a broker whose journal is open and whose topic has records in each partition."""
    log = Log(journal_bytes=journal_bytes, sync_interval_ms=3_600_000)
    async with running(fs=fs, log=log) as engine:
        if not ends(engine):
            await engine.topics.create([NewTopic("t", PARTITIONS)])
        await write_each(engine, b"first")
        await until(lambda: bool(fs.capacity) or is_noted(engine))
        yield engine


@pytest.fixture
def engine(loop_runner: asyncio.Runner, fs: FaultyFileSystem) -> Iterator[Engine]:
    """A broker on a disk in memory."""
    yield from entered(loop_runner, broker(fs))


def is_discarded(fs: FaultyFileSystem) -> bool:
    """Return whether the next start ignores the journal."""
    return decode_journal_checkpoint(bytes(fs.content(f"/data/{CHECKPOINT}"))).journal == b""


def journaling_of(engine: Engine) -> Journaling:
    assert engine._flusher.journaling is not None
    return engine._flusher.journaling


def begin(
    engine: Engine, partition: int, size: int, *, topic: str = "t"
) -> Awaitable[list[WriteResult]]:
    """Begin to write a record with acks=all."""
    batch = write(topic, bytes(size), partition=partition)
    return later(engine.records.append([batch], Durability.SYNCED))


async def acknowledged(*answers: Awaitable[list[WriteResult]]) -> None:
    """Wait until writes are answered; raise the error of one that was refused."""
    for answer in answers:
        for result in await answer:
            offset_of(result)


async def write_each(engine: Engine, value: bytes, partitions: int = PARTITIONS) -> None:
    """Write a record to each partition with acks=all."""
    batches = [write("t", value, partition=n) for n in range(partitions)]
    await acknowledged(produce(engine, *batches))


def ends(engine: Engine) -> set[int]:
    """Return the ends of the partitions that readers see."""
    logs = engine._store.partitions
    return {log.high_watermark for tp, log in logs.items() if tp.topic == "t"}


@contextlib.asynccontextmanager
async def after_a_power_cut(engine: Engine, fs: FaultyFileSystem) -> AsyncIterator[Engine]:
    """Cut the power, and run the next broker, which has all partitions."""
    await cut_power(engine, fs, Unlucky())
    fs.clear_faults()
    async with broker(fs) as again:
        assert not again._store.offline
        yield again


async def test_records_of_many_partitions_share_one_sync(
    engine: Engine, fs: FaultyFileSystem
) -> None:
    before = fs.syncs
    await write_each(engine, b"second")
    assert fs.syncs == before + 1
    assert ends(engine) == {2}


@pytest.mark.parametrize("with_offsets", [False, True])
async def test_the_markers_of_a_transaction_share_one_sync(
    engine: Engine, fs: FaultyFileSystem, with_offsets: bool
) -> None:
    producer = await Producer(engine).init()
    for round_ in range(2):
        for n in range(PARTITIONS):
            await producer.send("t", b"%d" % round_, partition=n)
        if with_offsets:
            await producer.commit_offset("g", "t", round_)
        await noted(engine)
        before = fs.syncs
        await producer.commit()
    # One for the decision, one for twelve markers and that of offsets. The completion that no
    # request waits for can be the third.
    assert fs.syncs - before <= 3


async def test_a_journal_that_is_too_small_never_fails_a_write(
    engine: Engine, fs: FaultyFileSystem
) -> None:
    for n in range(150):  # 150 entries of 16 KB in 1 MB
        await write_each(engine, bytes(1300) + b"%d" % n)
    assert ends(engine) == {151}
    async with after_a_power_cut(engine, fs) as again:
        assert ends(again) == {152}


async def test_a_full_disk_in_the_journal_closes_it_and_fails_no_write(
    engine: Engine, fs: FaultyFileSystem
) -> None:
    fs.fail("write", errno.ENOSPC, path="/journal/")
    await write_each(engine, b"second")
    await write_each(engine, b"third")
    assert ends(engine) == {3}
    await until(lambda: is_discarded(fs))  # the next start must not trust the journal
    assert not engine._store.journal.is_open


async def test_a_write_behind_a_refused_entry_of_notes_is_synced(
    engine: Engine, fs: FaultyFileSystem
) -> None:
    fs.fail("write", errno.ENOSPC, path="/journal/")
    answer = begin(engine, 0, 100)
    assert journaling_of(engine).start((), (), lambda _: None)  # as an entry with notes only
    async with asyncio.timeout(60):
        await acknowledged(answer)
    assert ends(engine) == {1, 2}


@pytest.mark.parametrize("waits", [False, True])
async def test_what_a_closed_journal_has_survives_a_power_cut(
    engine: Engine, fs: FaultyFileSystem, waits: bool
) -> None:
    """Most partitions get nothing more, so nothing but the journal has their last record."""
    await write_each(engine, b"second")
    fs.fail("write", errno.ENOSPC, path="/journal/")
    await write_each(engine, b"third", partitions=2)
    assert not engine._store.journal.is_open
    await until(lambda: not waits or is_discarded(fs))
    await cut_power(engine, fs, Unlucky())
    fs.clear_faults()
    async with running(fs=fs) as again:
        assert not again._store.offline
        found = [again._store.get(TopicPartition("t", n)) for n in range(PARTITIONS)]
        assert [log.high_watermark for log in found] == [3, 3] + [2] * (PARTITIONS - 2)


async def test_without_space_for_a_journal_segments_are_synced(fs: FaultyFileSystem) -> None:
    fs.fail("create", errno.ENOSPC, times=-1, path="/journal/")
    async with running(fs=fs, log=RARELY) as engine:
        await engine.topics.create([NewTopic("t", PARTITIONS)])
        await write_each(engine, b"first")
        await write_each(engine, b"second")
        assert ends(engine) == {2}
        assert not engine._store.journal.is_open


async def test_a_failed_sync_of_the_journal_stops_the_broker(
    engine: Engine, fs: FaultyFileSystem
) -> None:
    fs.fail("sync", path="/journal/")
    with pytest.raises(TidemillError):
        await write_each(engine, b"lost")
    assert isinstance(await engine.failed, SyncFailedError)
    assert ends(engine) == {1}


async def test_a_clean_stop_leaves_no_journal_to_be_read(
    engine: Engine, fs: FaultyFileSystem
) -> None:
    await write_each(engine, b"second")
    await engine.stop()
    assert is_discarded(fs)
    async with broker(fs) as again:
        assert again._store.clean_start
        assert again._store.reports == []


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENOSPC])
async def test_a_journal_that_can_not_be_opened_is_opened_by_a_later_write(
    fs: FaultyFileSystem, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journaling_module, "OPEN_AGAIN_S", 0.0)
    fs.fail("create", code, times=4, path="/data/journal/")
    with capture_logs() as logs:
        engine = await start(fs=fs)
        await engine.topics.create([NewTopic("t", PARTITIONS)])
        async with asyncio.timeout(60):
            while not engine._store.journal.is_open:
                await write_each(engine, b"first")
    warnings = [each["event"] for each in logs if each["log_level"] == "warning"]
    assert warnings == ["journal.unavailable"]
    await until(lambda: is_noted(engine))
    await write_each(engine, b"second")
    high = ends(engine)
    async with after_a_power_cut(engine, fs) as again:
        assert {end - 1 for end in ends(again)} == high


# --- the second place that knows the journal's last entry ----------------------------------------


@pytest.fixture
def extents_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journaling_module, "EXTENT_S", 0.0)


async def test_a_moment_after_a_write_a_second_place_knows_it(
    extents_at_once: None, engine: Engine, fs: FaultyFileSystem
) -> None:
    await write_each(engine, b"second", partitions=3)
    journal = engine._store.journal

    def known() -> dict[int, int]:
        found = read_extent(fs, "/data")
        return {each.partition: each.end_offset for each in found or ()}

    await until(lambda: known().get(2) == 2)
    found = read_extent(fs, "/data")
    assert found is not None
    assert (found.sequence, found.is_complete) == (journal.next_sequence - 1, True)
    # A power cut, and the newest file of the journal is lost.
    await cut_power(engine, fs, Unlucky())
    fs.remove("/data/journal/00000001.journal")
    with pytest.raises(JournalDamagedError, match=r"00000001\.journal is missing"):
        await start(fs=fs)


async def test_a_second_place_that_can_not_be_written_fails_no_write(
    extents_at_once: None, engine: Engine, fs: FaultyFileSystem
) -> None:
    with capture_logs() as logs:
        fs.fail("write", errno.EIO, path=EXTENT)
        await write_each(engine, b"second")
        await until(lambda: any(each["event"] == "journal.extent_not_written" for each in logs))
    await write_each(engine, b"third")
    await until(lambda: (read_extent(fs, "/data") or NO_EXTENT).sequence > 2)
    async with after_a_power_cut(engine, fs) as again:
        assert ends(again) == {4}


async def test_a_failed_sync_of_the_second_place_stops_the_broker(
    extents_at_once: None, engine: Engine, fs: FaultyFileSystem
) -> None:
    fs.fail("sync", path=EXTENT)
    with contextlib.suppress(SyncFailedError):  # the write can be faster than the second place
        await write_each(engine, b"second")
    assert isinstance(await engine.failed, SyncFailedError)


# --- on the disk of this machine, where the journal has its native thread -------------------------


@contextlib.asynccontextmanager
async def real_broker(folder: Path) -> AsyncIterator[Engine]:
    """Run a broker whose journal is open and whose topic has records in each partition."""
    async with running(folder, log=RARELY) as engine:
        await engine.topics.create([NewTopic("t", PARTITIONS)])
        await write_each(engine, b"first")
        await noted(engine)
        await write_each(engine, b"second")
        yield engine


@pytest.fixture
def real(loop_runner: asyncio.Runner, tmp_path: Path) -> Iterator[Engine]:
    """A broker on the disk of this machine."""
    yield from entered(loop_runner, real_broker(tmp_path))


def replace_journal(engine: Engine, device: str) -> None:
    """Let the journal write to a device instead of its file."""
    current = engine._store.journal._ring.current
    assert current is not None
    place = current.raw.fileno()
    assert place is not None
    other = os.open(device, os.O_RDWR | os.O_CLOEXEC)
    os.dup2(other, place, inheritable=False)
    os.close(other)


async def test_a_real_sync_that_fails_stops_the_broker(real: Engine) -> None:
    replace_journal(real, "/dev/null")  # takes all bytes, and can't be synced
    with pytest.raises(TidemillError):
        await write_each(real, b"lost")
    assert isinstance(await real.failed, SyncFailedError)
    assert ends(real) == {2}


@pytest.mark.skipif(sys.platform != "linux", reason="/dev/full is of Linux")
async def test_a_really_full_disk_in_the_journal_fails_no_write(real: Engine) -> None:
    replace_journal(real, "/dev/full")
    await write_each(real, b"third")
    await write_each(real, b"fourth")
    assert ends(real) == {4}
    assert not real._store.journal.is_open


async def test_a_stop_does_not_wait_for_the_answer_of_a_round(real: Engine, tmp_path: Path) -> None:
    writing = asyncio.ensure_future(write_each(real, b"third"))
    await asyncio.sleep(0)
    await real.stop()
    await asyncio.gather(writing, return_exceptions=True)
    async with running(tmp_path, log=RARELY) as again:
        assert not again._store.offline
        assert ends(again) <= {2, 3}


# --- long turns of the event loop ----------------------------------------------------------------


NATIVE_THREADS = pytest.mark.skipif(
    not system.is_linux(), reason="threads of Python need the lock that a busy event loop has"
)


def has_written(journaling: Journaling) -> bool:
    """Return whether the native thread has written an entry that no turn has noticed."""
    thread = journaling._entries._thread
    return thread is not None and thread.has_written()


@NATIVE_THREADS
async def test_a_round_that_is_written_during_a_turn_is_followed_by_the_next_one(
    real: Engine,
) -> None:
    journaling = journaling_of(real)
    log = real._store.get(TopicPartition("t", 0))
    first = begin(real, 0, LARGE_APPEND)
    await asyncio.sleep(0)
    assert journaling.is_busy
    busy_until(lambda: has_written(journaling))
    small = begin(real, 1, 100)
    assert log.high_watermark == 2
    released: list[str] = []
    cast(PendingWrites, first).call_when_done(lambda _: released.append("first"))
    second = begin(real, 1, LARGE_APPEND)
    assert log.high_watermark == 3  # the report of the disk was taken in this turn,
    assert journaling.is_busy  # and the next round has begun,
    assert not released  # but no request was answered within another one
    await acknowledged(second, small)
    assert released == ["first"]
    assert ends(real) == {2, 3, 4}


@NATIVE_THREADS
async def test_a_first_round_does_not_wait_for_the_end_of_a_long_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(flusher_module, "perf_counter", lambda: now)
    async with real_broker(tmp_path) as engine:
        journaling = journaling_of(engine)
        waits = [begin(engine, 0, LARGE_APPEND)]
        now += 1.1 * LONG_TURN_S
        waits.append(begin(engine, 1, 100))
        assert not journaling.is_busy
        waits.append(begin(engine, 1, LARGE_APPEND))
        assert journaling.is_busy
        await acknowledged(*waits)
        assert ends(engine) == {2, 3, 4}


@NATIVE_THREADS
async def test_a_round_of_many_logs_that_is_noticed_during_a_turn_releases_all(
    real: Engine,
) -> None:
    journaling = journaling_of(real)
    count = ACCEPTED_PER_TURN + 10
    await real.topics.create([NewTopic("many", count)])
    first, last = (real._store.get(TopicPartition("many", n)) for n in (0, count - 1))

    def begin_all() -> Awaitable[list[WriteResult]]:
        batches = [write("many", b"v", partition=n) for n in range(count)]
        return later(real.records.append(batches, Durability.SYNCED))

    await begin_all()  # in their own files, which are new
    await noted(real)
    answer = begin_all()
    await asyncio.sleep(0)
    assert journaling.is_busy
    busy_until(lambda: has_written(journaling))
    other = begin(real, 0, LARGE_APPEND)
    assert (first.high_watermark, last.high_watermark) == (2, 1)
    assert journaling.is_busy
    await acknowledged(answer, other)
    assert (first.high_watermark, last.high_watermark) == (2, 2)


@NATIVE_THREADS
async def test_a_sync_of_a_segment_that_ends_during_a_turn_is_followed_by_the_next_one(
    real: Engine,
) -> None:
    runner = real._flusher._runner
    log = real._store.get(TopicPartition("t", 0))
    first = begin(real, 0, LOG_BYTES)  # too much for the journal
    await asyncio.sleep(0)
    assert runner.is_busy
    (thread,) = runner._running
    busy_until(thread.has_synced)
    second = begin(real, 0, LARGE_APPEND)
    assert log.high_watermark == 3
    assert runner.is_busy
    await acknowledged(first, second)
    assert log.high_watermark == 4


# --- segments behind the journal -----------------------------------------------------------------


async def test_the_system_begins_to_write_a_segment_with_much_in_the_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journaling_module, "TICK_S", 3_600)
    ranges: list[tuple[int, int]] = []
    monkeypatch.setattr(
        system, "start_writeback", lambda _, position, length: ranges.append((position, length))
    )
    async with real_broker(tmp_path) as engine:
        busy, quiet = (engine._store.get(TopicPartition("t", n)) for n in (0, 1))
        journaling = journaling_of(engine)
        for _ in range(40):
            await acknowledged(begin(engine, 0, LOG_BYTES // 2), begin(engine, 1, 100))
            await until(lambda: not journaling._writing_back)
        active = busy.chain.active
        assert active.size > 4 * WRITTEN_BYTES
        assert active.unwritten_bytes < 2 * WRITTEN_BYTES
        assert quiet.chain.active.unwritten_bytes > 0
        position = ranges[0][0]
        for start_, length in ranges:
            assert start_ == position
            assert length >= WRITTEN_BYTES
            position += length
        assert position == active.size - active.unwritten_bytes
        assert busy.stored_offset < busy.high_watermark  # nothing of it is durable there


async def test_a_disk_that_refuses_to_begin_fails_no_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = 0

    def refuse(fd: int, position: int, length: int) -> None:
        nonlocal tried
        tried += 1
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(system, "start_writeback", refuse)
    async with real_broker(tmp_path) as engine:
        journaling = journaling_of(engine)
        for _ in range(20):
            await acknowledged(begin(engine, 0, LOG_BYTES // 2))
            await until(lambda: not journaling._writing_back)
        assert tried > 1


async def test_the_segments_of_many_logs_are_stored_in_portions(
    fs: FaultyFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journaling_module, "TICK_S", 3_600)
    jobs: list[int] = []

    def recorded(tickets: Sequence[SyncTicket]) -> None:
        jobs.append(len(tickets))
        run_tickets(tickets)

    async with broker(fs, journal_bytes=4 << 20) as engine:
        journaling = journaling_of(engine)
        monkeypatch.setattr(journaling_module, "run_tickets", recorded)
        monkeypatch.setattr(journaling_module, "STORED_BYTES", 250_000)
        for _ in range(4):  # half of the journal is in use then
            await acknowledged(*[begin(engine, n, 50_000) for n in range(PARTITIONS)])
        await until(lambda: not (engine._store.journal.is_half_full or journaling._storing))
        assert jobs
        assert max(jobs) <= 5
