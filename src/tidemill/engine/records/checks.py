"""Check the batches of clients before they are appended: short ones now, others in slices.

A check reads the bytes of the batch and the configs of its topic, and changes nothing. So it can
take many turns of the event loop, and the append follows in one. The batches of one client keep
their order (``WriteOrder``). Knows logs and slices, and no durability.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from tidemill.clock import Clock
from tidemill.engine.api import PartitionWrite
from tidemill.engine.errors import BrokerBusyError
from tidemill.engine.records.partitions import Partitions
from tidemill.engine.records.slices import Slices
from tidemill.errors import TidemillError
from tidemill.log.format.batch import CODEC_MASK, HEADER_SIZE, parse_header
from tidemill.log.format.validate import Checked, check_quickly
from tidemill.log.partition.partition import PartitionLog

QUICK_RECORDS = 2048
"""Most records of a request that are checked without a pause, in about 2 ms."""
QUICK_COMPRESSED = 4
"""Most compressed batches of a request that are decompressed without another thread."""
MAX_WAITING_BYTES = 1 << 28
"""Most bytes of batches whose check takes longer. The requests of open connections have less: this
limits those whose clients have left."""

Outcome = Checked | TidemillError


class WriteOrder:
    """Keeps the writes of one client in order while an earlier one is still checked."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: asyncio.Future[None] | None = None

    @property
    def is_free(self) -> bool:
        """Whether all earlier writes are appended."""
        return self._last is None or self._last.done()

    def enter(self) -> tuple[Awaitable[None] | None, Callable[[], None]]:
        """Take the next place.

        Returns:
            What the append must wait for, and the function to call after it.
        """
        before = None if self.is_free else self._last
        mine = self._last = asyncio.get_running_loop().create_future()
        return before, lambda: mine.set_result(None)


class Checks:
    """Checks batches of clients."""

    def __init__(self, partitions: Partitions, slices: Slices, clock: Clock) -> None:
        self._partitions = partitions
        self._slices = slices
        self._clock = clock
        self._waiting_bytes = 0

    def now(
        self, writes: Sequence[PartitionWrite], now_ms: int
    ) -> list[tuple[PartitionLog | None, Outcome]] | None:
        """Check all writes of a request; return None if that would take too long.

        Returns:
            The log of each write, if there is one, and the outcome.
        """
        outcomes: list[tuple[PartitionLog | None, Outcome]] = []
        records = 0
        for write in writes:
            log = None
            try:
                log = self._partitions.writable(write.topic, write.partition)
                checked = check_quickly(write.records, log.config, now_ms)
            except TidemillError as error:
                outcomes.append((log, _without_frames(error)))
                continue
            if checked is None:
                return self._slowly_now(writes, now_ms)
            records += checked.headers[0].record_count
            if records > QUICK_RECORDS:
                return None
            outcomes.append((log, checked))
        return outcomes

    def _slowly_now(
        self, writes: Sequence[PartitionWrite], now_ms: int
    ) -> list[tuple[PartitionLog | None, Outcome]] | None:
        records = compressed = 0
        for write in writes:
            if len(write.records) >= HEADER_SIZE:
                header = parse_header(write.records)
                records += max(header.record_count, 0)
                compressed += bool(header.attributes & CODEC_MASK)
        if records > QUICK_RECORDS or compressed > QUICK_COMPRESSED:
            return None
        outcomes: list[tuple[PartitionLog | None, Outcome]] = []
        for write in writes:
            log = None
            try:
                log = self._partitions.writable(write.topic, write.partition)
                steps = log.check(write.records, now_ms=now_ms)
                while next(steps) is None:
                    pass
            except StopIteration as end:
                outcomes.append((log, end.value))
            except TidemillError as error:
                outcomes.append((log, _without_frames(error)))
            else:
                steps.close()
                return None
        return outcomes

    def keep(self, writes: Sequence[PartitionWrite]) -> list[PartitionWrite]:
        """Return the writes with bytes of their own, for ``later``. ``drop`` must follow.

        Raises:
            BrokerBusyError: too many bytes wait for a check.
        """
        size = sum(len(write.records) for write in writes)
        if self._waiting_bytes + size > MAX_WAITING_BYTES:
            raise BrokerBusyError(
                f"{self._waiting_bytes} bytes of record batches wait until they are checked"
            )
        self._waiting_bytes += size
        return [replace(write, records=memoryview(bytearray(write.records))) for write in writes]

    def drop(self, writes: Sequence[PartitionWrite]) -> None:
        """Release the bytes of ``keep``."""
        self._waiting_bytes -= sum(len(write.records) for write in writes)

    async def later(
        self, writes: Sequence[PartitionWrite], known: Sequence[Outcome | None]
    ) -> list[Outcome]:
        """Check the writes in slices, one after the other.

        Args:
            known: an outcome per write that is still valid, or None.
        """
        outcomes: list[Outcome] = []
        for write, outcome in zip(writes, known, strict=True):
            if outcome is None:
                outcome = await self._check(write)
            outcomes.append(outcome)
        return outcomes

    async def _check(self, write: PartitionWrite) -> Outcome:
        try:
            log = self._partitions.writable(write.topic, write.partition)
            return await self._slices.run(log.check(write.records, now_ms=self._clock.now_ms()))
        except TidemillError as error:
            return _without_frames(error)

    def still_valid(
        self, writes: Sequence[PartitionWrite], outcomes: Sequence[Outcome]
    ) -> list[Outcome | None]:
        """Return the outcomes; None for a batch whose topic has other configs by now."""
        return [
            outcome if self._is_valid(write, outcome) else None
            for write, outcome in zip(writes, outcomes, strict=True)
        ]

    def _is_valid(self, write: PartitionWrite, outcome: Outcome) -> bool:
        if isinstance(outcome, TidemillError):
            return True
        try:
            log = self._partitions.writable(write.topic, write.partition)
        except TidemillError:
            return True  # the append finds the same error
        return log.config is outcome.config


def _without_frames(error: TidemillError) -> TidemillError:
    """Return an error that does not keep the memory of the check: it waits for its answer."""
    error.__traceback__ = error.__context__ = error.__cause__ = None
    return error
