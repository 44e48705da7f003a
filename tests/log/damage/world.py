"""A data folder with known records, and the check of what a damaged copy of it gives.

The three promises: the store starts or names the place; no reader gets a wrong record; each
acknowledged record that is not readable is covered by an error or a report.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from uuid import UUID

from tests.support.damage import Files, give_files, take_files
from tests.support.faultyfs import FaultyFileSystem
from tests.support.logs import advance, write
from tidemill.clock import ManualClock
from tidemill.errors import TidemillError
from tidemill.log.compaction.run import compact
from tidemill.log.config.parse import parse_config
from tidemill.log.errors import CorruptLogError, StorageError
from tidemill.log.format.batch import iter_headers
from tidemill.log.format.markers import Marker
from tidemill.log.format.records import NewRecord, decode_records, encode_batch
from tidemill.log.names import TopicPartition, folder_name
from tidemill.log.partition.partition import PartitionLog
from tidemill.log.recovery.inspect import Inspection
from tidemill.log.steps import run_steps
from tidemill.log.store import LogStore

FOLDER = "/data"
NOW = 1_700_000_000_000
DENSE, SPARSE, TXN, SHORT, FRESH = (
    TopicPartition(name, 0) for name in ("dense", "sparse", "txn", "short", "fresh")
)
CONFIGS: dict[TopicPartition, dict[str, str]] = {
    DENSE: {},
    SPARSE: {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.1"},
    TXN: {},
    SHORT: {"file.delete.delay.ms": "0"},
    FRESH: {},
}
SMALL = {"internal.segment.bytes": "600", "index.interval.bytes": "200", "retention.ms": "-1"}

Truth = dict[int, tuple[bytes | None, bytes | None, int]]
"""Key, value and timestamp by offset."""


@dataclass
class World:
    """The files of a folder, and what readers of it must get.

    Attributes:
        written: what was ever written, also records that were deleted or compacted.
        witnessed: offsets below it are in the log for certain: a file says so besides the log. A
            kill leaves nothing that could show that the end of the log behind it was cut off.
    """

    files: Files
    written: dict[TopicPartition, Truth] = field(default_factory=dict)
    records: dict[TopicPartition, Truth] = field(default_factory=dict)
    aborted: dict[TopicPartition, list[tuple[int, int]]] = field(default_factory=dict)
    starts: dict[TopicPartition, int] = field(default_factory=dict)
    witnessed: dict[TopicPartition, int] = field(default_factory=dict)


def make_world(*, clean: bool) -> World:
    """Return a folder after a clean stop or after a kill, with all records synced."""
    clock, fs = ManualClock(NOW), FaultyFileSystem()
    store = LogStore.open(FOLDER, clock=clock, fs=fs)
    logs: dict[TopicPartition, PartitionLog] = {}
    world = World({})
    for number, tp in enumerate(CONFIGS):
        if tp != FRESH:
            config = parse_config(SMALL | CONFIGS[tp])
            logs[tp] = store.create(tp, config, UUID(int=number + 1))
    for turn in range(30):
        _fill(logs, turn, clock)
        if turn == 12:
            advance(store)
            world.written = {tp: read_all(log) for tp, log in logs.items()}
            logs[SHORT].delete_records_before(20)
            _compact(logs[SPARSE], clock)
            store.purge_deleted()
    logs[FRESH] = store.create(FRESH, parse_config(SMALL), UUID(int=9))
    for turn in range(9):
        _fill({FRESH: logs[FRESH]}, turn, clock)
    for tp, log in logs.items():
        log.flush()
        world.written.setdefault(tp, {}).update(read_all(log))
        world.records[tp] = read_all(log)
        world.starts[tp] = log.log_start_offset
        world.aborted[tp] = sorted(log.aborted_transactions(0, log.log_end_offset))
    assert world.aborted[TXN]
    assert all(len(log.segments) > 1 for log in logs.values())
    for tp, log in logs.items():
        world.witnessed[tp] = log.log_end_offset if clean else log.recovery_point
    if clean:
        store.close()
    world.files = take_files(fs, FOLDER)
    return world


def _fill(logs: dict[TopicPartition, PartitionLog], turn: int, clock: ManualClock) -> None:
    clock.advance(1000)
    now = clock.now_ms()
    for tp, log in logs.items():
        text = b"%s %d" % (tp.topic.encode(), turn)
        records = [(b"k%d" % each, b"%s %d" % (text, each)) for each in range(3)]
        if tp == TXN:
            _transaction(log, turn, records, now)
        elif tp == DENSE:
            write(log, records, now - turn % 3, producer=(7, 0, turn * 3), codec=turn % 2)
        else:
            write(log, records, now)


def _transaction(
    log: PartitionLog, turn: int, records: list[tuple[bytes, bytes]], now: int
) -> None:
    batch = encode_batch(
        [NewRecord(*record) for record in records],
        timestamp_ms=now,
        producer_id=turn % 2,
        producer_epoch=turn,
        base_sequence=0,
        transactional=True,
    )
    log.append(batch, now_ms=now)
    log.append_marker(Marker(turn % 2, turn, turn % 3 != 0, 0), now_ms=now)
    log.flush()


def _compact(log: PartitionLog, clock: ManualClock) -> None:
    log.roll(clock.now_ms())
    log.flush()
    run_steps(compact(log, clock.now_ms()))


def read_all(log: PartitionLog) -> Truth:
    truth: Truth = {}
    offset = log.log_start_offset
    while (piece := log.read(offset, 1 << 20, limit_offset=log.high_watermark)) is not None:
        offset = _take(bytes(piece.load()), truth)
    return {at: record for at, record in truth.items() if at >= log.log_start_offset}


def _take(data: bytes, into: Truth) -> int:
    """Decode batches; return the offset behind them."""
    end = -1
    for position, header in iter_headers(data):
        end = header.last_offset + 1
        if not header.is_control and header.record_count:
            for each in decode_records(data, position):
                into[each.offset] = (each.key, each.value, each.timestamp)
    return end


# --- the check ------------------------------------------------------------------------------------


def check(world: World, files: Files, victim: str) -> list[str]:
    """Start with damaged files, read everything, and return the broken promises."""
    fs = give_files(files)
    clock = ManualClock(NOW + 1_000_000)
    found = list(Inspection(fs, FOLDER).run())
    try:
        store = LogStore.open(FOLDER, clock=clock, fs=fs)
    except TidemillError as error:
        named = FOLDER in str(error) and victim.rpartition("/")[0] == FOLDER
        return [] if named else [f"the start was refused: {error}"]
    problems: list[str] = []
    for tp in world.records:
        broken, is_damaged = _check_partition(world, store, tp)
        problems += broken
        if is_damaged and not any(folder_name(tp) in each.text for each in found):
            problems.append(f"{tp} is damaged, but the inspection did not find it")
    if not victim and found:
        problems.append(f"the inspection found {found}")
    if not problems:
        problems = [f"second start: {each}" for each in _check_again(world, store, fs, clock)]
    return problems


def _check_partition(world: World, store: LogStore, tp: TopicPartition) -> tuple[list[str], bool]:
    """Return the broken promises of one partition, and whether it was found to be damaged."""
    folder = f"{FOLDER}/{folder_name(tp)}"
    error = store.offline.get(tp)
    if error is not None:
        return [] if folder in str(error) else [f"{tp}: no place in {error}"], True
    log = store.partitions.get(tp)
    if log is None:
        return [f"{tp}: silently gone"], False
    log.config = parse_config(SMALL | CONFIGS[tp])
    reader = _Reader(world, store, log)
    reader.read_from_start()
    reader.read_each()
    reader.find_times()
    reader.read_aborted()
    return [f"{tp}: {each}" for each in reader.problems], reader.damaged


class _Reader:
    """Reads a partition in all ways, and compares it with what was written."""

    def __init__(self, world: World, store: LogStore, log: PartitionLog) -> None:
        self.truth = world.records[log.tp]
        self.written = world.written[log.tp]
        self.witnessed = world.witnessed[log.tp]
        self.aborted = world.aborted[log.tp]
        self.log = log
        self.problems: list[str] = []
        self.damaged = False
        folder = f"{FOLDER}/{folder_name(log.tp)}"
        reports = [each for each in store.reports if each.path.startswith(folder)]
        cut = [each.offset for each in reports if each.offset >= 0]
        self.lost_from = min(cut) if cut else 1 << 62
        self.folder = folder
        if log.log_start_offset < world.starts[log.tp]:
            # Deleted records are visible again, because the file with the log's start was lost.
            assert any("log-start" in each.path for each in store.reports)
            start = log.log_start_offset
            self.truth = {at: each for at, each in self.written.items() if at >= start}
        if log.log_start_offset > world.starts[log.tp]:
            self.problems.append(f"the log begins at {log.log_start_offset}")

    def read_from_start(self) -> None:
        """Read from the start to the end."""
        found: Truth = {}
        offset = self.log.log_start_offset
        while offset < self.log.high_watermark:
            batches = self._read(offset, 700)
            if batches is None:
                break
            end = _take(batches, found)
            if end <= offset:
                self.problems.append(f"the read at {offset} makes no progress")
                break
            offset = end
        self._compare(found)
        missing = [at for at in self.truth if at not in found and at < self.lost_from]
        if missing and missing[0] >= self.witnessed:
            self.lost_from = min(self.lost_from, missing[0])
            missing = [at for at in found if at > missing[0]]
        if missing and not self.damaged:
            self.problems.append(f"records {missing} are missing, and nothing says so")

    def read_each(self) -> None:
        """Read at each offset, as a consumer that seeks."""
        for offset in range(self.log.log_start_offset, self.log.high_watermark, 5):
            found: Truth = {}
            batches = self._read(offset, 1)
            if batches is None:
                continue
            _take(batches, found)
            self._compare(found)
            wanted = next((at for at in self.truth if at >= offset), None)
            first = next((at for at in found if at >= offset), None)
            if first is not None and first != wanted and not self.log.chain.sparse:
                self.problems.append(f"a read at {offset} begins at {first}, not at {wanted}")

    def _read(self, offset: int, size: int) -> bytes | None:
        try:
            piece = self.log.read(offset, size, limit_offset=self.log.high_watermark)
            return None if piece is None else bytes(piece.load())
        except StorageError as error:
            self._note(error)
            return None

    def _note(self, error: StorageError) -> None:
        self.damaged = True
        if self.folder not in str(error):
            self.problems.append(f"no place in {error!r}")
        if isinstance(error, CorruptLogError) and not error.path.startswith(self.folder):
            self.problems.append(f"wrong place {error.path}")

    def _compare(self, found: Truth) -> None:
        for offset, record in found.items():
            if self.written.get(offset) != record:
                self.problems.append(
                    f"wrong record at {offset}: {record}, not {self.written.get(offset)}"
                )

    def find_times(self) -> None:
        for number, (_, _, timestamp) in enumerate(self.truth.values()):
            if number % 4:
                continue
            wanted = next(
                (at for at, (_, _, time) in self.truth.items() if time >= timestamp), None
            )
            if wanted is None or wanted >= self.lost_from:
                continue
            try:
                found = run_steps(self.log.find_timestamp(timestamp))
            except StorageError as error:
                self._note(error)
                continue
            if found is None or found[0] != wanted:
                self.problems.append(f"time {timestamp} is at {found}, not at {wanted}")

    def read_aborted(self) -> None:
        try:
            found = sorted(self.log.aborted_transactions(0, self.log.high_watermark))
        except StorageError as error:
            self._note(error)
            return
        if self.lost_from == 1 << 62 and found != self.aborted:
            self.problems.append(f"aborted {found}, not {self.aborted}")


def _check_again(
    world: World, store: LogStore, fs: FaultyFileSystem, clock: ManualClock
) -> list[str]:
    """Write, kill and start again: what is readable stays readable, and is still right."""
    before: dict[TopicPartition, Truth] = {}
    for tp, log in list(store.partitions.items()):
        if tp not in world.records:
            continue
        try:
            now = clock.now_ms()
            info = log.append(encode_batch([NewRecord(b"k", b"new")], timestamp_ms=now), now_ms=now)
            log.flush()
            before[tp] = read_all(log)
        except StorageError:
            continue
        if before[tp].get(info.first_offset, (None, None, 0))[1] != b"new":
            return [f"{tp}: the new record is not read at {info.first_offset}"]
    store.checkpoint()
    fs.kill()
    try:
        again = LogStore.open(FOLDER, clock=clock, fs=fs)
    except TidemillError as error:
        return [f"the start was refused: {error}"]
    for tp, truth in before.items():
        if tp in again.offline:  # damage that no reader has met
            if f"{FOLDER}/{folder_name(tp)}" not in str(again.offline[tp]):
                return [f"{tp} is offline now: {again.offline[tp]}"]
        elif read_all(again.partitions[tp]) != truth:
            return [f"{tp} has other records now"]
    return []
