"""Runs that one call appends leave the same logs as batches that are appended one by one."""

from __future__ import annotations

import errno
import random
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import pytest

from tests.log.partition.one_partition import NOW
from tests.support.faultyfs import FaultyFileSystem
from tests.support.logs import open_store
from tidemill.clock import ManualClock
from tidemill.engine.api import Durability, PartitionWrite, WriteResult
from tidemill.engine.flusher import Awaited, Flusher
from tidemill.engine.records.append import Appender
from tidemill.engine.records.append_runs import RunAppender
from tidemill.engine.records.partitions import Partitions
from tidemill.engine.runs import RunWrite, Target
from tidemill.errors import TidemillError
from tidemill.log.config.parse import parse_config
from tidemill.log.disk.files import FileSystem, RealFile
from tidemill.log.errors import DiskFullError, OutOfOrderSequenceError, StorageError
from tidemill.log.format.batch import parse_header
from tidemill.log.format.records import NewRecord, encode_batch
from tidemill.log.names import TopicPartition
from tidemill.log.partition import append
from tidemill.log.partition.partition import PartitionLog
from tidemill.log.store import LogStore
from tidemill.native import extension

COPIES = 1 << 20


class Quiet:
    """Stands for what a run appender informs."""

    is_stopping = False

    def __init__(self, store: LogStore) -> None:
        self.logs = store.partitions
        self.uncommitted: set[TopicPartition] = set()
        self.refusals: list[str] = []
        self.awaited: list[tuple[TopicPartition, int]] = []
        self.noted: list[TopicPartition] = []

    def writable(self, topic: str, partition: int) -> PartitionLog:
        raise AssertionError("targets of these tests know their logs")

    def written(self, log: PartitionLog) -> None:
        self.noted.append(log.tp)

    def call_when_each_is_durable(self, awaited: Sequence[Awaited]) -> None:
        self.awaited += [(log.tp, offset) for log, offset, _ in awaited]

    def appended(self, size: int) -> None:
        pass

    def refused(self, write: PartitionWrite, error: TidemillError, now_ms: int) -> None:
        self.refusals.append(type(error).__name__)


class World:
    """Some partitions on a file system, and an appender of runs."""

    def __init__(self, folder: Path | str, fs: FileSystem | None = None) -> None:
        self.clock = ManualClock(NOW)
        self.store = open_store(folder, self.clock, fs)
        self.quiet = Quiet(self.store)
        self.appender = RunAppender(
            cast(Partitions, self.quiet),
            cast(Flusher, self.quiet),
            self.clock,
            cast(Appender, self.quiet),
        )
        self.targets: list[Target] = []

    def add(self, **configs: str) -> PartitionLog:
        number = len(self.targets)
        config = parse_config({key.replace("_", "."): value for key, value in configs.items()})
        log = self.store.create(TopicPartition("t", number), config, UUID(int=number + 1))
        log.chain.env.copies.open(COPIES)
        target = Target(log.tp, None)
        target.find(log)
        self.targets.append(target)
        return log

    def append(
        self, batches: Sequence[tuple[int, bytes]], ends: Sequence[int] = ()
    ) -> list[WriteResult]:
        """Append a run of (partition, batch), of requests with one batch or with these ends."""
        run: list[RunWrite] = []
        for partition, data in batches:
            header = parse_header(data)
            times = header.max_timestamp, header.base_timestamp
            facts = (header.record_count, *times, 0, header.producer_id)
            run.append((self.targets[partition], memoryview(bytearray(data)), facts))
        return self.appender.append(run, Durability.SYNCED, ends or range(1, len(run) + 1))[0]


def batch(
    count: int = 1, size: int = 20, at: int = NOW, producer: tuple[int, int, int] | None = None
) -> bytes:
    identity = producer or (-1, -1, -1)
    return bytes(
        encode_batch(
            [NewRecord(b"k", bytes(size)) for _ in range(count)],
            timestamp_ms=at,
            producer_id=identity[0],
            producer_epoch=identity[1],
            base_sequence=identity[2],
        )
    )


class OneByOne:
    """Stands for the extension, and leaves all batches of a run to ``PartitionLog.append``."""

    append = extension.append

    @staticmethod
    def append_run(run: list[Any], targets: dict[Any, Any], *rest: Any) -> list[int]:
        return [0] * len(targets)


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets how many batches runs appended, and how often they left a log."""
    found = [0, 0]

    class Noting:
        append = extension.append

        @staticmethod
        def append_run(run: list[Any], targets: dict[Any, Any], *rest: Any) -> list[int]:
            counts: list[int] = extension.append_run(run, targets, *rest)
            found[0] += sum(counts)
            for count, places in zip(counts, targets.values(), strict=True):
                found[1] += count < len(places)
            return counts

    monkeypatch.setattr(append, "extension", Noting)
    return found


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def outcome(results: Sequence[WriteResult]) -> list[object]:
    return [each if isinstance(each, tuple) else (type(each), str(each)) for each in results]


def state(log: PartitionLog) -> dict[str, object]:
    """Return all that an append changes."""
    segment, head = log.segments[-1], log.head
    table = segment.open_table()
    producers = log.producers
    return {
        "files": [(each.base_offset, Path(each.path()).read_bytes()) for each in log.segments],
        "segments": [
            (s.size, s.end_offset, s.max_timestamp, s.first_timestamp) for s in log.segments
        ],
        "file": (segment.file.size, segment.file.dirty),
        "index": (
            bytes(table.offsets),
            bytes(table.times),
            table.max_timestamp,
            table.max_relative,
        ),
        "last": (table.last_relative, table.last_position, table.since_entry),
        "recent": table.recent(),
        "chain": (log.log_end_offset, log.chain.head.changed),
        "copies": (b"".join(head.copies), head.copied, head.copied_from, head.copied_limit),
        "used": log.chain.env.copies.used,
        "point": head.bytes_since,
        "producers": producers.encode(),
        "known": [(each.producer_id, each.known_sequences, each.last_offset) for each in producers],
    }


def random_runs(rng: random.Random, partitions: int, count: int) -> list[list[tuple[int, bytes]]]:
    """Return runs of batches, of which some are refused, repeated or need a new segment."""
    sequences: dict[tuple[int, int], int] = {}
    found = []
    for _ in range(count):
        run = []
        for _ in range(rng.choice([1, 2, 8, 30])):
            partition = rng.randrange(partitions)
            records = rng.choice([1, 1, 3])
            size = rng.choice([10, 10, 100, 2000, 30_000])
            at = NOW - rng.randrange(1000)
            producer = None
            if rng.random() < 0.6:
                number, epoch = rng.randrange(3), rng.choice([0] * 30 + [1])
                known = sequences.get((partition, number), 0)
                sent = known + rng.choice([0] * 20 + [1, -1])
                if sent == known:
                    sequences[partition, number] = known + records
                producer = (number + 7, epoch, max(sent, 0))
            run.append((partition, batch(records, size, at, producer)))
        found.append(run)
    return found


@pytest.mark.parametrize("seed", range(8))
def test_a_run_leaves_what_single_appends_leave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, taken: list[int]
) -> None:
    rng = random.Random(seed)
    sent = random_runs(rng, 6, 120)
    drops = [rng.random() < 0.1 for _ in sent]
    found: list[tuple[list[object], list[dict[str, object]]]] = []
    for who in ("together", "single"):
        if who == "single":
            monkeypatch.setattr(append, "extension", OneByOne)
        world = World(tmp_path / who)
        world.add()
        world.add(index_interval_bytes="0")
        world.add(segment_bytes="1048576")
        world.add(segment_ms="500", segment_index_bytes="4096")
        world.add(cleanup_policy="compact", max_compaction_lag_ms="500")
        world.add(max_compaction_lag_ms="500")
        results: list[object] = []
        for run, drop in zip(sent, drops, strict=True):
            results += outcome(world.append(run))
            if drop:
                for target in world.targets:
                    assert target.log is not None
                    target.log.head.drop_copies(target.log.log_end_offset)
        logs = [target.log for target in world.targets if target.log is not None]
        found.append((results, [state(log) for log in logs]))
        results += [world.quiet.refusals, world.quiet.awaited]
        world.store.close()
    assert taken[0] > 50
    assert taken[1] > 50
    assert found[0] == found[1]


def test_many_batches_of_a_producer_leave_what_single_appends_leave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: list[int]
) -> None:
    """More than an index and the state of a producer remember."""
    found = []
    for who in ("together", "single"):
        if who == "single":
            monkeypatch.setattr(append, "extension", OneByOne)
        world = World(tmp_path / who)
        log = world.add()
        for number in range(1200):
            world.append([(0, batch(producer=(9, 0, number)))])
        found.append(state(log))
        world.store.close()
    assert taken == [1199, 1]  # a producer that is new is left
    assert found[0] == found[1]


def test_ordinary_batches_are_appended_together(world: World, taken: list[int]) -> None:
    log = world.add()
    run = [(0, batch(2)), (0, batch()), (0, batch(3))]
    assert outcome(world.append(run)) == [(0, -1, 0), (2, -1, 0), (3, -1, 0)]
    assert outcome(world.append([(0, batch())])) == [(6, -1, 0)]
    assert taken == [4, 0]
    assert log.log_end_offset == 7
    assert [log.read(offset, 100, limit_offset=7) is not None for offset in range(8)] == [
        *[True] * 7,
        False,
    ]


def test_the_next_batches_of_an_idempotent_producer_are_taken(
    world: World, taken: list[int]
) -> None:
    log = world.add()
    world.append([(0, batch(2, producer=(9, 0, 0)))])
    run = [(0, batch(2, producer=(9, 0, 2))), (0, batch(producer=(9, 0, 4)))]
    assert outcome(world.append(run)) == [(2, -1, 0), (4, -1, 0)]
    assert taken == [2, 1]
    # Both again: they are duplicates, for which Python has the offsets.
    assert outcome(world.append(run)) == [(2, -1, 0), (4, -1, 0)]
    assert taken == [2, 3]
    assert log.log_end_offset == 5
    entry = log.producers.get(9)
    assert entry is not None
    assert [each.last_sequence for each in entry.batches] == [1, 3, 4]


def test_a_file_that_is_closed_or_releases_space_is_waited_for(
    world: World, taken: list[int]
) -> None:
    log = world.add()
    world.append([(0, batch())])
    file = log.segments[-1].file
    file.datasync()
    file.close()
    assert outcome(world.append([(0, batch())])) == [(1, -1, 0)]
    threading.Timer(0.05, file.begin_release()).start()
    assert outcome(world.append([(0, batch())])) == [(2, -1, 0)]
    assert not file.releasing  # it waited for the end of the release
    assert outcome(world.append([(0, batch())])) == [(3, -1, 0)]
    assert taken == [4, 0]


def test_no_batch_of_a_run_goes_to_a_broken_file(world: World, taken: list[int]) -> None:
    log = world.add()
    world.append([(0, batch())])
    log.segments[-1].file.broken = True
    results = world.append([(0, batch()), (0, batch())])
    assert [type(each) for each in results] == [StorageError, StorageError]
    assert world.quiet.refusals == ["StorageError", "StorageError"]
    assert taken == [1, 2]
    assert log.failure is not None
    assert log.log_end_offset == 1


def test_what_a_full_disk_refuses_is_not_appended(world: World) -> None:
    """The descriptor is that of a device which is always full, so the native write fails."""
    log = world.add()
    world.append([(0, batch())])
    segment = log.segments[-1]
    raw = cast(RealFile, log.chain.env.pool._open[segment.file])
    descriptor, before = raw._fd, state(log)
    with Path("/dev/full").open("r+b", buffering=0) as full:
        raw._fd = segment.file.fd = full.fileno()
        try:
            (result,) = world.append([(0, batch())])
        finally:
            raw._fd = segment.file.fd = descriptor
    assert isinstance(result, StorageError)
    assert "No space left on device" in str(result)
    assert log.failure is not None  # a device can't be cut as a file can
    assert state(log) == before


def test_a_full_disk_refuses_what_is_written_together() -> None:
    """The batches fit when they are sent again."""
    fs = FaultyFileSystem()
    world = World("/data", fs)
    log = world.add()
    world.append([(0, batch(producer=(9, 0, 0)))])
    run = [(0, batch()), (0, batch(producer=(9, 0, 1))), (0, batch(producer=(9, 0, 2)))]
    fs.fail("write", errno.ENOSPC, times=-1)
    results = world.append(run)
    refused = [DiskFullError, DiskFullError, OutOfOrderSequenceError]
    assert [type(each) for each in results] == refused
    assert world.quiet.refusals == [each.__name__ for each in refused]
    assert (log.log_end_offset, log.segments[-1].end_offset) == (1, 1)
    fs.clear_faults()
    assert outcome(world.append(run)) == [(1, -1, 0), (2, -1, 0), (3, -1, 0)]
    assert [header.base_offset for _, header in log.segments[-1].batches()] == [0, 1, 2, 3]


def test_the_files_of_an_append_are_closed_last(world: World, taken: list[int]) -> None:
    files = [world.add().segments[-1].file for _ in range(4)]
    pool = world.targets[0].log.chain.env.pool  # type: ignore[union-attr]
    world.append([(number, batch()) for number in range(4)])
    for file in files:
        file.datasync()
        file.used = False
    pool.limit = 4
    world.append([(0, batch()), (1, batch())])
    assert taken == [6, 0]
    files[1].datasync()
    another = world.add().segments[-1].file
    assert list(pool._open) == [files[3], files[1], files[0], another]
    assert [file.fd >= 0 for file in files] == [True, True, False, True]


def test_a_request_is_appended_as_a_whole_or_left_with_all_behind_it(world: World) -> None:
    logs = [world.add() for _ in range(2)]
    late = batch(at=NOW + 3_700_000)  # too far ahead for its topic
    run = [(0, batch()), (1, batch()), (0, batch()), (1, late), (0, batch()), (1, batch())]
    assert outcome(world.append(run, [2, 4, 6])) == [(0, -1, 0), (0, -1, 0)]
    assert [log.log_end_offset for log in logs] == [1, 1]
    assert world.append(run[2:], [2, 4]) == []
    assert [log.log_end_offset for log in logs] == [1, 1]
    assert outcome(world.append(run[4:], [2])) == [(1, -1, 0), (1, -1, 0)]


def test_a_fault_of_the_broker_is_not_taken_for_an_error_of_the_client(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = world.add()
    world.append([(0, batch())])

    def prepare(_: object) -> None:
        raise RuntimeError("a fault")

    monkeypatch.setattr(append.Appender, "prepare", prepare)
    log.segments[-1].close_index()
    other = world.add()
    with pytest.raises(RuntimeError, match="a fault"):
        world.append([(0, batch()), (1, batch())])
    assert world.quiet.refusals == []
    assert [log.log_end_offset, other.log_end_offset] == [1, 1]
    assert other.tp in world.quiet.noted  # its batch is synced without a request that waits for it


def test_a_new_segment_takes_what_single_appends_give_it(world: World) -> None:
    """An empty segment takes any batch, and those behind it only within the limits."""
    old = world.add(segment_ms="500")
    small = world.add(internal_segment_bytes="200")
    run = [(at, batch(at=NOW + 1000 * number)) for number in range(3) for at in (0, 1)]
    results = outcome(world.append(run))
    assert results == [(number, -1, 0) for number in (0, 0, 1, 1, 2, 2)]
    assert [segment.base_offset for segment in old.segments] == [0, 1, 2]
    assert [segment.base_offset for segment in small.segments] == [0, 2]


def test_batches_that_are_written_but_not_recorded_are_cut_off_again(world: World) -> None:
    log, other = world.add(), world.add()
    world.append([(0, batch(producer=(9, 0, 0)))])
    log.producers.get(9).batches = ()  # type: ignore[union-attr]
    log.head.copies = ()  # type: ignore[assignment]
    end = log.segments[-1].size
    results = world.append([(0, batch()), (0, batch()), (1, batch())])
    assert [type(each) for each in results] == [StorageError, StorageError, tuple]
    assert "could not be recorded" in str(log.failure)
    assert other.failure is None
    log.segments[-1].close()
    assert Path(log.segments[-1].path()).stat().st_size == log.segments[-1].size == end
    assert log.log_end_offset == 1


@pytest.mark.parametrize("at", range(24))
def test_a_run_without_memory_is_appended_once(world: World, at: int) -> None:
    """One allocation fails. The producer sends all again, or the log is offline."""
    memory = pytest.importorskip("_testcapi", reason="this Python has no test functions")
    log = world.add()
    world.append([(0, batch(producer=(9, 0, 0)))])
    sent = [batch(producer=(9, 0, sequence)) for sequence in (1, 2, 3)]
    target, facts = world.targets[0], (1, NOW, NOW, 0, 9)
    run = [(target, memoryview(bytearray(data)), facts) for data in sent]
    results: list[Any] = [None] * len(run)
    memory.set_nomemory(at, at + 1)
    try:
        extension.append_run(run, {target: [0, 1, 2]}, results, NOW)
    except MemoryError:
        assert log.failure is None
    finally:
        memory.remove_mem_hooks()
    again = world.append([(0, data) for data in sent])
    stored = [header.base_sequence for _, header in log.segments[-1].batches()]
    if log.failure is None:
        assert outcome(again) == [(1, -1, 0), (2, -1, 0), (3, -1, 0)]
        assert stored == [0, 1, 2, 3]
    else:
        assert {type(each) for each in [*results, *again]} == {StorageError}
        assert stored == [0]


def test_offsets_end_where_the_format_ends(world: World) -> None:
    log = world.add()
    world.append([(0, batch())])
    log.head.end_offset = 2**63 - 4
    with pytest.raises(ValueError, match="no offsets left"):
        world.append([(0, batch()) for _ in range(5)])
    assert log.log_end_offset == 2**63 - 1
    with pytest.raises(ValueError, match="no offsets left"):
        log.append(memoryview(bytearray(batch())), now_ms=NOW)
    stored = [header.base_offset for _, header in log.segments[-1].batches()]
    assert stored == [2**63 - 4, 2**63 - 3, 2**63 - 2]
