"""Rounds of the journal: what is taken of logs, and what is noted when it is on disk."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from uuid import UUID

import pytest

from tests.log.partition.one_partition import NOW, batch_of
from tests.support.faultyfs import FaultyFileSystem
from tests.support.journaled import open_journaled
from tidemill.clock import ManualClock
from tidemill.log.config.parse import parse_config
from tidemill.log.errors import StorageError
from tidemill.log.format.markers import Marker
from tidemill.log.journal.entry import Piece
from tidemill.log.journal.extent import Extent, Promise
from tidemill.log.journal.journal import LOG_BYTES
from tidemill.log.names import TopicPartition
from tidemill.log.partition.partition import PartitionLog
from tidemill.log.rounds import Taken, finish_pieces, promised_ends, take_pieces
from tidemill.log.store import LogStore
from tidemill.native import extension


def opened() -> LogStore:
    return open_journaled("/data", ManualClock(NOW), FaultyFileSystem())


@pytest.fixture
def store() -> Iterator[LogStore]:
    store = opened()
    yield store
    store.close()


def added(store: LogStore, number: int) -> PartitionLog:
    log = store.create(TopicPartition("t", number), parse_config({}), UUID(int=number + 1))
    log.append(batch_of(1), now_ms=NOW)
    log.flush()
    return log


def state(log: PartitionLog) -> tuple[object, ...]:
    """Return all that a round changes."""
    head = log.head
    return (
        *(log.high_watermark, log.last_stable_offset, log.log_end_offset, log.stored_offset),
        *(head.end_segment.base_offset, head.end_position, head.copied_limit, head.copied_from),
        *(head.copied, b"".join(head.copies), log.chain.env.copies.used, log.fits_journal),
    )


class Changes:
    """What can come to logs between two rounds, the same for each seed."""

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


def take_one(log: PartitionLog) -> Taken | None:
    """Take the unsynced batches of a log as ``take_pieces`` must do it."""
    head = log.head
    if log.failure is not None or not log.fits_journal:
        return None
    segment, end = log.chain.active, log.log_end_offset
    position = segment.size - head.copied
    batches = head.copied_from, end, head.copied, head.copies
    piece = Piece(head.topic_id, log.tp.partition, segment.base_offset, position, *batches)
    head.drop_copies(end)
    head.copied_limit = LOG_BYTES
    return piece, segment


def take_each(logs: list[PartitionLog], most_bytes: int) -> list[Taken | None]:
    """Take pieces as ``take_pieces`` must do it."""
    found: list[Taken | None] = []
    size = 0
    for log in logs:
        if size >= most_bytes:
            break
        found.append(take_one(log))
        size += 0 if found[-1] is None else found[-1][0].size
    return found


def finish_each(logs: list[PartitionLog], taken: list[Taken]) -> list[tuple[bool, bool]]:
    """Finish pieces as ``finish_pieces`` must do it."""
    found = []
    for log, (piece, segment) in zip(logs, taken, strict=True):
        head = log.head
        has_risen = piece.end_offset > head.high_watermark
        if has_risen:
            head.high_watermark = piece.end_offset
            head.end_segment, head.end_position = segment, piece.position + piece.size
            log._producers.settle(piece.end_offset)
        found.append((has_risen, log.high_watermark < log.log_end_offset))
    return found


def rounds_of(
    seed: int,
    take: Callable[[list[PartitionLog], int], list[Taken | None]],
    finish: Callable[[list[PartitionLog], list[Taken]], list[tuple[bool, bool]]],
) -> list[object]:
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
        taken = take(some, rng.choice([1, 500, 2000, 1 << 20, 1 << 20]))
        found.append([plain(each) for each in taken])
        shares = [(log, each) for log, each in zip(some, taken, strict=False) if each is not None]
        for log in rng.choices(logs, k=rng.randrange(3)):
            changes.apply(log)
        if rng.random() < 0.1:
            for log, _ in shares:
                log.withdraw_piece()
        else:
            found.append(finish([log for log, _ in shares], [each for _, each in shares]))
        found += [state(log) for log in logs]
    store.close()
    return found


@pytest.mark.parametrize("seed", range(6))
def test_random_rounds_take_and_leave_what_they_must(seed: int) -> None:
    found = rounds_of(seed, take_pieces, finish_pieces)
    assert found == rounds_of(seed, take_each, finish_each)
    taken = [each for each in found if isinstance(each, list)]
    assert sum(isinstance(one, tuple) and len(one) > 2 for each in taken for one in each) > 50
    assert sum(one is None for each in taken for one in each) > 20


def test_logs_behind_the_limit_get_no_result(store: LogStore) -> None:
    logs = [added(store, number) for number in range(4)]
    for log in logs:
        log.append(batch_of(1, size=100), now_ms=NOW)
    logs[0].withdraw_piece()
    size = logs[1].head.copied
    taken = take_pieces(logs, size + 1)
    assert [each is not None for each in taken] == [False, True, True]
    assert logs[3].fits_journal
    assert take_pieces(logs[3:], 0) == []


def test_a_finished_log_tells_if_there_is_more(store: LogStore) -> None:
    first, second = added(store, 0), added(store, 1)
    for log in (first, second):
        log.append(batch_of(2), now_ms=NOW)
    taken = [each for each in take_pieces([first, second], 1 << 20) if each is not None]
    second.append(batch_of(1), now_ms=NOW)
    assert finish_pieces([first, second], taken) == [(True, False), (True, True)]
    assert (first.high_watermark, second.high_watermark) == (3, 3)
    assert finish_pieces([first, second], taken) == [(False, False), (False, True)]


def test_what_was_promised_of_logs_is_encoded_for_the_extent(store: LogStore) -> None:
    logs = [added(store, number) for number in range(3)]
    logs[1].append(batch_of(5), now_ms=NOW)  # not promised yet
    logs[2].append(batch_of(1), now_ms=NOW)
    logs[2].flush()
    found = Extent(bytes(16), 1, 1, 1, promised_ends(logs))
    assert list(found) == [Promise(UUID(int=n + 1).bytes, n, [1, 1, 2][n]) for n in range(3)]
    assert promised_ends([]) == b""
    logs[0].head.topic_id = b""  # the file with it was lost
    assert promised_ends(logs[:1]) == b""
    with pytest.raises(TypeError, match="not the head of a partition"):
        extension.promised_ends([object()])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="must be a list"):
        extension.promised_ends((logs[0].head,))  # type: ignore[arg-type]


def test_wrong_arguments_are_refused(store: LogStore) -> None:
    log = added(store, 0)
    log.append(batch_of(1), now_ms=NOW)
    with pytest.raises(TypeError, match="named tuple"):
        extension.take_pieces([log.head], 1000, int)
    with pytest.raises(ValueError, match="each log has a piece"):
        extension.finish_pieces([log.head], [])
    with pytest.raises(TypeError, match="not the head of a partition"):
        extension.take_pieces([object()], 1000, Piece)  # type: ignore[list-item]
    assert log.fits_journal
