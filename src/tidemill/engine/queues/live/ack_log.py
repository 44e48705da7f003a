"""Stores what windows know in the internal topic of queues, a few milliseconds after it changed.

Acknowledgements are applied first and stored after that: if the broker is killed in between, the
messages are delivered once more. A window's records are written together. Segments whose messages
are all done are deleted when that is on disk. Knows windows and logs, and no consumers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence

import structlog

from tidemill.clock import Clock
from tidemill.engine.error_log import Repetitions
from tidemill.engine.queues.live.lane import Lane
from tidemill.engine.state_log import StateLog
from tidemill.errors import TidemillError
from tidemill.log.errors import DiskFullError
from tidemill.state.outcome import StateRecord
from tidemill.state.queues.format import (
    SIZES,
    Kind,
    StateKey,
    decode_key,
    encode_key,
    encode_waiting,
)

FLUSH_S = 0.005
"""How long an acknowledgement waits for others, so that they are written together."""
RETRY_S = 1.0

logger = structlog.get_logger("tidemill.queues")

Stored = dict[StateKey, dict[int, bytes]]


class AckLog:
    """Writes the changes of windows.

    Args:
        free: called with a lane and an offset, as soon as what is done below it is on disk. While
            a full disk refuses that, also without: otherwise a disk that is full of finished
            messages would stay full. A start finds that the log begins behind them.
    """

    def __init__(
        self, state_log: StateLog, clock: Clock, free: Callable[[Lane, int], None]
    ) -> None:
        self._state_log = state_log
        self._logged = Repetitions(clock)
        self._free = free
        self._lanes: dict[Lane, StateKey] = {}
        self._dirty: dict[Lane, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._unused: Stored = {}
        self._extra: dict[bytes, bytes | None] = {}
        self._after: list[Callable[[], None]] = []
        self._stopped = False

    # --- start and stop --------------------------------------------------------------------------

    def recover(self) -> None:
        """Read what is stored."""
        for data, value in self._state_log.latest().items():
            if value is not None:
                with self._state_log.naming_place():
                    key = decode_key(data)
                self._unused.setdefault(key.of_window(), {})[key.block] = value

    def stored(self, key: StateKey) -> Mapping[int, bytes]:
        """Return, once, what was stored of a window or of a target of dead letters."""
        return self._unused.pop(key, {})

    def stored_letters(self) -> list[tuple[StateKey, Mapping[int, bytes]]]:
        """Return, once, what was stored of the targets of dead letters."""
        found = [each for each in self._unused.items() if each[0].kind is Kind.LETTERS]
        for key, _ in found:
            del self._unused[key]
        return [(key, values) for key, values in found]

    def forget_unused(self, kept: Callable[[StateKey], bool]) -> None:
        """Delete what is stored of windows that no queue has any more."""
        records = []
        for key in [key for key in self._unused if not kept(key)]:
            records += [_record(key, block, None) for block in self._unused.pop(key)]
        self._submit(records)

    def stop(self) -> None:
        """Write what changed. Nothing is written after that."""
        if self._timer is not None:
            self._timer.cancel()
        self.flush()
        self._stopped = True

    # --- lanes -----------------------------------------------------------------------------------

    def add(self, lane: Lane, key: StateKey) -> None:
        """Store the changes of a lane from now on."""
        self._lanes[lane] = key

    def remove(self, lane: Lane) -> None:
        """Delete what is stored of a lane."""
        key = self._lanes.pop(lane, None)
        self._dirty.pop(lane, None)
        if key is not None:
            self._submit([_record(key, block, None) for block in lane.stored_keys()])

    def changed(self, lane: Lane) -> None:
        """Note that a lane's window changed. It is written soon."""
        self._dirty[lane] = None
        self._later(FLUSH_S)

    def note(self, key: StateKey, value: bytes | None) -> None:
        """Write another record of the topic soon."""
        self._extra[encode_key(key)] = value
        self._later(FLUSH_S)

    def store(
        self, values: Mapping[StateKey, bytes], done: Callable[[Exception | None], None]
    ) -> None:
        """Write other records of the topic now. Call ``done`` when they are on disk."""
        records = [StateRecord(encode_key(key), value) for key, value in values.items()]
        self._state_log.submit(records, done)

    def after(self, lane: Lane, then: Callable[[], None]) -> None:
        """Call ``then`` when what a lane's window is now is on disk."""
        self._after.append(then)
        self.changed(lane)

    def when_stored(self, done: Callable[[], None]) -> None:
        """Write all changes now. Call ``done`` when all changes so far are on disk."""
        self._after.append(done)
        self.flush()

    def _later(self, delay_s: float) -> None:
        if self._timer is None and not self._stopped:
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self.flush()

    # --- write -----------------------------------------------------------------------------------

    def delivered(self, lanes: Iterable[Lane]) -> None:
        """Write, before messages are handed over, that they possibly were delivered.

        The record is in the operating system's hands when this returns, so it survives the end of
        the process; a message that was out is then marked as redelivered.
        """
        known = [lane for lane in lanes if lane in self._lanes]
        records = self._take(known)
        if records and not self._stopped:
            try:
                self._state_log.append(records)
            except TidemillError as error:
                self._failed(error, known)

    def flush(self) -> None:
        """Write all changes, and request that they are synced."""
        lanes = [lane for lane in self._dirty if lane in self._lanes]
        self._dirty.clear()
        extra = [StateRecord(*each) for each in self._extra.items()]
        self._extra.clear()
        after, self._after = self._after, []
        self._submit([*self._take(lanes), *extra], lanes, extra, after)

    def _take(self, lanes: Iterable[Lane]) -> list[StateRecord]:
        records = []
        for lane in lanes:
            key = self._lanes[lane]
            records += [_record(key, *each) for each in lane.window.take_records()]
            note = lane.take_note()
            if note is not None:
                records.append(_record(key, SIZES, encode_waiting(note)))
        return records

    def _submit(
        self,
        records: list[StateRecord],
        lanes: Iterable[Lane] = (),
        extra: Sequence[StateRecord] = (),
        after: Sequence[Callable[[], None]] = (),
    ) -> None:
        if self._stopped or not (records or lanes or after):
            return
        starts = [(lane, lane.window.start) for lane in lanes]

        def done(error: Exception | None) -> None:
            if error is not None:
                self._extra = {each.key: each.value for each in extra} | self._extra
                self._after += after
                self._failed(error, [lane for lane, _ in starts])
                return
            for lane, start in starts:
                lane.stored_start = max(lane.stored_start, start)
                self._free(lane, lane.stored_start)
            for then in after:
                then()

        if records:
            self._state_log.submit(records, done)
        else:
            self._state_log.when_settled(done)

    def _failed(self, error: Exception, lanes: Iterable[Lane]) -> None:
        """Write everything again later: the records that were taken of lanes are lost."""
        if self._logged.is_new(str(type(error))):
            logger.error("queue.state_not_stored", error=str(error))
        for lane in lanes:
            if lane in self._lanes:
                lane.all_changed()
                self._dirty[lane] = None
                if isinstance(error, DiskFullError):
                    self._free(lane, lane.window.start)
        if lanes or self._extra or self._after:
            self._later(RETRY_S)


def _record(key: StateKey, block: int, value: bytes | None) -> StateRecord:
    return StateRecord(encode_key(key._replace(block=block)), value)
