"""A state machine's own log: records are appended, synced, and only then replayed.

State machine replication with one replica: recovery is the same replay, from the start of the
log. Knows logs and the flusher, and nothing of what the records mean.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from tidemill.broker.flusher import Flusher
from tidemill.clock import Clock
from tidemill.errors import TidemillError
from tidemill.log.batch import Buffer, iter_headers
from tidemill.log.partition import PartitionLog
from tidemill.log.records import NewRecord, decode_records, encode_batch
from tidemill.state.outcome import StateRecord

READ_BYTES = 1 << 20
BATCH_BYTES = 1 << 18
"""More records than that go into several batches: one must fit a segment."""


class Journal:
    """Appends state records to one internal partition.

    Args:
        log: the internal partition.
        flusher: what makes it durable.
        clock: gives the records their timestamps.
    """

    def __init__(self, log: PartitionLog, flusher: Flusher, clock: Clock) -> None:
        self.log = log
        self._flusher = flusher
        self._clock = clock

    def latest(self) -> dict[bytes, bytes | None]:
        """The last value of each key, for recovery: what compaction may remove changes no state.

        Raises:
            CorruptLogError: the log is damaged.
        """
        return dict(self._records())

    def _records(self) -> Iterator[tuple[bytes, bytes | None]]:
        """All records (key, value) of the log, oldest first.

        Raises:
            CorruptLogError: the log is damaged.
        """
        offset = self.log.log_start_offset
        while offset < self.log.log_end_offset:
            piece = self.log.read(offset, READ_BYTES, limit_offset=self.log.log_end_offset)
            if piece is None:
                return
            for batch, last_offset in _batches(piece.load()):
                for record in decode_records(batch):
                    if record.offset >= offset and record.key is not None:
                        yield (
                            bytes(record.key),
                            None if record.value is None else bytes(record.value),
                        )
                offset = last_offset + 1

    def submit(
        self,
        records: Sequence[StateRecord],
        done: Callable[[Exception | None], None],
    ) -> None:
        """Append ``records``, all or none; call ``done`` when they are on disk, or with the error.

        Calls come in the order of submission, so ``done`` may replay into the state. Where they
        take several batches, a power cut before ``done`` may leave the first of them.
        """
        if not records:
            done(None)
            return
        now_ms = self._clock.now_ms()
        batches = bytearray()
        for part in _parts(records):
            batches += encode_batch(part, timestamp_ms=now_ms)
        try:
            info = self.log.append(batches, now_ms=now_ms, from_client=False)
        except TidemillError as error:
            done(error)
            return
        self._flusher.written(self.log)
        self._flusher.call_when_durable(self.log, info.last_offset + 1, done)

    def when_settled(self, done: Callable[[Exception | None], None]) -> None:
        """Call ``done`` once all that was submitted before is durable and its ``done`` called."""
        self._flusher.call_when_durable(self.log, self.log.log_end_offset, done)


def _parts(records: Sequence[StateRecord]) -> Iterator[list[NewRecord]]:
    part: list[NewRecord] = []
    size = 0
    for record in records:
        size += len(record.key) + len(record.value or b"")
        if part and size > BATCH_BYTES:
            yield part
            part, size = [], len(record.key) + len(record.value or b"")
        part.append(NewRecord(record.key, record.value))
    yield part


def _batches(data: Buffer) -> Iterator[tuple[memoryview, int]]:
    view = memoryview(data)
    for position, header in iter_headers(view):
        yield view[position : position + header.size], header.last_offset
