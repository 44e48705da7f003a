"""Runs the journal for the flusher: its rounds, and the syncs of segments behind them.

A round writes what many logs wait for, with one sync. Only one round is on its way at a time, on a
thread of its own (``threads.entries``). The segments of the logs in it are synced later on another
thread: when half of the journal is in use, when a log's oldest entry is ``STORED_AFTER`` ticks old,
or when nothing was written for ``IDLE_AFTER`` ticks. The system begins to write them before that.
An append never waits for that, and never fails because of the journal: where it has no space, the
flusher syncs the segments. A tenth of a second after a round, a second file says which entry was
the last one, and what it promised (``log.journal.extent``).

Knows logs, the journal and the event loop. The requests that wait are the flusher's business.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import islice
from time import perf_counter
from typing import cast

import structlog

from tidemill.engine.threads.entries import EntryWriter
from tidemill.engine.threads.worker import Finished, Work, Worker
from tidemill.log.errors import StorageError, SyncFailedError, TooManyOpenFilesError
from tidemill.log.journal.entry import Piece
from tidemill.log.journal.journal import Journal, JournalWrite
from tidemill.log.journal.ring import RingFile
from tidemill.log.partition.partition import PartitionLog
from tidemill.log.partition.sync import SyncTicket, run_tickets
from tidemill.log.rounds import promised_ends
from tidemill.metrics.definition import histogram
from tidemill.metrics.registry import Histogram

TICK_S = 1.0
STORED_AFTER = 10
IDLE_AFTER = 2
NOTES_S = 0.25
"""An entry with notes only, none of which has batches, is written at most so often, in seconds."""
STORED_TOGETHER = 16
"""Logs whose segments one job syncs."""
STORED_BYTES = 2 << 20
"""Bytes still to be written to the disk from which such a job gets no more logs."""
WRITTEN_BYTES = 1 << 20
"""Bytes of a log in the journal for which the system is asked to begin to write its segment. A sync
that has to write many megabytes makes the journal wait for the disk."""
EXTENT_S = 0.1
"""How long after a round the second place says that it was written, and how often at most."""
OPEN_AGAIN_S = 2.0
"""How long after a failed attempt the next write opens the files of the journal again."""
RETRY_S = 0.25
"""How long a sync waits for other files to be closed, if too many are open."""
MEASURED_PARTS = 64
"""The space in the journal is measured after each of so many parts of a file."""

SYNC_SECONDS = histogram(
    "tidemill_sync_seconds",
    "How long a sync took, with the write of a journal's entry; of=segments is for the files of "
    "partitions that requests wait for.",
    "of",
    buckets=(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0),
)

logger = structlog.get_logger("tidemill.journal")


class Journaling:
    """The journal of one broker, on its event loop.

    Args:
        on_free: called when the next round can start.
        on_failure: called with an error after which the broker must stop.

    Attributes:
        sync_seconds: how long the rounds took.
        written_bytes: bytes of the entries that were written.
    """

    def __init__(
        self,
        journal: Journal,
        on_free: Callable[[], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._journal = journal
        self._on_free = on_free
        self._on_failure = on_failure
        self._writer = Worker(self._loop, "journal")
        self._entries = EntryWriter(self._loop, self._writer)
        self._storer = Worker(self._loop, "store")
        self._asked = False
        self._opening = False
        self._creating = False
        self._storing = False
        self._closed = False
        self._given_up = False
        self._until = 0
        self._unseen_bytes = 0
        self._unmeasured_bytes = 0
        self._measured_after = journal.file_bytes // MEASURED_PARTS
        self._writing_back = False
        self._marks: list[int] = []
        self._timer: asyncio.TimerHandle | None = None
        self._notes_timer: asyncio.TimerHandle | None = None
        self._notes_written = 0.0
        self._notes_wait = False
        self._extent_timer: asyncio.TimerHandle | None = None
        self._is_unavailable = False
        self.is_busy = False
        self.sync_seconds = Histogram(SYNC_SECONDS.buckets)
        self.written_bytes = 0
        self._began = 0.0

    @property
    def is_open(self) -> bool:
        """Whether rounds can be written."""
        return self._journal.is_open

    def open(self) -> None:
        """Prepare the journal on its thread, at the first call, and again if that has failed."""
        if self._asked:
            return
        self._asked = True
        self._opening = True
        self._run(self._writer, self._journal.prepare, self._opened)

    def _opened(self, error: BaseException | None) -> None:
        self._opening = False
        if isinstance(error, SyncFailedError):
            self._on_failure(error)
        elif error is not None:
            if not self._is_unavailable:
                logger.warning("journal.unavailable", error=str(error))
            self._is_unavailable = True
            self._loop.call_later(OPEN_AGAIN_S, self._allow_open)
        else:
            if self._is_unavailable:
                logger.info("journal.available")
            self._tick_later()
            self._write_notes_soon()

    def _allow_open(self) -> None:
        self._asked = False

    def close(self) -> None:
        """Stop the threads and the timers."""
        self._closed = True
        for timer in (self._timer, self._notes_timer, self._extent_timer):
            if timer is not None:
                timer.cancel()
        self._entries.close()
        self._writer.close()
        self._storer.close()

    def _run(self, worker: Worker, work: Work, finished: Finished) -> None:
        """Run work on a thread, and then ``finished`` on the loop unless the broker stops."""

        def back(error: BaseException | None) -> None:
            if not self._closed:
                finished(error)

        worker.run(work, back)

    # --- rounds ----------------------------------------------------------------------------------

    def start(
        self,
        pieces: Sequence[Piece],
        logs: Sequence[PartitionLog],
        finished: Callable[[bool], None],
    ) -> bool:
        """Start a round; return whether there is space for it.

        Args:
            pieces: what the logs wait for.
            logs: the log of each piece. None of them is in a round already.
            finished: called on the loop. With False, nothing was written.
        """
        write = self._journal.begin(pieces)
        if write is None:
            self._store_soon()
            return False
        self.is_busy = True
        self._began = perf_counter()
        self._entries.run(write, lambda error: self._written(error, write, logs, finished))
        return True

    def poll(self) -> None:
        """Finish the round if it is on disk and the event loop has not noticed it yet."""
        if self.is_busy:
            self._entries.poll()

    def _written(
        self,
        error: BaseException | None,
        write: JournalWrite,
        logs: Sequence[PartitionLog],
        finished: Callable[[bool], None],
    ) -> None:
        if self._closed:
            return
        self.is_busy = False
        self.sync_seconds.observe(perf_counter() - self._began)
        if error is not None:
            self._on_failure(error)
            return
        if write.refused is not None:
            self._give_up(write.refused)
            finished(False)
            self._on_free()  # also after an entry of notes only, behind which logs wait
            return
        self._journal.finish(write, logs)
        finished(True)
        if self._extent_timer is None:
            self._extent_timer = self._loop.call_later(EXTENT_S, self._write_extent)
        self.written_bytes += write.size
        self._unseen_bytes += write.size
        if self._unseen_bytes >= WRITTEN_BYTES:
            self._unseen_bytes = 0
            self._write_back(logs)
        self._unmeasured_bytes += write.size
        if self._unmeasured_bytes >= self._measured_after:
            self._unmeasured_bytes = 0
            self._make_space()
        self._on_free()
        if self._notes_wait:  # behind the next round, which takes the notes too
            self._loop.call_soon(self._write_notes)

    def _write_extent(self) -> None:
        """Store how far the journal reaches, in its second place."""
        if self._closed or not self._journal.is_open:
            return
        logs = cast("list[PartitionLog]", self._journal.unsynced_owners())
        write = self._journal.extent_write(promised_ends(logs))
        sequence = self._journal.next_sequence

        def written(error: BaseException | None) -> None:
            self._extent_timer = None
            is_refused = isinstance(error, StorageError) and not isinstance(error, SyncFailedError)
            if is_refused:
                logger.warning("journal.extent_not_written", error=str(error))
            elif error is not None:
                self._on_failure(error)
            if self._journal.next_sequence > sequence:  # rounds that were finished meanwhile
                self._extent_timer = self._loop.call_later(EXTENT_S, self._write_extent)

        self._run(self._writer, write, written)

    def _give_up(self, error: OSError) -> None:
        logger.error("journal.closed", error=str(error))
        self._journal.give_up()
        self._given_up = True
        self._discard_when_stored()

    def _discard_when_stored(self) -> None:
        """Discard a journal that was given up, as soon as no segment needs it; sync them now.

        What was promised before is nowhere else.
        """
        if not self._given_up or self._closed:
            return
        while not self._storing and next(self._journal.oldest(), None) is not None:
            self._store_soon()
        if self._journal.is_needed:
            return  # the end of each sync comes here again
        self._given_up = False

        def discarded(error: BaseException | None) -> None:
            if error is not None:
                self._on_failure(error)

        self._run(self._writer, self._journal.discard, discarded)

    def _make_space(self) -> None:
        if self._journal.wants_file and not self._creating:
            self._creating = True
            files: list[RingFile] = []
            self._run(
                self._storer,
                lambda: files.append(self._journal.create_file()),
                lambda error: self._created(files, error),
            )
        if self._journal.is_half_full:
            self._store_soon()

    def _created(self, files: list[RingFile], error: BaseException | None) -> None:
        self._creating = False
        if error is None:
            self._journal.add_file(*files)
        elif isinstance(error, SyncFailedError):
            self._on_failure(error)
        else:
            logger.warning("journal.not_extended", error=str(error))
            self._store_soon()

    # --- segments --------------------------------------------------------------------------------

    def begin_store(self, log: PartitionLog) -> int:
        """Note that the segments of a log are being synced; see ``Journal.begin_store``."""
        return self._journal.begin_store(log)

    def finish_store(self, log: PartitionLog, number: int, ticket: SyncTicket) -> None:
        """Note in the journal that a log's segments are synced. The ticket was finished."""
        self._journal.finish_store(number)
        is_used = self._journal.is_open or self._opening
        if is_used and log.topic_id is not None and not log.chain.removed:
            note = ticket.note(log.topic_id.bytes)
            self._journal.notes.add(log, note)
            # Batches that are in no entry yet can't be restored, so they go there immediately.
            self._write_notes_soon(0.0 if note.size else NOTES_S)
        self._discard_when_stored()

    def fail_store(self, log: PartitionLog, number: int) -> None:
        """Note that the segments of a log could not be opened for a sync, which is retried."""
        if log.chain.removed:
            self._journal.finish_store(number)
        else:
            self._journal.fail_store(log, number)

    def _write_notes_soon(self, after_s: float = NOTES_S) -> None:
        """Write an entry for the notes when the last one is so old, if no round has them before."""
        due = self._notes_written + after_s - self._loop.time()
        if due <= 0:
            self._write_notes()
        elif self._notes_timer is None:
            self._notes_timer = self._loop.call_later(due, self._write_notes)

    def _write_notes(self) -> None:
        if self._notes_timer is not None:
            self._notes_timer.cancel()
            self._notes_timer = None
        self._notes_wait = False
        if self._closed or not (self._journal.notes.are_waiting and self._journal.is_open):
            return
        self._notes_wait = self.is_busy
        if self._notes_wait:
            return  # the end of the round comes here again
        self._notes_written = self._loop.time()
        self.start((), (), lambda _: None)
        if (
            self._journal.notes.are_waiting
        ):  # the journal is full, or they are too many for one entry
            self._write_notes_soon()

    def forget(self, log: PartitionLog) -> None:
        """Forget a deleted log."""
        self._journal.forget(log)
        self._discard_when_stored()

    def _tick_later(self) -> None:
        self._timer = self._loop.call_later(TICK_S, self._tick)

    def _tick(self) -> None:
        """Sync the segments of logs with old entries; write notes that wait for a round."""
        self._tick_later()
        journal = self._journal
        if not journal.is_open:
            return
        self._marks.append(journal.next_sequence)
        del self._marks[:-STORED_AFTER]
        idle_since = self._marks[-IDLE_AFTER - 1 :][0]
        if len(self._marks) > IDLE_AFTER and idle_since == journal.next_sequence:
            self._until = journal.next_sequence
        elif len(self._marks) == STORED_AFTER:
            self._until = self._marks[0]
        if journal.head < self._until:
            self._store_soon()
        if journal.notes.are_waiting:
            self._write_notes_soon()

    def _write_back(self, logs: Sequence[PartitionLog]) -> None:
        """Let the system begin to write the segments of those logs that have much to be written."""
        actives = [log.segments[-1] for log in logs]
        segments = [each for each in actives if each.unwritten_bytes >= WRITTEN_BYTES]
        if self._writing_back or not segments:
            return
        self._writing_back = True

        def work() -> None:
            for segment in segments:
                segment.write_back()

        def finished(error: BaseException | None) -> None:
            self._writing_back = False
            # The sync of the segment meets an error of the disk too.
            if error is not None and not isinstance(error, StorageError):
                self._on_failure(error)

        self._run(self._storer, work, finished)

    def _store_soon(self) -> None:
        """Sync the segments of some logs, those with the oldest entries first."""
        if self._storing or self._closed:
            return
        logs: list[PartitionLog] = []
        size = 0
        for owner in islice(self._journal.oldest(), STORED_TOGETHER):
            log = cast(PartitionLog, owner)
            logs.append(log)
            size += log.segments[-1].unwritten_bytes
            if size >= STORED_BYTES:
                break
        work: list[tuple[PartitionLog, int, SyncTicket]] = []
        for log in logs:
            ticket = log.begin_sync(in_background=True)
            number = self._journal.begin_store(log)
            if ticket is None:
                self._journal.finish_store(number)
            else:
                work.append((log, number, ticket))
        if work:
            self._storing = True
            tickets = [ticket for _, _, ticket in work]
            self._run(
                self._storer,
                lambda: run_tickets(tickets),
                lambda error: self._stored(error, work),
            )

    def _stored(
        self, error: BaseException | None, work: Sequence[tuple[PartitionLog, int, SyncTicket]]
    ) -> None:
        self._storing = False
        if isinstance(error, TooManyOpenFilesError):
            logger.warning("sync.retried", error=str(error), hint=error.hint)
            self._loop.call_later(RETRY_S, self._store_again)
        elif error is not None:
            self._on_failure(error)
            return
        for log, number, ticket in work:
            if error is None or ticket.done:
                log.finish_sync(ticket)
                self.finish_store(log, number, ticket)
            else:
                self.fail_store(log, number)
        if error is None and (self._journal.is_half_full or self._journal.head < self._until):
            self._store_soon()

    def _store_again(self) -> None:
        self._discard_when_stored()
        if self._journal.is_half_full or self._journal.head < self._until:
            self._store_soon()
