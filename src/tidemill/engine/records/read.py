"""Read stored batches from many partitions, with long polls.

A read plans which bytes would answer it, waits where there are too few, and loads the bytes when it
is done waiting. Knows logs, the flusher and the waiters. Knows no protocol.
"""

from __future__ import annotations

import asyncio
import contextlib

from tidemill.engine.api import Isolation, PartitionRead, ReadBudget, ReadQuery, ReadResult
from tidemill.engine.error_log import StorageErrorLog
from tidemill.engine.flusher import Flusher
from tidemill.engine.records.partitions import Partitions
from tidemill.engine.waiters import Waiters
from tidemill.errors import TidemillError
from tidemill.log.disk.slice import LENT_BYTES, Slice
from tidemill.log.format.batch import HEADER_SIZE, Buffer, parse_header, peek
from tidemill.log.names import TopicPartition
from tidemill.log.partition.partition import PartitionLog

TURN_BYTES = 1_048_576
"""Bytes that a read loads if it had to wait for memory, or one batch if that is larger."""


PLANNED_TOGETHER = 32
"""Partitions that a read plans or loads in one piece."""


class _Plan:
    """The bytes that answer a query, as far as they are found."""

    __slots__ = ("is_empty", "left", "results", "slices")

    def __init__(self, left: int) -> None:
        self.left = left
        self.is_empty = True
        """Whether no bytes are found yet: then a batch can be larger than what is left."""
        self.results: list[ReadResult] = []
        self.slices: list[Slice | None] = []


class Reader:
    """Reads stored batches.

    Args:
        max_bytes: the most bytes that one read returns. A first batch that is larger is returned
            whole.

    Attributes:
        bytes_by_topic: how many bytes reads have returned since the start, for metrics.
    """

    def __init__(
        self,
        partitions: Partitions,
        flusher: Flusher,
        waiters: Waiters,
        errors: StorageErrorLog,
        max_bytes: int,
    ) -> None:
        self._partitions = partitions
        self._flusher = flusher
        self._waiters = waiters
        self._errors = errors
        self._max_bytes = max_bytes
        self.bytes_by_topic: dict[str, int] = {}

    def read_now(self, query: ReadQuery) -> list[ReadResult] | None:
        """Read without waiting, from few partitions.

        Returns:
            What ``read`` returns; None if that must wait: for records, for memory or for a disk,
            or because the partitions are many.
        """
        if len(query.partitions) >= PLANNED_TOGETHER:
            return None
        plan = _Plan(self._limit(query, None))
        for part in query.partitions:
            self._find(query, part, plan)
        found = _found(plan.slices)
        waits = query.max_wait_ms > 0 and not self._partitions.is_stopping
        if waits and not _is_enough(query, plan.results, found):
            return None
        if (
            found
            and query.budget is not None
            and query.budget.share(total := _total(plan.slices)) != total
        ):
            return None
        for part, result, piece in zip(query.partitions, plan.results, plan.slices, strict=True):
            if piece is not None and piece.size and not self._load_now(query, part, result, piece):
                return None
        return plan.results

    def _load_now(
        self, query: ReadQuery, part: PartitionRead, result: ReadResult, piece: Slice
    ) -> bool:
        """Lend or load cached bytes; return False if a thread must read them first."""
        try:
            if query.lends and piece.size >= LENT_BYTES:
                log = self._partitions.store.partitions.get(
                    TopicPartition(part.topic, part.partition)
                )
                if _may_lend(query, log, piece):
                    result.lent = piece.lend()
                    if result.lent is not None:
                        self._count(part.topic, piece.size)
                        return True
                    if piece.is_cold():
                        return False
            data = piece.load_nowait()
            if data is None:
                return False
            result.records = data
        except TidemillError as error:
            self._errors.report(error, f"{part.topic}-{part.partition}")
            result.error = error
        else:
            self._count(part.topic, piece.size)
            if query.isolation is Isolation.READ_COMMITTED:
                self._find_aborted(part, result, piece)
        return True

    def _count(self, topic: str, size: int) -> None:
        self.bytes_by_topic[topic] = self.bytes_by_topic.get(topic, 0) + size

    async def read(self, query: ReadQuery) -> list[ReadResult]:
        """Read, and wait for more while fewer than ``min_bytes`` are there.

        A partition with an error ends the wait.

        Returns:
            One result per partition, in the order of the query.
        """
        partitions = [TopicPartition(p.topic, p.partition) for p in query.partitions]
        loop = asyncio.get_running_loop()
        deadline = loop.time() + query.max_wait_ms / 1000
        while True:
            results, slices = await self._plan(query)
            found = _found(slices)
            left = deadline - loop.time()
            if _is_enough(query, results, found) or left <= 0 or self._partitions.is_stopping:
                if query.budget is not None and found:
                    results, slices = await self._within(query.budget, query, results, slices)
                await self._load(query, partitions, results, slices)
                if query.isolation is Isolation.READ_COMMITTED:
                    await self._add_aborted(query, results, slices)
                return results
            if len(partitions) >= PLANNED_TOGETHER and self._has_news(partitions, results):
                continue  # records arrived while the read was planned, in parts
            woken = self._waiters.register(partitions, _stable_offsets(query, results))
            try:
                self._hurry(partitions)
                await asyncio.wait([woken], timeout=left)
            finally:
                self._waiters.unregister(woken, partitions)

    async def _within(
        self,
        budget: ReadBudget,
        query: ReadQuery,
        results: list[ReadResult],
        slices: list[Slice | None],
    ) -> tuple[list[ReadResult], list[Slice | None]]:
        """Reserve memory for a plan. If there is less than it needs, cut it or wait."""
        wanted = _total(slices)
        share = budget.share(wanted)
        if share is None:
            _, least = await self._plan(query, TURN_BYTES)
            await budget.turn(_total(least))
            # Segments can be deleted while it waits.
            results, slices = await self._plan(query, _total(least))
        elif share < wanted:
            budget.hold(share)  # before the plan, which can pause
            results, slices = await self._plan(query, share)
        budget.hold(_total(slices))
        return results, slices

    async def _plan(
        self, query: ReadQuery, most: int | None = None
    ) -> tuple[list[ReadResult], list[Slice | None]]:
        """Find the stored bytes that answer the query now. This reads indexes at most.

        Args:
            most: bytes that the answer has at most, if its first batch is not larger.
        """
        plan = _Plan(self._limit(query, most))
        for index, part in enumerate(query.partitions):
            if query.breathe is not None and index % PLANNED_TOGETHER == PLANNED_TOGETHER - 1:
                await query.breathe()
            self._find(query, part, plan)
        return plan.results, plan.slices

    def _limit(self, query: ReadQuery, most: int | None) -> int:
        limit = min(query.max_bytes, self._max_bytes)
        return limit if most is None else min(limit, most)

    def _find(self, query: ReadQuery, part: PartitionRead, plan: _Plan) -> None:
        """Find the stored bytes of one partition that answer the query now."""
        result = ReadResult()
        piece: Slice | None = None
        plan.results.append(result)
        try:
            log = self._partitions.readable(part.topic, part.partition, part.leader_epoch)
            result.high_watermark = log.high_watermark
            result.last_stable_offset = log.last_stable_offset
            result.log_start_offset = log.log_start_offset
            if plan.left > 0 or plan.is_empty:
                limit = (
                    log.last_stable_offset
                    if query.isolation is Isolation.READ_COMMITTED
                    else log.high_watermark
                )
                most = min(part.max_bytes, plan.left)
                piece = _read_below(log, part, most, limit, plan.is_empty)
        except TidemillError as error:
            self._errors.report(error, f"{part.topic}-{part.partition}")
            result.error = error
        if piece is not None and piece.size:
            plan.left -= piece.size
            plan.is_empty = False
        plan.slices.append(piece)

    def _has_news(self, partitions: list[TopicPartition], results: list[ReadResult]) -> bool:
        """Whether a partition has moved since it was planned."""
        logs = self._partitions.store.partitions
        return any(
            log is not None and log.high_watermark != result.high_watermark
            for log, result in zip(map(logs.get, partitions), results, strict=True)
        )

    def _hurry(self, partitions: list[TopicPartition]) -> None:
        """Request a sync of written data that the waiting readers would see after it."""
        for tp in partitions:
            log = self._partitions.store.partitions.get(tp)
            if log is None or log.high_watermark == log.log_end_offset:
                continue
            if self._waiters.wait_for_sync(log):
                self._flusher.request(log)

    async def _load(
        self,
        query: ReadQuery,
        partitions: list[TopicPartition],
        results: list[ReadResult],
        slices: list[Slice | None],
    ) -> None:
        """Load the bytes: from the page cache directly, from a cold disk on a thread."""
        if query.lends:
            await self._lend(query, partitions, results, slices)
        loaded = 0
        for tp, result, piece in zip(partitions, results, slices, strict=True):
            if piece is None or not piece.size:
                continue
            self._count(tp.topic, piece.size)
            if result.lent is not None:
                continue
            loaded += 1
            if query.breathe is not None and loaded % PLANNED_TOGETHER == 0:
                await query.breathe()
            try:
                data = piece.load_nowait()
                if data is None:
                    data = await asyncio.get_running_loop().run_in_executor(None, piece.load)
                result.records = data
            except TidemillError as error:
                self._errors.report(error, tp)
                result.error = error

    async def _lend(
        self,
        query: ReadQuery,
        partitions: list[TopicPartition],
        results: list[ReadResult],
        slices: list[Slice | None],
    ) -> None:
        """Lend the long ranges that need no look at their bytes. What fails here is loaded."""
        cold: list[Slice] = []
        for attempt in range(2):
            for number, (tp, result, piece) in enumerate(
                zip(partitions, results, slices, strict=True)
            ):
                if piece is None or piece.size < LENT_BYTES or result.lent is not None:
                    continue
                if query.breathe is not None and number % PLANNED_TOGETHER == PLANNED_TOGETHER - 1:
                    await query.breathe()
                if not _may_lend(query, self._partitions.store.partitions.get(tp), piece):
                    continue
                with contextlib.suppress(TidemillError):
                    result.lent = piece.lend()
                    if result.lent is None and not attempt and piece.is_cold():
                        cold.append(piece)
            if not cold or attempt:
                return
            await asyncio.get_running_loop().run_in_executor(None, _warm, cold)

    async def _add_aborted(
        self, query: ReadQuery, results: list[ReadResult], slices: list[Slice | None]
    ) -> None:
        """Add the aborted transactions in the bytes. Their reader drops them."""
        loaded = 0
        for part, result, piece in zip(query.partitions, results, slices, strict=True):
            if piece is None or not len(result.records):
                continue
            loaded += 1
            if query.breathe is not None and loaded % PLANNED_TOGETHER == 0:
                await query.breathe()
            self._find_aborted(part, result, piece)

    def _find_aborted(self, part: PartitionRead, result: ReadResult, piece: Slice) -> None:
        """Add the aborted transactions in the bytes of one partition."""
        try:
            log = self._partitions.log(part.topic, part.partition)
            if log.holds(piece.segment):
                result.aborted = aborted_in(log, part.offset, result.records)
            else:
                # The segment was deleted or compacted during the read, and the index of aborted
                # transactions with it. The reader asks again.
                result.records = b""
        except TidemillError as error:
            self._errors.report(error, f"{part.topic}-{part.partition}")
            result.records = b""
            result.error = error


def _warm(slices: list[Slice]) -> None:
    """Read slices into the page cache, in a thread."""
    for piece in slices:
        with contextlib.suppress(TidemillError):
            piece.warm()


def _may_lend(query: ReadQuery, log: PartitionLog | None, piece: Slice) -> bool:
    """Return whether the bytes can be sent without a look for aborted transactions in them."""
    if query.isolation is not Isolation.READ_COMMITTED:
        return True
    return log is not None and log.holds(piece.segment) and not log.has_aborted_transactions


def _found(slices: list[Slice | None]) -> int:
    """Return the bytes that the readers could have had with their limits."""
    return sum(piece.found for piece in slices if piece is not None)


def _is_enough(query: ReadQuery, results: list[ReadResult], found: int) -> bool:
    return found >= query.min_bytes or any(result.error is not None for result in results)


def _total(slices: list[Slice | None]) -> int:
    return sum(piece.size for piece in slices if piece is not None)


def _stable_offsets(query: ReadQuery, results: list[ReadResult]) -> list[int] | None:
    """Return each partition's last stable offset for a reader of committed records, else None."""
    if query.isolation is not Isolation.READ_COMMITTED:
        return None
    return [result.last_stable_offset for result in results]


def _read_below(
    log: PartitionLog, part: PartitionRead, max_bytes: int, limit: int, min_one: bool
) -> Slice | None:
    if limit <= part.offset <= log.log_end_offset:
        return None
    return log.read(part.offset, max_bytes, limit_offset=limit, min_one=min_one)


def aborted_in(log: PartitionLog, offset: int, records: Buffer) -> tuple[tuple[int, int], ...]:
    """Return (producer id, first offset) of each aborted transaction that overlaps the bytes.

    Args:
        offset: the offset from which the bytes were read.
        records: batches below the last stable offset. The last one may be cut.
    """
    if not len(records) or not log.has_aborted_transactions:
        return ()
    return tuple(log.aborted_transactions(offset, _end_of(records)))


def _end_of(records: Buffer) -> int:
    """Return the offset after the last batch whose header is complete."""
    position, last = 0, 0
    while len(records) - position >= HEADER_SIZE:
        last = position
        position += peek(records, position)[1]
    return parse_header(records, last).last_offset + 1
