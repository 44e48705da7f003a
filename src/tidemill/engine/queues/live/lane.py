"""One partition of a queue: its log, its window, and the messages that were read ahead.

Messages that were just published stay in memory, up to a limit, so that they are delivered without
a read. Behind that limit the lane reads slices of the log, so a long queue takes no memory. Only
what is below the last stable offset is delivered. Knows no consumers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

import structlog

from tidemill.engine.queues.live.sizes import NoSizes, Sizes
from tidemill.engine.queues.live.stored import Stored, of_record
from tidemill.errors import TidemillError
from tidemill.log.disk.slice import Slice
from tidemill.log.format.batch import Buffer, iter_headers
from tidemill.log.format.records import decode_records
from tidemill.log.partition.partition import PartitionLog
from tidemill.state.queues.format import DOUBT, SIZES, WaitingBytes
from tidemill.state.queues.window import AckWindow

logger = structlog.get_logger("tidemill.queues")

RECENT_BYTES = 1 << 20
"""Bytes of just published messages that stay in memory for one lane."""
READ_BYTES = 1 << 18
"""Bytes of the log that one read ahead takes, or one batch if that is larger."""
COUNTED_BYTES = 1 << 24
"""Bytes of a log whose messages are read at a start to know how many bytes wait."""
OVERHEAD_BYTES = 100
"""Bytes that a message takes in memory besides its value."""
DECODED_PER_READ = 4000
"""Messages that one read adds to the memory; more batches are decoded by the next read."""


class Lane:
    """One partition of a queue.

    Args:
        window: which messages are done or out.

    Attributes:
        on_loaded: called when messages were read from a cold disk.
        incoming: messages that are published and not appended yet.
        incoming_bytes: their bytes, if bytes are counted.
        sizes: bytes of the messages that wait.
        stored_start: the low-water mark that is on disk.
        doubtful_end: messages below it were possibly delivered, also if the window does not say so:
            a power cut takes what was not synced.
    """

    __slots__ = (
        "_cached",
        "_cached_bytes",
        "_cached_to",
        "_known_start",
        "_loading",
        "doubtful_end",
        "incoming",
        "incoming_bytes",
        "log",
        "number",
        "on_loaded",
        "sizes",
        "stored_start",
        "window",
    )

    def __init__(self, log: PartitionLog, window: AckWindow, doubtful_end: int) -> None:
        self.log = log
        self.number = log.tp.partition
        self.window = window
        self.stored_start = window.start
        self.doubtful_end = doubtful_end
        self.incoming = 0
        self.incoming_bytes = 0
        self.sizes = NoSizes()
        self.on_loaded: Callable[[], None] | None = None
        self._cached: dict[int, Stored] = {}
        self._cached_bytes = 0
        self._cached_to = window.next
        self._known_start = window.start
        self._loading = False

    # --- depth -----------------------------------------------------------------------------------

    @property
    def end(self) -> int:
        """The offset below which messages can be delivered."""
        return self.log.last_stable_offset

    @property
    def ready(self) -> int:
        """The number of messages that wait, with those that are not on disk yet."""
        self.follow_start()
        return self._waiting + self.incoming

    @property
    def on_disk(self) -> int:
        """The number of messages that wait and are on disk, so that they can be delivered."""
        self.follow_start()
        return max(0, self.end - self.window.next) + self.window.returned

    @property
    def _waiting(self) -> int:
        return self.log.log_end_offset - self.window.next + self.window.returned

    # --- bytes -----------------------------------------------------------------------------------

    def count_bytes(self, noted: WaitingBytes | None = None) -> None:
        """Count the bytes of the messages that wait, from now on.

        Args:
            noted: what ``take_note`` returned last. Messages behind it are read, or if these are
                many, their bytes in the log count.
        """
        log, first, size = self.log, self.window.start, 0
        if noted is not None and noted.end <= log.log_end_offset:
            first, size = max(first, noted.end), noted.size
        behind = log.distance(first).size_bytes if first < log.log_end_offset else 0
        self.sizes = Sizes(size + (behind if behind > COUNTED_BYTES else self._bytes_from(first)))

    def _bytes_from(self, offset: int) -> int:
        size, end = 0, self.log.log_end_offset
        while offset < end:
            piece = self.log.read(offset, READ_BYTES, limit_offset=end)
            if piece is None:
                break
            messages, offset = decode(piece.load(), offset)
            size += sum(
                len(message.value)
                for at, message, _ in messages
                if message is not None and (at >= self.window.next or self.window.is_available(at))
            )
        return size

    def take_note(self) -> WaitingBytes | None:
        """Return the bytes that wait, if they are counted and changed since the last call."""
        return self.sizes.take_note(self.log.log_end_offset, self._waiting + self.window.acquired)

    def all_changed(self) -> None:
        """Note that what the last calls returned was not stored."""
        self.window.all_changed()
        self.sizes.forget_note()

    def stored_keys(self) -> list[int]:
        """Return the keys of the records that are stored: what a deletion removes."""
        others = ((SIZES, self.sizes.counts), (DOUBT, self.doubtful_end > 0))
        return [*self.window.stored_keys(), *(key for key, is_stored in others if is_stored)]

    # --- publish ---------------------------------------------------------------------------------

    def appended(self, first: int, messages: Sequence[Stored]) -> None:
        """Keep messages that were appended from offset ``first`` on, as far as there is space."""
        if self._cached_to < self.window.next:
            self._cached_to = self.window.next
        if self._cached_to != first:
            return  # there is a gap that must be read from the log
        size = self._cached_bytes
        cached = self._cached
        for message in messages:
            if size >= RECENT_BYTES:
                break
            size += len(message.value) + OVERHEAD_BYTES
            cached[first] = message
            first += 1
        self._cached_to = first
        self._cached_bytes = size

    # --- take ------------------------------------------------------------------------------------

    def head(self) -> tuple[int, Stored] | None:
        """Return the first available message; None if there is none, or it is being read."""
        self.follow_start()
        while True:
            offset = self.window.first_available(self.end)
            if offset is None:
                return None
            message = self._cached.get(offset)
            if message is not None:
                return offset, message
            if self._loading or not self._read(offset):
                return None

    def take(self, owner: int, count: int) -> list[tuple[int, int, Stored]]:
        """Acquire the first messages; return (offset, delivery count, message) of each.

        Fewer than ``count`` can come although more are there: the rest is read from the log first.
        """
        found = self.head()
        if found is None:
            return []
        first, message = found
        window, cached = self.window, self._cached
        if first < window.next:
            (run,) = window.acquire(owner, 1, self.end)
            self._drop(first, message)
            self.sizes.taken(first, len(message.value))
            return [(first, run.delivery_count, message)]
        end = min(first + count, self.end)
        stop = first
        size = 0
        taken: list[tuple[int, int, Stored]] = []
        while stop < end:
            each = cached.pop(stop, None)
            if each is None:
                break
            if stop > first and (each.expires is not None or each.deliver_at):
                cached[stop] = each  # its time must be compared first
                break
            size += len(each.value) + OVERHEAD_BYTES
            taken.append((stop, 0, each))
            stop += 1
        self._cached_bytes -= size
        window.acquire(owner, stop - first, stop)
        if self.sizes.counts:
            for offset, _, each in taken:
                self.sizes.taken(offset, len(each.value))
        return taken

    @property
    def is_reading(self) -> bool:
        """Whether messages are being read from a cold disk."""
        return self._loading

    def forget(self, offset: int) -> None:
        """Forget what is in memory of a message."""
        message = self._cached.get(offset)
        if message is not None:
            self._drop(offset, message)

    def drop_all(self) -> int:
        """Mark all available messages as done; return how many these were."""
        window, end = self.window, self.end
        dropped = window.returned + max(0, end - window.next)
        for run in window.available_ranges():
            window.skip(*run)
        if end > window.next:
            window.skip(window.next, end - 1)
        self._drop_below(end)
        left = self.log.log_end_offset - end
        self.sizes.keep(left, left + dropped)
        return dropped

    def _drop(self, offset: int, message: Stored) -> None:
        del self._cached[offset]
        self._cached_bytes -= len(message.value) + OVERHEAD_BYTES

    def _drop_below(self, end: int) -> None:
        for offset in [each for each in self._cached if each < end]:
            self._drop(offset, self._cached[offset])

    async def load(self, offset: int) -> tuple[list[tuple[int, Stored]], int]:
        """Read messages from ``offset`` on; return them and the offset to read next."""
        piece = self.log.read(offset, READ_BYTES, limit_offset=self.end)
        if piece is None:
            return [], self.end
        data = piece.load_nowait()
        if data is None or _is_compressed(data):
            loop = asyncio.get_running_loop()
            messages, end = await loop.run_in_executor(None, _load, piece, offset)
        else:
            messages, end = decode(data, offset)
        if self.log.has_aborted_transactions:
            messages = _without(messages, self.log.aborted_transactions(offset, end))
        return [(at, message) for at, message, _ in messages if message is not None], end

    async def fetch(self, first: int, last: int) -> AsyncIterator[tuple[int, Stored]]:
        """Yield messages from the log, in whatever state they are."""
        loop = asyncio.get_running_loop()
        offset = max(first, self.log.log_start_offset)
        while offset <= last:
            size = READ_BYTES if last > offset else 1  # 1: one batch
            piece = self.log.read(offset, size, limit_offset=self.log.high_watermark)
            if piece is None:
                return
            messages, offset = await loop.run_in_executor(None, _load, piece, offset)
            for at, message, _ in messages:
                if message is not None and at <= last:
                    yield at, message

    # --- read ahead ------------------------------------------------------------------------------

    def _read(self, offset: int) -> bool:
        """Read messages from ``offset`` on. Return False if that takes another thread."""
        if offset < self.log.log_start_offset:
            self._drop_deleted()  # it was out when its record was deleted
            return True
        end = self.end
        piece = self.log.read(offset, READ_BYTES, limit_offset=end)
        if piece is None:
            self._skip_gap(offset, end)
            return True
        data = piece.load_nowait()
        if data is None or _is_compressed(data):
            self._loading = True
            loop = asyncio.get_running_loop()
            work = loop.run_in_executor(None, _load, piece, offset)
            work.add_done_callback(lambda done: self._loaded(offset, done))
            return False
        self._keep(offset, decode(data, offset))
        return True

    def follow_start(self) -> None:
        """Drop the messages that the log has not any more: another client deleted them.

        Those that are out stay with their owners.
        """
        if self.log.log_start_offset > self._known_start:
            self._drop_deleted()

    def _drop_deleted(self) -> None:
        window, start = self.window, self.log.log_start_offset
        before = self._waiting
        self._known_start = start
        self._drop_below(start)
        for first, last in window.available_ranges():
            if first < start:
                window.skip(first, min(last, start - 1))
        if window.next < start:
            window.skip(window.next, start - 1)
        self.sizes.keep(self._waiting, before)

    def _loaded(self, offset: int, work: asyncio.Future[Decoded]) -> None:
        self._loading = False
        if work.cancelled():
            return
        error = work.exception()
        if error is not None:
            hint = error.hint if isinstance(error, TidemillError) else ""
            logger.error(
                "queue.not_readable", partition=str(self.log.tp), error=str(error), hint=hint
            )
            return
        self._keep(offset, work.result())
        if self.on_loaded is not None:
            self.on_loaded()

    def _keep(self, offset: int, decoded: Decoded) -> None:
        """Put read messages into memory, and skip the offsets without a message."""
        messages, end = decoded
        if self.log.has_aborted_transactions:
            messages = _without(messages, self.log.aborted_transactions(offset, end))
        window, cached = self.window, self._cached
        expected = offset
        size = 0
        for at, message, _ in messages:
            if message is None:
                continue
            if at > expected:
                self._skip_gap(expected, at)
            expected = at + 1
            if at not in cached and (at >= window.next or window.is_available(at)):
                cached[at] = message
                size += len(message.value) + OVERHEAD_BYTES
        if end > expected:
            self._skip_gap(expected, end)
        self._cached_bytes += size
        if end > window.next and self._cached_to < end:
            self._cached_to = end

    def _skip_gap(self, first: int, end: int) -> None:
        """Mark offsets that have no message as done, from ``first`` to ``end`` (exclusive)."""
        window = self.window
        for offset in range(first, min(end, window.next)):
            if window.is_available(offset):
                window.skip(offset, offset)
        if end > window.next and first <= window.next:
            window.skip(window.next, end - 1)


Entry = tuple[int, Stored | None, int]
"""(offset, message, producer id of its transaction or -1). The end of a transaction has None."""
Decoded = tuple[list[Entry], int]
"""The messages, and the offset behind them."""


def _is_compressed(data: Buffer) -> bool:
    return any(header.codec for _, header in iter_headers(data))


def _load(piece: Slice, offset: int) -> Decoded:
    return decode(piece.load(), offset)


def decode(data: Buffer, offset: int) -> Decoded:
    """Decode the complete batches from ``offset`` on."""
    messages: list[Entry] = []
    end = offset
    for position, header in iter_headers(data):
        if header.last_offset < offset:
            continue
        end = header.last_offset + 1
        producer = header.producer_id if header.is_transactional else -1
        if header.is_control:
            messages.append((header.base_offset, None, producer))
        else:
            messages += [
                (record.offset, of_record(record), producer)
                for record in decode_records(data, position)
                if record.offset >= offset
            ]
        if len(messages) >= DECODED_PER_READ:
            break
    return messages, end


def _without(messages: list[Entry], aborted: list[tuple[int, int]]) -> list[Entry]:
    """Return the messages that are not in an aborted transaction: (producer id, first offset)."""
    waiting = sorted(aborted, key=lambda each: each[1], reverse=True)
    open_: set[int] = set()
    kept = []
    for entry in messages:
        offset, message, producer = entry
        while waiting and waiting[-1][1] <= offset:
            open_.add(waiting.pop()[0])
        if message is None:
            open_.discard(producer)
        elif producer not in open_:
            kept.append(entry)
    return kept
