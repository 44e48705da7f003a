"""Transactions in one partition: what is stable, what was aborted, and what a crash leaves."""

from __future__ import annotations

import random
from collections.abc import Mapping
from uuid import UUID

import pytest

from tests.support.faultyfs import FaultyFileSystem
from tests.support.logs import TP, open_log, open_store, read_bytes, write
from tidemill.clock import ManualClock
from tidemill.errors import (
    DiskFullError,
    InvalidProducerEpochError,
    InvalidRecordError,
    InvalidTxnStateError,
    OutOfOrderSequenceError,
    TransactionCoordinatorFencedError,
)
from tidemill.log.aborted import (
    ENTRY_SIZE,
    AbortedTransaction,
    decode_aborted,
    encode_aborted,
)
from tidemill.log.batch import iter_headers, parse_header
from tidemill.log.compaction import compact
from tidemill.log.maintenance import replay_producers
from tidemill.log.partition import AppendInfo, PartitionLog
from tidemill.log.producers import ProducerStates
from tidemill.log.records import NewRecord, encode_batch
from tidemill.log.retention import delete_old_segments
from tidemill.log.transactions import (
    Marker,
    OpenTransaction,
    UnstableTransactions,
    decode_marker,
    encode_marker,
)

INDEX = f"/data/{TP}/{0:020d}.txnindex"


class Setup:
    """A partition on a file system that fails on demand."""

    def __init__(self, configs: Mapping[str, str] | None = None) -> None:
        self.fs = FaultyFileSystem()
        self.clock = ManualClock()
        self.configs = dict(configs or {})
        self.open()
        self.log.flush()

    def open(self) -> None:
        self.store = open_store("/data", self.clock, self.fs)
        self.log: PartitionLog = open_log(self.store, self.configs)

    def batch(
        self, producer: int, sequence: int = 0, *, epoch: int = 0, transactional: bool = True
    ) -> bytearray:
        return encode_batch(
            [NewRecord(b"k", b"v")],
            timestamp_ms=self.clock.now_ms(),
            producer_id=producer,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=transactional,
        )

    def write(self, producer: int, sequence: int = 0, *, epoch: int = 0) -> AppendInfo:
        batch = self.batch(producer, sequence, epoch=epoch)
        return self.log.append(batch, now_ms=self.clock.now_ms())

    def end(
        self, producer: int, *, commit: bool, epoch: int = 0, coordinator: int = 0
    ) -> AppendInfo | None:
        marker = Marker(producer, epoch, commit, coordinator)
        return self.log.append_marker(marker, now_ms=self.clock.now_ms())


@pytest.fixture
def setup() -> Setup:
    return Setup()


# --- what is stable ------------------------------------------------------------------------------


def test_an_ended_transaction_holds_the_stable_offset_until_its_marker_is_synced(
    setup: Setup,
) -> None:
    setup.write(1)
    setup.log.flush()
    assert setup.log.last_stable_offset == 0
    setup.end(1, commit=True)
    assert (setup.log.last_stable_offset, setup.log.open_transactions()) == (0, [])
    setup.log.flush()
    assert setup.log.last_stable_offset == 2


def test_the_oldest_of_many_open_transactions_is_found_at_once() -> None:
    unstable = UnstableTransactions()
    for producer in range(10_000):
        unstable.begin(producer, producer)
    for producer in reversed(range(1, 10_000)):
        unstable.end(producer, 20_000 - producer)
        unstable.settle(30_000)
        assert unstable.first_offset() == 0
    unstable.end(0, 20_000)
    unstable.settle(20_000)
    assert unstable.first_offset() == 0
    unstable.settle(20_001)
    assert unstable.first_offset() == -1


def test_deleted_records_of_an_open_transaction_do_not_hold_the_stable_offset_below_the_start(
    setup: Setup,
) -> None:
    setup.write(1)
    setup.write(2)
    setup.log.flush()
    setup.log.delete_records_before(1)
    assert setup.log.last_stable_offset == 1
    setup.end(1, commit=False)
    setup.end(2, commit=True)
    setup.log.flush()
    assert setup.log.last_stable_offset == setup.log.high_watermark == 4


def test_retention_stops_at_the_last_stable_offset() -> None:
    setup = Setup({"retention.ms": "1000", "internal.segment.bytes": "200"})
    write(setup.log, [(b"k", b"v" * 100)], setup.clock.now_ms())
    setup.write(1)
    for _ in range(4):
        write(setup.log, [(b"k", b"v" * 100)], setup.clock.now_ms())
    setup.clock.advance(100_000)
    delete_old_segments(setup.log, setup.clock.now_ms())
    assert setup.log.log_start_offset <= 1
    setup.end(1, commit=True)
    setup.log.flush()
    setup.clock.advance(100_000)
    delete_old_segments(setup.log, setup.clock.now_ms())
    assert setup.log.log_start_offset == setup.log.log_end_offset


# --- what may be appended ------------------------------------------------------------------------


def test_a_producer_with_an_open_transaction_can_not_write_outside_of_it(setup: Setup) -> None:
    setup.write(1)
    with pytest.raises(InvalidTxnStateError):
        setup.log.append(setup.batch(1, 1, transactional=False), now_ms=setup.clock.now_ms())
    setup.end(1, commit=True)
    setup.log.append(setup.batch(1, 1, transactional=False), now_ms=setup.clock.now_ms())


def test_a_transactional_batch_needs_a_producer(setup: Setup) -> None:
    batch = encode_batch([NewRecord(b"k", b"v")], timestamp_ms=0, transactional=True)
    with pytest.raises(InvalidRecordError, match="producer id"):
        setup.log.append(batch, now_ms=setup.clock.now_ms())


def test_a_repeated_batch_opens_no_transaction(setup: Setup) -> None:
    first = setup.write(1)
    setup.end(1, commit=True)
    again = setup.write(1)
    assert (again.duplicate, again.first_offset) == (True, first.first_offset)
    assert setup.log.open_transactions() == []


def test_a_batch_that_the_broker_built_needs_no_sequence(setup: Setup) -> None:
    batch = setup.batch(1, -1)
    setup.log.append(batch, now_ms=0, from_client=False)
    assert setup.log.open_transactions() == [OpenTransaction(1, 0, 0)]
    assert setup.log.last_offset_of(1) == 0
    setup.end(1, commit=True, epoch=3)
    with pytest.raises(InvalidProducerEpochError):
        setup.log.append(setup.batch(1, -1), now_ms=0, from_client=False)


def test_a_marker_without_a_transaction_is_not_appended(setup: Setup) -> None:
    assert setup.end(1, commit=True) is None
    setup.write(1)
    assert setup.end(1, commit=True) is not None
    assert setup.end(1, commit=True) is None
    assert setup.end(2, commit=False) is None
    assert setup.log.log_end_offset == 2


def test_a_marker_with_an_older_epoch_is_refused(setup: Setup) -> None:
    setup.write(1, epoch=4)
    with pytest.raises(InvalidProducerEpochError):
        setup.end(1, commit=True, epoch=3)
    assert setup.log.open_transactions() == [OpenTransaction(1, 4, 0)]


def test_a_marker_of_an_older_coordinator_is_refused(setup: Setup) -> None:
    setup.write(1)
    setup.end(1, commit=True, coordinator=2)
    setup.write(1, 1)
    with pytest.raises(TransactionCoordinatorFencedError):
        setup.end(1, commit=True, coordinator=1)


def test_a_marker_with_a_newer_epoch_fences_and_begins_at_sequence_zero(setup: Setup) -> None:
    setup.write(1)
    setup.end(1, commit=True, epoch=1)
    with pytest.raises(InvalidProducerEpochError):
        setup.write(1, 1, epoch=0)
    with pytest.raises(OutOfOrderSequenceError):
        setup.write(1, 1, epoch=1)
    assert not setup.write(1, 0, epoch=1).duplicate


def test_log_append_time_and_compression_leave_a_transaction_one() -> None:
    setup = Setup({"message.timestamp.type": "LogAppendTime", "compression.type": "zstd"})
    setup.write(1)
    setup.end(1, commit=True)
    setup.log.flush()
    (_, data), (position, marker) = list(iter_headers(read_bytes(setup.log)))
    assert (data.is_transactional, data.is_log_append_time, data.codec) == (True, True, 4)
    assert (marker.is_control, marker.is_log_append_time, marker.codec) == (True, True, 0)
    assert decode_marker(read_bytes(setup.log), position) == Marker(1, 0, True)


# --- markers and the index on the wire -----------------------------------------------------------


def test_bytes_of_a_marker() -> None:
    batch = encode_marker(Marker(5, 3, True, 7), timestamp_ms=1)
    header = parse_header(batch)
    assert (header.is_control, header.is_transactional, header.base_sequence) == (True, True, -1)
    assert batch[61:] == bytes.fromhex("20000000080000 00010c000000000007 00")


def test_bytes_of_an_index_entry() -> None:
    data = encode_aborted([AbortedTransaction(1, 2, 3, 4)])
    assert data.hex() == "0000" + "".join(f"{number:016x}" for number in (1, 2, 3, 4))
    assert decode_aborted(data) == [AbortedTransaction(1, 2, 3, 4)]


@pytest.mark.parametrize("tail", [bytes(ENTRY_SIZE), b"\x00\x01" + bytes(32), b"\x00"])
def test_an_index_with_a_torn_end_is_told(tail: bytes) -> None:
    good = AbortedTransaction(1, 2, 3, 4)
    data = encode_aborted([good]) + tail
    assert decode_aborted(data, whole=False) == [good]
    with pytest.raises(ValueError, match="entr"):
        decode_aborted(data)
    with pytest.raises(ValueError, match="entr"):
        decode_aborted(tail)  # zeros are no entry, not even of offset 0


def test_an_empty_batch_that_compaction_left_opens_no_transaction() -> None:
    header = parse_header(Setup().batch(1))._replace(record_count=0)
    states = ProducerStates()
    states.update(header, 0, 0)
    assert states.open_transactions() == []
    assert states.get(1) is not None


# --- aborted ones, and what is left of them after a stop -----------------------------------------


def abort(setup: Setup, producer: int = 1) -> list[tuple[int, int]]:
    """Abort a transaction, durably; what must be told of it."""
    first = setup.write(producer).first_offset
    setup.end(producer, commit=False)
    setup.log.flush()
    return [(producer, first)]


class WorstLuck(random.Random):
    """Of what was not synced, nothing is kept."""

    def randint(self, a: int, b: int) -> int:
        return a

    def random(self) -> float:
        return 0.0


def told(setup: Setup) -> list[tuple[int, int]]:
    return setup.log.aborted_transactions(0, setup.log.last_stable_offset)


@pytest.mark.parametrize("seed", range(20))
def test_power_cut_behind_the_recovery_point_keeps_the_index(setup: Setup, seed: int) -> None:
    wanted = abort(setup)
    wanted += abort(setup, 2)
    setup.store.checkpoint()
    setup.store.checkpoint()
    assert setup.log.recovery_point == setup.log.log_end_offset
    setup.fs.power_cut(random.Random(seed))
    setup.open()
    assert told(setup) == wanted
    # A snapshot may be torn, for its CRC tells; the index has none, and must never be.
    assert all("snapshot" in report.what for report in setup.store.reports)


@pytest.mark.parametrize("rng", [WorstLuck(), *map(random.Random, range(10))])
def test_power_cut_keeps_the_index_where_recovery_reads_the_log_no_more(
    setup: Setup, rng: random.Random
) -> None:
    """The roll's snapshot is synced, so that nothing below it is read again."""
    wanted = abort(setup)
    setup.log.roll(setup.clock.now_ms())
    write(setup.log, [(b"k", b"v")], setup.clock.now_ms())
    setup.store.checkpoint()
    assert setup.log.recovery_point >= 2
    setup.fs.power_cut(rng)
    setup.open()
    assert told(setup) == wanted


def test_a_synced_marker_has_its_index_entry_on_the_disk(setup: Setup) -> None:
    for producer in (1, 2):
        abort(setup, producer)
        folder = setup.fs._folder(f"/data/{TP}")
        name = INDEX.rpartition("/")[2]
        assert folder.durable[name] is setup.fs._file(INDEX)
        assert len(setup.fs._file(INDEX).durable) == producer * ENTRY_SIZE


@pytest.mark.parametrize("seed", range(10))
def test_power_cut_before_the_recovery_point_tells_them_from_the_log(
    setup: Setup, seed: int
) -> None:
    wanted = abort(setup)
    setup.fs.power_cut(random.Random(seed))
    setup.open()
    assert told(setup) == wanted


def test_an_index_entry_whose_marker_found_no_room_is_never_believed(setup: Setup) -> None:
    setup.write(1)
    setup.log.flush()
    setup.fs.capacity = setup.fs.used() + ENTRY_SIZE + 5
    with pytest.raises(DiskFullError):
        setup.end(1, commit=False)
    setup.fs.heal()
    assert bytes(setup.fs.content(INDEX)) == b""
    setup.end(1, commit=True)
    setup.log.flush()
    assert told(setup) == []


@pytest.mark.parametrize("clean", [True, False])
def test_what_is_open_survives_a_stop(setup: Setup, clean: bool) -> None:
    setup.write(1, epoch=2)
    setup.log.flush()
    if clean:
        setup.store.close()
    else:
        setup.fs.kill()
    setup.open()
    assert setup.log.has_open_transactions
    assert setup.log.open_transactions() == [OpenTransaction(1, 2, 0)]
    assert setup.log.last_stable_offset == 0


def test_producers_without_open_transactions_are_not_read_at_a_clean_start(setup: Setup) -> None:
    abort(setup)
    setup.store.close()
    setup.fs.remove(f"/data/{TP}/{2:020d}.snapshot")
    setup.fs.write_bytes(f"/data/{TP}/{2:020d}.snapshot", b"damaged")
    setup.open()
    assert not setup.log.has_open_transactions
    assert setup.log.last_stable_offset == 2
    assert setup.store.reports == []  # the damage was not met


@pytest.mark.parametrize("damage", ["lost", "cut"])
def test_a_damaged_index_is_rebuilt_at_a_clean_start(setup: Setup, damage: str) -> None:
    wanted = abort(setup)
    setup.store.close()
    if damage == "lost":
        setup.fs.remove(INDEX)
    else:
        del setup.fs.content(INDEX)[-1]
    setup.open()
    assert told(setup) == wanted
    assert "rebuilt" in str(setup.store.reports[0])


def test_a_damaged_index_of_a_closed_segment_is_rebuilt_in_recovery(setup: Setup) -> None:
    wanted = abort(setup)
    setup.log.roll(setup.clock.now_ms())
    write(setup.log, [(b"k", b"v")], setup.clock.now_ms())
    setup.store.checkpoint()
    setup.store.checkpoint()
    setup.fs.content(INDEX)[:] = bytes(ENTRY_SIZE)
    setup.fs.kill()
    setup.open()
    assert told(setup) == wanted
    assert "rebuilt" in str(setup.store.reports[0])


def test_a_segment_that_goes_takes_its_index_with_it() -> None:
    setup = Setup({"file.delete.delay.ms": "0"})
    abort(setup)
    assert setup.log.has_aborted_transactions
    setup.log.roll(setup.clock.now_ms())
    setup.log.delete_records_before(2)
    assert not setup.log.has_aborted_transactions
    assert told(setup) == []
    setup.store.purge_deleted()
    assert not [name for name in setup.fs.files(f"/data/{TP}") if "txnindex" in name]


def test_transactions_are_found_across_segments(setup: Setup) -> None:
    setup.write(1)
    setup.log.roll(0)
    setup.write(2)
    setup.end(2, commit=False)
    setup.log.roll(0)
    setup.end(1, commit=False)
    setup.log.flush()
    log = setup.log
    assert log.aborted_transactions(0, 4) == [(1, 0), (2, 1)]
    assert log.aborted_transactions(0, 1) == [(1, 0)]
    assert log.aborted_transactions(3, 4) == [(1, 0)]
    assert log.aborted_transactions(4, 4) == []


# --- compaction ----------------------------------------------------------------------------------


def _compacted() -> Setup:
    return Setup({"cleanup.policy": "compact", "delete.retention.ms": "1000"})


def _compact(setup: Setup) -> None:
    """Compact all that is there; the dirty part must not be empty."""
    setup.log.roll(setup.clock.now_ms())
    setup.log.flush()
    for _ in compact(setup.log, setup.clock.now_ms()):
        pass
    write(setup.log, [(b"other", b"v")], setup.clock.now_ms())


def _offsets(setup: Setup) -> list[tuple[int, bool, int]]:
    """Of what is stored of producer 1: readers pass over batches that were emptied."""
    return [
        (each.base_offset, each.is_control, each.record_count)
        for segment in setup.log.segments
        for _, each in segment.batches()
        if each.producer_id == 1
    ]


def test_a_marker_stays_while_its_records_do() -> None:
    setup = _compacted()
    setup.write(1)
    setup.end(1, commit=True)
    for _ in range(4):
        _compact(setup)
        setup.clock.advance(5000)
        assert _offsets(setup) == [(0, False, 1), (1, True, 1)]
    states = ProducerStates()
    for segment in setup.log.segments:
        replay_producers(states, segment, 0)
    assert states.open_transactions() == []


def test_aborted_records_go_at_once_and_their_marker_after_the_retention_time() -> None:
    setup = _compacted()
    setup.write(1)
    setup.end(1, commit=False, epoch=1)
    setup.write(1, epoch=1)  # so that neither batch tells the producer's state
    setup.end(1, commit=True, epoch=1)
    _compact(setup)
    assert _offsets(setup)[:1] == [(1, True, 1)]
    assert not setup.log.has_aborted_transactions
    _compact(setup)  # its time runs from here
    setup.clock.advance(999)
    _compact(setup)
    assert _offsets(setup)[:1] == [(1, True, 1)]
    setup.clock.advance(1)
    _compact(setup)
    assert _offsets(setup)[:1] == [(2, False, 1)]


def _write_without_sequence(setup: Setup) -> None:
    """As the broker itself writes for a producer: offsets of a group."""
    batch = encode_batch(
        [NewRecord(b"k", b"v")],
        timestamp_ms=setup.clock.now_ms(),
        producer_id=1,
        producer_epoch=3,
        transactional=True,
    )
    setup.log.append(batch, now_ms=setup.clock.now_ms(), from_client=False)


def _commit_without_sequences(setup: Setup) -> int:
    """One such transaction, of the same epoch each time as with the older protocol; the offset of
    its marker."""
    _write_without_sequence(setup)
    info = setup.end(1, commit=True, epoch=3)
    assert info is not None
    setup.log.flush()
    return info.first_offset


def _compact_for_days(setup: Setup) -> None:
    for _ in range(3):
        _compact(setup)
        setup.clock.advance(5000)
        _compact(setup)


def test_of_the_markers_that_only_tell_an_epoch_the_last_one_stays() -> None:
    setup = _compacted()
    for _ in range(20):
        last = _commit_without_sequences(setup)
    _compact_for_days(setup)
    assert _offsets(setup) == [(last - 1, False, 1), (last, True, 1)]
    for _ in range(20):
        last = _commit_without_sequences(setup)
    write(setup.log, [(b"k", b"another's")], setup.clock.now_ms())
    _compact_for_days(setup)
    assert _offsets(setup) == [(last, True, 0)]
    assert setup.log.producers.get(1) is not None


@pytest.mark.parametrize("sure", [True, False], ids=["a snapshot", "no snapshot"])
def test_the_epoch_of_a_producer_without_sequences_outlives_compaction_and_a_crash(
    sure: bool,
) -> None:
    setup = _compacted()
    for _ in range(20):
        last = _commit_without_sequences(setup)
    write(setup.log, [(b"k", b"another's")], setup.clock.now_ms())
    _compact_for_days(setup)
    if sure:
        setup.store.checkpoint()
        setup.store.checkpoint()
    else:
        for name in setup.fs.files(setup.log.folder):
            if name.endswith(".snapshot"):
                setup.fs.remove(f"{setup.log.folder}/{name}")
    setup.fs.kill()
    setup.open()
    with pytest.raises(InvalidProducerEpochError):
        setup.write(1, epoch=2)
    _compact_for_days(setup)  # what a snapshot does not say is not guessed
    assert _offsets(setup) == [(last, True, 0)]
    setup.log.roll(setup.clock.now_ms())


def test_a_marker_that_is_not_synced_is_not_all_that_tells_of_a_producer() -> None:
    setup = _compacted()
    _commit_without_sequences(setup)
    write(setup.log, [(b"k", b"another's")], setup.clock.now_ms())
    _compact(setup)
    _compact(setup)  # its time runs from here
    setup.clock.advance(5000)
    setup.log.roll(setup.clock.now_ms())
    _write_without_sequence(setup)
    setup.log.roll(setup.clock.now_ms())
    setup.log.flush()
    setup.end(1, commit=True, epoch=3)
    for _ in compact(setup.log, setup.clock.now_ms()):
        pass
    assert _offsets(setup)[0] == (1, True, 0)


def test_what_is_not_stable_is_not_compacted() -> None:
    setup = _compacted()
    write(setup.log, [(b"k", b"old")], 0)
    setup.write(1)
    write(setup.log, [(b"k", b"new")], 0)
    _compact(setup)
    assert [header.base_offset for _, header in iter_headers(read_bytes(setup.log))][:3] == [
        0,
        1,
        2,
    ]


def test_the_partition_is_created_without_any_of_it() -> None:
    log = Setup().log
    assert (log.topic_id, log.has_aborted_transactions) == (UUID(int=1), False)
    assert (log.open_transactions(), log.last_offset_of(1)) == ([], -1)
