"""Idempotent producers: accepted batches, duplicates, and snapshots."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.log.partition.one_partition import batch_from
from tidemill.errors import TidemillError
from tidemill.log.errors import (
    DuplicateSequenceError,
    InvalidProducerEpochError,
    InvalidRecordError,
    OutOfOrderSequenceError,
)
from tidemill.log.format.batch import BatchHeader, parse_header
from tidemill.log.partition.producers import WINDOW, ProducerStates

LAST = (1 << 31) - 1
WRAPPING = [(LAST - 3 + 2 * number) % (1 << 31) for number in range(8)]
"""The sequences of batches with two records."""


def _header(sequence: int, count: int = 1, **identity: int) -> BatchHeader:
    return parse_header(batch_from(sequence, count, **identity))


def _states(*sequences: int, count: int = 1, epoch: int = 0) -> ProducerStates:
    """Return what is known of a producer with these batches. The first one has the offset 100."""
    states = ProducerStates()
    for number, sequence in enumerate(sequences):
        header = _header(sequence, count, epoch=epoch)
        assert states.check(header) is None
        states.update(header, 100 + number * count, now_ms=1000)
    return states


@pytest.mark.parametrize(
    ("written", "count", "sent", "offset"),
    [
        pytest.param((), 1, (0, 1), None, id="the first of a producer"),
        pytest.param((), 1, (17, 1), None, id="any sequence of an unknown producer"),
        pytest.param((0, 1, 2), 1, (3, 1), None, id="the next one"),
        *(
            pytest.param(range(0, 21, 3), 3, (18 - 3 * back, 3), 118 - 3 * back, id=f"{back} back")
            for back in range(WINDOW)
        ),
        pytest.param((LAST - 1,), 2, (0, 1), None, id="the next one wraps"),
        pytest.param((LAST - 1, 0), 2, (LAST - 1, 2), 100, id="a repetition from before the wrap"),
        pytest.param((LAST,), 3, (2, 1), None, id="the next one behind one that wraps"),
        pytest.param((LAST,), 3, (LAST, 3), 100, id="a repetition of one that wraps"),
    ],
)
def test_the_next_batch_is_accepted_and_one_of_the_last_five_is_recognised(
    written: Sequence[int], count: int, sent: tuple[int, int], offset: int | None
) -> None:
    assert _states(*written, count=count).check(_header(*sent)) == offset


@pytest.mark.parametrize(
    ("written", "count", "sent", "error"),
    [
        pytest.param((0, 1, 2), 1, (5, 1), OutOfOrderSequenceError, id="a gap"),
        pytest.param((0, 3), 3, (4, 3), OutOfOrderSequenceError, id="overlaps the last"),
        pytest.param((0, 3), 3, (3, 2), OutOfOrderSequenceError, id="repeated with another count"),
        pytest.param(range(1, 9), 1, (0, 2), OutOfOrderSequenceError, id="begins before the first"),
        pytest.param(range(1, 8), 1, (0, 1), OutOfOrderSequenceError, id="was never written"),
        pytest.param(range(1, 8), 1, (1, 1), DuplicateSequenceError, id="before the window"),
        pytest.param(WRAPPING, 2, (LAST - 3, 2), DuplicateSequenceError, id="before the wrap"),
        pytest.param(WRAPPING, 2, (LAST - 5, 2), OutOfOrderSequenceError, id="before the first"),
    ],
)
def test_a_batch_that_is_neither_the_next_one_nor_a_repetition_is_refused(
    written: Sequence[int], count: int, sent: tuple[int, int], error: type[TidemillError]
) -> None:
    with pytest.raises(error, match=f"sequence {sent[0]}\\b"):
        _states(*written, count=count).check(_header(*sent))


def test_an_unknown_producer_with_an_epoch_for_each_transaction_starts_at_zero() -> None:
    assert ProducerStates().check(_header(0), from_zero=True) is None
    with pytest.raises(OutOfOrderSequenceError, match="sequence 17, not 0"):
        ProducerStates().check(_header(17), from_zero=True)
    assert _states(0, 1).check(_header(2), from_zero=True) is None


def test_a_batch_of_an_earlier_epoch_is_not_a_duplicate() -> None:
    states = _states(*range(20), epoch=5)
    for sequence in range(3):
        states.update(_header(sequence, epoch=6), 300 + sequence, 0)
    with pytest.raises(OutOfOrderSequenceError):
        states.check(_header(10, epoch=6))


def test_only_sequences_after_a_gap_count_as_written() -> None:
    """The log can have a gap: an expired producer can start again with any sequence."""
    states = ProducerStates()
    for sequence in (0, 1, 2, *range(10, 17)):
        states.update(_header(sequence), sequence, 0)
    for sequence in (2, 5, 9):
        with pytest.raises(OutOfOrderSequenceError):
            states.check(_header(sequence))
    with pytest.raises(DuplicateSequenceError):
        states.check(_header(10))


def test_a_snapshot_has_only_the_batches_of_its_window() -> None:
    again = ProducerStates.decode(_states(*range(9)).encode())
    with pytest.raises(OutOfOrderSequenceError):
        again.check(_header(3))
    again.update(_header(9), 109, 0)
    with pytest.raises(DuplicateSequenceError):
        again.check(_header(4))


def test_an_older_epoch_is_fenced() -> None:
    with pytest.raises(InvalidProducerEpochError):
        _states(0, epoch=5).check(_header(1, epoch=4))


def test_a_newer_epoch_starts_at_zero() -> None:
    states = _states(0, 1, epoch=5)
    with pytest.raises(OutOfOrderSequenceError):
        states.check(_header(2, epoch=6))
    header = _header(0, epoch=6)
    assert states.check(header) is None
    states.update(header, 200, 0)
    with pytest.raises(InvalidProducerEpochError):
        states.check(_header(2, epoch=5))


@pytest.mark.parametrize(("sequence", "epoch"), [(-1, 0), (0, -1)])
def test_a_producer_needs_epoch_and_sequence(sequence: int, epoch: int) -> None:
    with pytest.raises(InvalidRecordError):
        ProducerStates().check(_header(sequence, epoch=epoch))


def test_a_snapshot_keeps_the_whole_window() -> None:
    states = _states(0, 3, 6, 9, 12, 15, count=3)
    states.update(_header(4, producer=9, epoch=2), 700, 2000)
    again = ProducerStates.decode(states.encode())
    assert again.encode() == states.encode()
    for back in range(WINDOW):
        sequence = 15 - 3 * back
        assert again.check(_header(sequence, 3)) == 100 + sequence
    assert again.check(_header(5, producer=9, epoch=2)) is None


def test_kafka_layout_of_an_empty_snapshot() -> None:
    data = ProducerStates().encode()
    assert data[:2] == b"\x00\x01"
    assert data[6:] == b"\x00\x00\x00\x00"


@pytest.mark.parametrize("damage", ["cut", "flipped", "version", "empty"])
def test_a_damaged_snapshot_is_refused(damage: str) -> None:
    data = bytearray(_states(0, 1).encode())
    if damage == "cut":
        del data[-1]
    elif damage == "flipped":
        data[20] ^= 1
    elif damage == "version":
        data[1] = 9
    else:
        data.clear()
    with pytest.raises(ValueError, match="snapshot"):
        ProducerStates.decode(bytes(data))


def test_inactive_producers_expire() -> None:
    states = _states(0)
    states.update(_header(0, producer=2), 1, now_ms=5000)
    assert states.expire(6000, expiry_ms=5000) == 1
    assert states.get(1) is None
    assert states.get(2) is not None
