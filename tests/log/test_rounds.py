"""Rounds of the journal: native code takes and finishes what Python takes and finishes."""

from __future__ import annotations

import random
from typing import Any
from uuid import UUID

import pytest

from tests.log.partition.one_partition import NOW, batch_of
from tests.support.editions import both_editions, needs_native, use
from tests.support.faultyfs import FaultyFileSystem
from tests.support.journaled import open_journaled
from tidemill import native
from tidemill.clock import ManualClock
from tidemill.log import rounds
from tidemill.log.config.parse import parse_config
from tidemill.log.errors import StorageError
from tidemill.log.format.markers import Marker
from tidemill.log.journal.entry import Piece
from tidemill.log.names import TopicPartition
from tidemill.log.partition.partition import PartitionLog
from tidemill.log.rounds import Taken, finish_pieces, take_pieces
from tidemill.log.store import LogStore


def opened() -> LogStore:
    return open_journaled("/data", ManualClock(NOW), FaultyFileSystem())


def added(store: LogStore, number: int, **configs: str) -> PartitionLog:
    config = parse_config({key.replace("_", "."): value for key, value in configs.items()})
    topic = UUID(int=number + 1)
    log = store.create(TopicPartition("t", number), config, topic)
    log.append(batch_of(1), now_ms=NOW)
    log.flush()
    return log


def state(log: PartitionLog) -> tuple[object, ...]:
    """Return all that a round changes."""
    sync = log._sync
    return (
        *(log.high_watermark, log.last_stable_offset, log.log_end_offset, log.stored_offset),
        *(sync.end_segment.base_offset, sync.end_position, sync._limit, sync._from_offset),
        *(sync._copied, b"".join(sync._copies), log.chain.env.copies.used, log.fits_journal),
    )


class Changes:
    """What can come to logs between two rounds: the same for each edition."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.sequences: dict[TopicPartition, int] = {}

    def apply(self, log: PartitionLog) -> None:
        if log.failure is not None:
            return
        rng = self.rng
        kinds = ["append", "transaction", "end", "flush", "roll", "drop", "fail"]
        what = rng.choices(kinds, [60, 15, 12, 12, 4, 4, 0.1])[0]
        if what == "append":
            log.append(batch_of(rng.randrange(1, 4), size=rng.randrange(1, 900)), now_ms=NOW)
        elif what == "transaction":
            number = self.sequences.get(log.tp, 0)
            self.sequences[log.tp] = number + 1
            fields = {"producer_id": 5, "producer_epoch": 0, "base_sequence": number}
            log.append(batch_of(transactional=True, **fields), now_ms=NOW)
        elif what == "end":
            log.append_marker(Marker(5, 0, commit=rng.random() < 0.5), now_ms=NOW)
        elif what == "flush":
            log.flush()
        elif what == "roll":
            log.roll(now_ms=NOW)
        elif what == "drop":
            log.withdraw_piece()
        elif what == "fail":
            log.chain.go_offline(StorageError("a test says so"))


def plain(taken: Taken | None) -> object:
    """Return what a round takes of a log as values that can be compared."""
    if taken is None:
        return None
    piece, segment = taken
    assert isinstance(piece, Piece)
    return (*piece[:-1], b"".join(map(bytes, piece.buffers)), segment.base_offset)


def rounds_of(seed: int) -> list[object]:
    """Return what random rounds take and leave."""
    changes = Changes(seed)
    found: list[object] = []
    rng = changes.rng
    store = opened()
    logs = [added(store, number) for number in range(6)]
    for _ in range(150):
        for log in logs:
            for _ in range(rng.choice([0, 0, 1, 3])):
                changes.apply(log)
        some = rng.sample(logs, rng.randrange(len(logs) + 1))
        taken = take_pieces(some, rng.choice([1, 500, 2000, 1 << 20, 1 << 20]))
        found.append([plain(each) for each in taken])
        shares = [(log, each) for log, each in zip(some, taken, strict=False) if each is not None]
        for log in rng.choices(logs, k=rng.randrange(3)):
            changes.apply(log)
        if rng.random() < 0.1:
            for log, _ in shares:
                log.withdraw_piece()
        else:
            moved = finish_pieces([log for log, _ in shares], [each for _, each in shares])
            found.append(moved)
        found += [state(log) for log in logs]
    store.close()
    return found


@needs_native
@pytest.mark.parametrize("seed", range(6))
def test_native_rounds_take_and_leave_what_those_of_python_do(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    found = {}
    for edition in ("native", "python"):
        use(monkeypatch, rounds, edition)
        found[edition] = rounds_of(seed)
    assert found["native"] == found["python"]
    taken = [each for each in found["python"] if isinstance(each, list)]
    assert sum(isinstance(one, tuple) and len(one) > 2 for each in taken for one in each) > 50
    assert sum(one is None for each in taken for one in each) > 20


@both_editions
def test_logs_behind_the_limit_get_no_result(monkeypatch: pytest.MonkeyPatch, edition: str) -> None:
    use(monkeypatch, rounds, edition)
    store = opened()
    logs = [added(store, number) for number in range(4)]
    for log in logs:
        log.append(batch_of(1, size=100), now_ms=NOW)
    logs[0].withdraw_piece()
    size = logs[1]._sync._copied
    taken = take_pieces(logs, size + 1)
    assert [each is not None for each in taken] == [False, True, True]
    assert logs[3].fits_journal
    assert take_pieces(logs[3:], 0) == []
    store.close()


@both_editions
def test_a_finished_log_tells_if_there_is_more(
    monkeypatch: pytest.MonkeyPatch, edition: str
) -> None:
    use(monkeypatch, rounds, edition)
    store = opened()
    first, second = added(store, 0), added(store, 1)
    for log in (first, second):
        log.append(batch_of(2), now_ms=NOW)
    taken = [each for each in take_pieces([first, second], 1 << 20) if each is not None]
    second.append(batch_of(1), now_ms=NOW)
    assert finish_pieces([first, second], taken) == [(True, False), (True, True)]
    assert (first.high_watermark, second.high_watermark) == (3, 3)
    assert finish_pieces([first, second], taken) == [(False, False), (False, True)]
    store.close()


@needs_native
def test_wrong_arguments_are_refused() -> None:
    extension: Any = native.load()
    store = opened()
    log = added(store, 0)
    log.append(batch_of(1), now_ms=NOW)
    with pytest.raises(TypeError, match="named tuple"):
        extension.take_pieces([log], 1000, int, 1)
    with pytest.raises(ValueError, match="each log has a piece"):
        extension.finish_pieces([log], [])
    with pytest.raises(AttributeError):
        extension.take_pieces([object()], 1000, Piece, 1)
    assert log.fits_journal
    store.close()
