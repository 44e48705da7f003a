"""Compaction of transactional records and their markers."""

from __future__ import annotations

import pytest

from tests.support.logs import advance, read_bytes, write
from tests.support.transactional_log import TxnLog
from tidemill.log.compaction.run import compact
from tidemill.log.errors import InvalidProducerEpochError
from tidemill.log.format.batch import iter_headers
from tidemill.log.partition.producers import ProducerStates
from tidemill.log.partition.snapshots import replay_segment
from tidemill.log.steps import run_steps


def _compacted() -> TxnLog:
    return TxnLog({"cleanup.policy": "compact", "delete.retention.ms": "1000"})


def _compact(setup: TxnLog) -> None:
    """Compact everything; the dirty part must not be empty."""
    setup.log.roll(setup.clock.now_ms())
    setup.log.flush()
    run_steps(compact(setup.log, setup.clock.now_ms()))
    write(setup.log, [(b"other", b"v")], setup.clock.now_ms())


def _offsets(setup: TxnLog) -> list[tuple[int, bool, int]]:
    """Return what is stored of producer 1, including empty batches, which readers skip."""
    return [
        (each.base_offset, each.is_control, each.record_count)
        for segment in setup.log.segments
        for _, each in segment.batches()
        if each.producer_id == 1
    ]


def test_a_marker_is_kept_as_long_as_its_records() -> None:
    setup = _compacted()
    setup.write(1)
    setup.end(1, commit=True)
    for _ in range(4):
        _compact(setup)
        setup.clock.advance(5000)
        assert _offsets(setup) == [(0, False, 1), (1, True, 1)]
    states = ProducerStates()
    for segment in setup.log.segments:
        replay_segment(states, segment, 0)
    assert states.open_transactions() == []


def test_aborted_records_are_removed_first_and_their_marker_after_the_retention_time() -> None:
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


def _write_without_sequence(setup: TxnLog) -> None:
    """Write as the broker does for a producer that commits offsets of a group."""
    batch = setup.batch(1, -1, epoch=3)
    setup.log.append(batch, now_ms=setup.clock.now_ms(), from_client=False)


def _commit_without_sequences(setup: TxnLog, times: int = 1) -> int:
    """Commit such transactions, with the same epoch as in the older protocol.

    Return the offset of the last marker.
    """
    for _ in range(times):
        _write_without_sequence(setup)
        setup.end(1, commit=True, epoch=3)
    setup.log.flush()
    return setup.log.log_end_offset - 1


def _compact_for_days(setup: TxnLog) -> None:
    for _ in range(3):
        _compact(setup)
        setup.clock.advance(5000)
        _compact(setup)


def test_the_last_marker_of_an_epoch_is_kept() -> None:
    setup = _compacted()
    last = _commit_without_sequences(setup, 20)
    _compact_for_days(setup)
    assert _offsets(setup) == [(last - 1, False, 1), (last, True, 1)]
    last = _commit_without_sequences(setup, 20)
    write(setup.log, [(b"k", b"another's")], setup.clock.now_ms())
    _compact_for_days(setup)
    assert _offsets(setup) == [(last, True, 0)]
    assert setup.log.producers.get(1) is not None


@pytest.mark.parametrize("sure", [True, False], ids=["a snapshot", "no snapshot"])
def test_the_epoch_of_a_producer_without_sequences_survives_compaction_and_a_crash(
    sure: bool,
) -> None:
    setup = _compacted()
    last = _commit_without_sequences(setup, 20)
    write(setup.log, [(b"k", b"another's")], setup.clock.now_ms())
    _compact_for_days(setup)
    if sure:
        advance(setup.store)
    else:
        for name in setup.fs.files(setup.log.chain.folder):
            if name.endswith(".snapshot"):
                setup.fs.remove(f"{setup.log.chain.folder}/{name}")
    setup.fs.kill()
    setup.open()
    with pytest.raises(InvalidProducerEpochError):
        setup.write(1, epoch=2)
    _compact_for_days(setup)  # what a snapshot does not say is not guessed
    assert _offsets(setup) == [(last, True, 0)]
    setup.log.roll(setup.clock.now_ms())


def test_an_unsynced_marker_is_not_the_only_record_of_a_producer() -> None:
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
    run_steps(compact(setup.log, setup.clock.now_ms()))
    assert _offsets(setup)[0] == (1, True, 0)


def test_unstable_records_are_not_compacted() -> None:
    setup = _compacted()
    write(setup.log, [(b"k", b"old")], 0)
    setup.write(1)
    write(setup.log, [(b"k", b"new")], 0)
    _compact(setup)
    found = [header.base_offset for _, header in iter_headers(read_bytes(setup.log))]
    assert found[:3] == [0, 1, 2]
