"""Transactions in one partition: the last stable offset, aborted transactions, and crashes."""

from __future__ import annotations

import random
from uuid import UUID

import pytest

from tests.support.faultyfs import Unlucky
from tests.support.logs import TP, advance, read_bytes, write
from tests.support.transactional_log import TxnLog
from tidemill.log.disk.aborted_index import ENTRY_SIZE
from tidemill.log.errors import (
    DiskFullError,
    InvalidProducerEpochError,
    InvalidTxnStateError,
    OutOfOrderSequenceError,
    TransactionCoordinatorFencedError,
)
from tidemill.log.format.batch import iter_headers, parse_header
from tidemill.log.format.markers import Marker, decode_marker
from tidemill.log.partition.append import Appender
from tidemill.log.partition.producers import ProducerStates
from tidemill.log.partition.transactions import OpenTransaction, UnstableTransactions

INDEX = f"/data/{TP}/{0:020d}.txnindex"


@pytest.fixture
def setup() -> TxnLog:
    return TxnLog()


# --- the last stable offset ----------------------------------------------------------------------


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


def test_retention_stops_at_the_last_stable_offset() -> None:
    setup = TxnLog({"retention.ms": "1000", "internal.segment.bytes": "200"})
    write(setup.log, [(b"k", b"v" * 100)], setup.clock.now_ms())
    setup.write(1)
    for _ in range(4):
        write(setup.log, [(b"k", b"v" * 100)], setup.clock.now_ms())
    setup.clock.advance(100_000)
    setup.log.delete_old_segments(setup.clock.now_ms())
    assert setup.log.log_start_offset <= 1
    setup.end(1, commit=True)
    setup.log.flush()
    setup.clock.advance(100_000)
    setup.log.delete_old_segments(setup.clock.now_ms())
    assert setup.log.log_start_offset == setup.log.log_end_offset


# --- appending -----------------------------------------------------------------------------------


def test_a_producer_with_an_open_transaction_can_not_write_outside_of_it(setup: TxnLog) -> None:
    setup.write(1)
    with pytest.raises(InvalidTxnStateError):
        setup.log.append(setup.batch(1, 1, transactional=False), now_ms=setup.clock.now_ms())
    setup.end(1, commit=True)
    setup.log.append(setup.batch(1, 1, transactional=False), now_ms=setup.clock.now_ms())


def test_a_batch_that_the_broker_built_needs_no_sequence(setup: TxnLog) -> None:
    batch = setup.batch(1, -1)
    setup.log.append(batch, now_ms=0, from_client=False)
    assert setup.log.open_transactions() == [OpenTransaction(1, 0, 0)]
    assert setup.log.last_offset_of(1) == 0
    setup.end(1, commit=True, epoch=3)
    with pytest.raises(InvalidProducerEpochError):
        setup.log.append(setup.batch(1, -1), now_ms=0, from_client=False)


def test_a_marker_with_an_older_epoch_is_refused(setup: TxnLog) -> None:
    setup.write(1, epoch=4)
    with pytest.raises(InvalidProducerEpochError):
        setup.end(1, commit=True, epoch=3)
    assert setup.log.open_transactions() == [OpenTransaction(1, 4, 0)]


def test_a_marker_of_an_older_coordinator_is_refused(setup: TxnLog) -> None:
    setup.write(1)
    setup.end(1, commit=True, coordinator=2)
    setup.write(1, 1)
    with pytest.raises(TransactionCoordinatorFencedError):
        setup.end(1, commit=True, coordinator=1)


def test_a_marker_with_a_newer_epoch_fences_and_begins_at_sequence_zero(setup: TxnLog) -> None:
    setup.write(1)
    setup.end(1, commit=True, epoch=1)
    with pytest.raises(InvalidProducerEpochError):
        setup.write(1, 1, epoch=0)
    with pytest.raises(OutOfOrderSequenceError):
        setup.write(1, 1, epoch=1)
    assert not setup.write(1, 0, epoch=1).duplicate


def test_log_append_time_and_compression_keep_a_transaction() -> None:
    setup = TxnLog({"message.timestamp.type": "LogAppendTime", "compression.type": "zstd"})
    setup.write(1)
    setup.end(1, commit=True)
    setup.log.flush()
    (_, data), (position, marker) = list(iter_headers(read_bytes(setup.log)))
    assert (data.is_transactional, data.is_log_append_time, data.codec) == (True, True, 4)
    assert (marker.is_control, marker.is_log_append_time, marker.codec) == (True, True, 0)
    assert decode_marker(read_bytes(setup.log), position) == Marker(1, 0, True)


def test_an_empty_batch_that_compaction_left_opens_no_transaction() -> None:
    header = parse_header(TxnLog().batch(1))._replace(record_count=0)
    states = ProducerStates()
    states.update(header, 0, 0)
    assert states.open_transactions() == []
    assert states.get(1) is not None


# --- aborted transactions after a stop -----------------------------------------------------------


def abort(setup: TxnLog, producer: int = 1) -> list[tuple[int, int]]:
    """Abort a transaction durably; return the expected aborted transactions."""
    first = setup.write(producer).first_offset
    setup.end(producer, commit=False)
    setup.log.flush()
    return [(producer, first)]


def aborted(setup: TxnLog) -> list[tuple[int, int]]:
    return setup.log.aborted_transactions(0, setup.log.last_stable_offset)


@pytest.mark.parametrize("is_stored", [True, False], ids=["recovery point", "no recovery point"])
@pytest.mark.parametrize("seed", range(20))
def test_a_power_cut_keeps_the_index_or_the_log_that_it_is_read_from(
    setup: TxnLog, seed: int, is_stored: bool
) -> None:
    wanted = abort(setup)
    wanted += abort(setup, 2)
    if is_stored:
        advance(setup.store)
        assert setup.log.recovery_point == setup.log.log_end_offset
    setup.fs.power_cut(random.Random(seed))
    setup.open()
    assert aborted(setup) == wanted
    # A snapshot may be torn, for its CRC tells; the index has none, and must never be.
    assert all("snapshot" in report.what for report in setup.store.reports)


@pytest.mark.parametrize("rng", [Unlucky(), *map(random.Random, range(10))])
def test_power_cut_keeps_the_index_below_the_recovery_point(
    setup: TxnLog, rng: random.Random
) -> None:
    """The roll syncs its snapshot, so recovery reads nothing below it."""
    wanted = abort(setup)
    setup.log.roll(setup.clock.now_ms())
    write(setup.log, [(b"k", b"v")], setup.clock.now_ms())
    setup.store.checkpoint()
    assert setup.log.recovery_point >= 2
    setup.fs.power_cut(rng)
    setup.open()
    assert aborted(setup) == wanted


def put_without_memory(*_: object) -> None:
    raise MemoryError


@pytest.mark.parametrize("error", [MemoryError, DiskFullError])
def test_a_marker_that_is_not_written_leaves_no_index_entry(
    setup: TxnLog, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    setup.write(1)
    with monkeypatch.context() as patch:
        if error is MemoryError:
            patch.setattr(Appender, "_put", put_without_memory)
        else:
            setup.fs.capacity = setup.fs.used() + ENTRY_SIZE + 5
        with pytest.raises(error):
            setup.end(1, commit=False)
    setup.fs.clear_faults()
    assert bytes(setup.fs.content(INDEX)) == b""
    setup.end(1, commit=True)
    setup.log.flush()
    assert aborted(setup) == []


@pytest.mark.parametrize("clean", [True, False])
def test_open_transactions_survive_a_stop(setup: TxnLog, clean: bool) -> None:
    setup.write(1, epoch=2)
    setup.log.flush()
    setup.store.close() if clean else setup.fs.kill()
    setup.open()
    assert setup.log.has_open_transactions
    assert setup.log.open_transactions() == [OpenTransaction(1, 2, 0)]
    assert setup.log.last_stable_offset == 0


def test_producers_without_open_transactions_are_not_read_at_a_clean_start(setup: TxnLog) -> None:
    abort(setup)
    setup.store.close()
    setup.fs.remove(f"/data/{TP}/{2:020d}.snapshot")
    setup.fs.write_bytes(f"/data/{TP}/{2:020d}.snapshot", b"damaged")
    setup.open()
    assert not setup.log.has_open_transactions
    assert setup.log.last_stable_offset == 2
    assert setup.store.reports == []  # the damage was not met


@pytest.mark.parametrize("damage", ["lost", "cut"])
def test_a_damaged_index_is_rebuilt_at_a_clean_start(setup: TxnLog, damage: str) -> None:
    wanted = abort(setup)
    setup.store.close()
    if damage == "lost":
        setup.fs.remove(INDEX)
    else:
        del setup.fs.content(INDEX)[-1]
    setup.open()
    assert aborted(setup) == wanted
    assert "rebuilt" in str(setup.store.reports[0])


def test_a_damaged_index_of_a_closed_segment_is_rebuilt_in_recovery(setup: TxnLog) -> None:
    wanted = abort(setup)
    setup.log.roll(setup.clock.now_ms())
    write(setup.log, [(b"k", b"v")], setup.clock.now_ms())
    advance(setup.store)
    setup.fs.content(INDEX)[:] = bytes(ENTRY_SIZE)
    setup.fs.kill()
    setup.open()
    assert aborted(setup) == wanted
    assert "rebuilt" in str(setup.store.reports[0])


def test_a_removed_segment_takes_its_index_with_it() -> None:
    setup = TxnLog({"file.delete.delay.ms": "0"})
    abort(setup)
    assert setup.log.has_aborted_transactions
    setup.log.roll(setup.clock.now_ms())
    setup.log.delete_records_before(2)
    assert not setup.log.has_aborted_transactions
    assert aborted(setup) == []
    setup.store.purge_deleted()
    assert not [name for name in setup.fs.files(f"/data/{TP}") if "txnindex" in name]


def test_transactions_are_found_across_segments(setup: TxnLog) -> None:
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


def test_a_new_partition_has_no_transactions() -> None:
    log = TxnLog().log
    assert (log.topic_id, log.has_aborted_transactions) == (UUID(int=1), False)
    assert (log.open_transactions(), log.last_offset_of(1)) == ([], -1)
