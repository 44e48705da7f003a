"""The order of a producer's batches after one of them was refused with a retriable error."""

from __future__ import annotations

import pytest

from tests.log.partition.one_partition import NOW, OnePartition, batch_from
from tidemill.errors import TidemillError
from tidemill.log.errors import (
    BatchTooLargeError,
    CorruptBatchError,
    CorruptLogError,
    DiskFullError,
    InvalidRecordError,
    InvalidTxnStateError,
    OutOfOrderSequenceError,
    StorageError,
)
from tidemill.log.format.batch import BatchHeader, parse_header
from tidemill.log.partition.refused import KEPT_MS, MAX_PRODUCERS, RefusedBatches
from tidemill.state.errors import (
    ConcurrentTransactionsError,
    CoordinatorLoadingError,
    CoordinatorNotAvailableError,
)

LAST = (1 << 31) - 1
FULL = DiskFullError("no space left")
RETRIABLE = (
    DiskFullError,
    StorageError,
    ConcurrentTransactionsError,
    CoordinatorNotAvailableError,
    CoordinatorLoadingError,
    CorruptBatchError,
)


def _header(sequence: int, **identity: int) -> BatchHeader:
    return parse_header(batch_from(sequence, **identity))


def _refused(sequence: int = 0, error: TidemillError = FULL, *, epoch: int = 0) -> RefusedBatches:
    refused = RefusedBatches()
    refused.remember(_header(sequence, epoch=epoch), error, 0)
    return refused


@pytest.mark.parametrize("kind", RETRIABLE)
def test_later_batches_are_refused_with_the_same_type(kind: type[TidemillError]) -> None:
    refused = _refused(3, kind("why", hint="do this"))
    for sequence in (4, 8):
        with pytest.raises(
            kind, match=f"sent sequence {sequence}, but sequence 3 was refused.*why"
        ) as got:
            refused.check(_header(sequence))
        assert type(got.value) is kind
    refused.check(_header(3))
    refused.check(_header(2))


def test_special_storage_errors_are_raised_as_storage_error() -> None:
    refused = _refused(0, CorruptLogError("bad", path="f", position=0))
    with pytest.raises(StorageError, match="bad"):
        refused.check(_header(1))


@pytest.mark.parametrize(
    "kind", [InvalidRecordError, BatchTooLargeError, InvalidTxnStateError, OutOfOrderSequenceError]
)
def test_a_permanent_refusal_does_not_block_later_batches(kind: type[TidemillError]) -> None:
    assert not _refused(0, kind("never"))


def test_the_lowest_sequence_counts() -> None:
    refused = _refused(3)
    refused.remember(_header(5), FULL, 0)
    refused.remember(_header(1), ConcurrentTransactionsError("wait"), 0)
    refused.check(_header(1))
    with pytest.raises(ConcurrentTransactionsError):
        refused.check(_header(2))


def test_producers_and_epochs_are_kept_apart() -> None:
    refused = _refused(3, epoch=2)
    refused.check(_header(9, epoch=2, producer=8))
    refused.check(_header(9, epoch=1))
    refused.check(_header(9, epoch=3))
    refused.remember(_header(0, epoch=1), FULL, 0)  # late, and of no interest any more
    with pytest.raises(DiskFullError):
        refused.check(_header(4, epoch=2))
    refused.remember(_header(5, epoch=3), FULL, 0)
    refused.check(_header(4, epoch=2))
    with pytest.raises(DiskFullError):
        refused.check(_header(6, epoch=3))


def test_sequences_wrap() -> None:
    refused = _refused(LAST)
    with pytest.raises(DiskFullError):
        refused.check(_header(0))
    refused.check(_header(LAST - 1))


def test_batches_without_a_producer_are_not_remembered() -> None:
    refused = RefusedBatches()
    for header in (_header(0, producer=-1), _header(-1)):
        refused.remember(header, FULL, 0)
    assert not refused


def test_a_refusal_expires_unless_it_is_repeated() -> None:
    refused = _refused()
    refused.expire(KEPT_MS - 1)
    refused.remember(_header(1), FULL, KEPT_MS - 1)  # one behind it counts for nothing
    refused.expire(KEPT_MS)
    assert not refused
    refused = _refused()
    refused.remember(_header(0), FULL, KEPT_MS - 1)
    refused.expire(KEPT_MS)
    assert len(refused) == 1


def test_the_oldest_refusals_are_dropped_at_the_limit() -> None:
    refused = RefusedBatches()
    for producer in range(MAX_PRODUCERS):
        refused.remember(_header(0, producer=producer), FULL, 0)
    refused.remember(_header(0, producer=0), FULL, 1)
    refused.remember(_header(0, producer=MAX_PRODUCERS), FULL, 1)
    assert len(refused) == MAX_PRODUCERS
    refused.check(_header(1, producer=1))
    with pytest.raises(DiskFullError):
        refused.check(_header(1, producer=0))


# --- in a partition ------------------------------------------------------------------------------


def test_a_partition_accepts_the_refused_batch_first(partition: OnePartition) -> None:
    log = partition.log()
    log.remember_refusal(batch_from(0), CoordinatorNotAvailableError("busy"), NOW)
    for sequence in (1, 2):
        with pytest.raises(CoordinatorNotAvailableError):
            log.append(batch_from(sequence), now_ms=NOW)
    for sequence in range(3):
        assert log.append(batch_from(sequence), now_ms=NOW).first_offset == sequence
    assert not log.refused


def test_a_known_producer_is_checked_by_its_sequences(partition: OnePartition) -> None:
    log = partition.log()
    log.append(batch_from(0), now_ms=NOW)
    log.remember_refusal(batch_from(1), FULL, NOW)
    with pytest.raises(OutOfOrderSequenceError):
        log.append(batch_from(2), now_ms=NOW)
    for sequence in (1, 2):
        log.append(batch_from(sequence), now_ms=NOW)


def test_refusals_expire_with_inactive_producers(partition: OnePartition) -> None:
    log = partition.log()
    log.remember_refusal(batch_from(0), FULL, NOW)
    log.expire_producers(NOW + KEPT_MS, 1 << 40)
    log.append(batch_from(1), now_ms=NOW)


def test_incomplete_batches_are_not_remembered(partition: OnePartition) -> None:
    log = partition.log()
    log.remember_refusal(bytes(batch_from(0))[:60], FULL, NOW)
    assert not log.refused
