"""Logs whose durable appends go through the journal, without an event loop."""

from __future__ import annotations

from collections.abc import Iterable

from tidemill.clock import ManualClock
from tidemill.log.disk.files import FileSystem
from tidemill.log.journal.journal import Journal
from tidemill.log.partition.partition import PartitionLog
from tidemill.log.rounds import finish_pieces, promised_ends, take_pieces
from tidemill.log.store import LogStore

JOURNAL_BYTES = 128 << 10
"""Two files of 64 KB."""
ROUND = 1 << 30
"""More than all logs have to sync."""


def open_journaled(
    path: str,
    clock: ManualClock,
    fs: FileSystem,
    *,
    max_open_files: int = 512,
    file_bytes: int = JOURNAL_BYTES // 2,
) -> LogStore:
    """Open a store with a small journal that can be used."""
    store = LogStore.open(
        path, clock=clock, fs=fs, max_open_files=max_open_files, journal_bytes=JOURNAL_BYTES
    )
    store.journal = Journal(store.environment, path, JOURNAL_BYTES, file_bytes)
    store.journal.prepare()
    return store


def commit(store: LogStore, logs: Iterable[PartitionLog]) -> list[PartitionLog]:
    """Make what was appended durable with one entry; return the logs that it could not take."""
    if not store.journal.is_open:
        return list(logs)
    shares = []
    direct = []
    logs = list(logs)
    for log, taken in zip(logs, take_pieces(logs, ROUND), strict=True):
        if taken is None:
            direct.append(log)
        else:
            shares.append((log, *taken))
    write = store.journal.begin([piece for _, piece, _ in shares]) if shares else None
    if write is not None:
        write.run()
    if write is None or write.refused is not None:
        for log, _, _ in shares:
            log.withdraw_piece()
        return direct + [log for log, _, _ in shares]
    store.journal.finish(write, [log for log, _, _ in shares])
    finish_pieces([log for log, _, _ in shares], [(piece, segment) for _, piece, segment in shares])
    return direct


def witness(store: LogStore) -> None:
    """Store how far the journal reaches, as it is done a moment after each entry."""
    journal = store.journal
    logs = [log for log in journal.unsynced_owners() if isinstance(log, PartitionLog)]
    journal.extent_write(promised_ends(logs))()


def store_segments(store: LogStore, log: PartitionLog, *, in_background: bool = True) -> None:
    """Sync a log's own files, as it is done in the background."""
    ticket = log.begin_sync(in_background=in_background)
    number = store.journal.begin_store(log)
    if ticket is not None:
        ticket.run()
        log.finish_sync(ticket)
    store.journal.finish_store(number)
    if ticket is not None and log.topic_id is not None:
        store.journal.notes.add(log, ticket.note(log.topic_id.bytes))


def make_durable(store: LogStore, log: PartitionLog) -> None:
    """Make what was appended durable: by the journal, and where it can't, in the log's files."""
    if commit(store, [log]):
        store_segments(store, log, in_background=False)
