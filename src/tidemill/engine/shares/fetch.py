"""Acquires records for members of share groups, with long polls.

What is acquired depends on the bytes that were read, because batches are acquired as a whole where
the member allows it. A read can take another thread; what it found is compared with the share
partition as it is then. Knows logs and share partitions, and no protocol.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from tidemill.engine.error_log import StorageErrorLog
from tidemill.engine.flusher import Flusher
from tidemill.engine.records.read import aborted_in
from tidemill.engine.shares.api import SharedRecords, ShareQuery
from tidemill.engine.shares.core import LiveShare, ShareCore
from tidemill.errors import TidemillError
from tidemill.log.disk.slice import Slice
from tidemill.log.format.batch import Buffer, iter_headers
from tidemill.state.queues.window import Acquired
from tidemill.state.share_partitions.format import PartitionKey
from tidemill.state.share_partitions.partition import Span

READ_BYTES = 262_144
"""Bytes of a log that one piece has, or one batch if that is larger."""
PIECES = 64
"""Pieces that are read of a partition for one request, and that have nothing to acquire."""


_Opened = tuple[LiveShare, SharedRecords]


class _Budget:
    """The records and bytes that one request can still get."""

    __slots__ = ("first", "held", "max_bytes", "records")

    def __init__(self, query: ShareQuery) -> None:
        self.records = query.most_records
        self.max_bytes = query.max_bytes
        self.held = 0
        self.first = True

    @property
    def is_used(self) -> bool:
        return self.records <= 0 or (self.max_bytes <= 0 and not self.first)


class ShareFetcher:
    """Acquires records."""

    def __init__(self, core: ShareCore, flusher: Flusher, errors: StorageErrorLog) -> None:
        self._core = core
        self._flusher = flusher
        self._errors = errors

    async def fetch(self, query: ShareQuery) -> list[SharedRecords]:
        """Acquire records; wait while there are none.

        A partition with an error ends the wait.

        Returns:
            One result per partition, in the order of the query.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + query.max_wait_ms / 1000
        while True:
            results, opened = await self._open(query)
            tps = [live.log.tp for live, _ in opened]
            woken = self._core.wait(tps)  # before the look, so that nothing is missed
            try:
                await self._acquire_all(query, opened)
                left = deadline - loop.time()
                answered = any(each.acquired or each.error is not None for each in results)
                if answered or left <= 0 or self._core.is_stopping:
                    return results
                self._hurry(opened)
                await asyncio.wait([woken], timeout=left)
            finally:
                self._core.end_wait(woken, tps)

    async def _open(self, query: ShareQuery) -> tuple[list[SharedRecords], list[_Opened]]:
        """Return a result for each partition, and the partitions without an error."""
        results = [SharedRecords() for _ in query.partitions]
        opened: list[_Opened] = []
        for each, result in zip(query.partitions, results, strict=True):
            key = PartitionKey(query.group_id, each.topic_id, each.partition)
            try:
                opened.append((await self._core.open(key), result))
            except TidemillError as error:
                self._errors.report(error, f"{each.topic_id}-{each.partition}")
                result.error = error.with_traceback(None)
            await query.breathe()
        return results, opened

    async def _acquire_all(self, query: ShareQuery, opened: Sequence[_Opened]) -> None:
        budget = _Budget(query)
        for live, result in opened:
            if budget.is_used:
                break
            try:
                await self._acquire(query, live, result, budget)
            except TidemillError as error:
                self._errors.report(error, live.log.tp)
                if not result.acquired:
                    result.error = error.with_traceback(None)
            await query.breathe()

    async def _acquire(
        self, query: ShareQuery, live: LiveShare, result: SharedRecords, budget: _Budget
    ) -> None:
        """Acquire records of one partition, piece by piece."""
        core, log, partition = self._core, live.log, live.partition
        limits = core.limits(query.group_id)
        committed = core.reads_committed(query.group_id)
        acquired = []
        for _ in range(PIECES):
            if budget.is_used or not core.is_live(live):
                break
            core.partitions.readable(*log.tp, None)
            partition.truncate(log.log_start_offset)
            end = log.last_stable_offset if committed else log.high_watermark
            offset = partition.first_available(end, limits)
            if offset is None or offset >= end:
                break
            most = min(READ_BYTES, max(budget.max_bytes, 1))
            piece = log.read(offset, most, limit_offset=end, min_one=budget.first)
            if piece is None or not piece.size:
                break
            data = await self._load(query, piece, budget)
            if not core.is_live(live):
                break
            aborted: tuple[tuple[int, int], ...] = ()
            if committed:
                if not log.holds(piece.segment):
                    continue
                aborted = aborted_in(log, offset, data)
            layout = layout_of(data, offset, aborted)
            if not layout.spans:
                break
            runs = partition.acquire(
                core.owner(query.group_id, query.member_id),
                layout.spans,
                budget.records,
                limits,
                core.clock.monotonic_ms(),
                exact=query.exact,
            )
            if runs:
                pieces = bytes_of(data, layout, runs)
                size = sum(map(len, pieces))
                budget.records -= sum(run.last - run.first + 1 for run in runs)
                budget.max_bytes -= size
                budget.held += size
                budget.first = False
                result.records += pieces
                acquired += runs
                result.acquired = acquired
                core.acquired(live)
        if query.budget is not None:
            query.budget.hold(budget.held)

    async def _load(self, query: ShareQuery, piece: Slice, budget: _Budget) -> Buffer:
        """Load the bytes: from the page cache directly, from a cold disk on a thread."""
        if query.budget is not None:
            if query.budget.share(piece.size) is None:
                await query.budget.turn(piece.size)
            query.budget.hold(budget.held + piece.size)
        data = piece.load_nowait()
        if data is None:
            data = await asyncio.get_running_loop().run_in_executor(None, piece.load)
        return data

    def _hurry(self, opened: Sequence[_Opened]) -> None:
        """Request a sync of written data that the waiting members would get after it."""
        for live, _ in opened:
            if live.log.high_watermark < live.log.log_end_offset:
                self._flusher.request(live.log)


class Layout(NamedTuple):
    """Batches of a read.

    Attributes:
        spans: the offsets from the first one that was asked for, without holes.
        places: position and size of the bytes of each span; (0, 0) for a gap.
    """

    spans: list[Span]
    places: list[tuple[int, int]]


def layout_of(data: Buffer, offset: int, aborted: Sequence[tuple[int, int]]) -> Layout:
    """Return the layout of complete batches.

    Args:
        data: stored batches; the last one can be cut.
        offset: where the read began.
        aborted: (producer id, first offset) of the aborted transactions in the bytes, which readers
            must not see.
    """
    spans: list[Span] = []
    places: list[tuple[int, int]] = []
    waiting = sorted(aborted, key=lambda each: each[1], reverse=True)
    ended: set[int] = set()
    for position, header in iter_headers(data):
        if header.base_offset > offset:
            spans.append(Span(offset, header.base_offset - 1, False))
            places.append((0, 0))
        while waiting and waiting[-1][1] <= header.last_offset:
            ended.add(waiting.pop()[0])
        readable = header.record_count > 0 and not header.is_control
        if header.is_control:
            ended.discard(header.producer_id)
        elif header.is_transactional and header.producer_id in ended:
            readable = False
        spans.append(Span(header.base_offset, header.last_offset, readable))
        places.append((position, header.size))
        offset = header.last_offset + 1
    return Layout(spans, places)


def bytes_of(data: Buffer, layout: Layout, runs: Sequence[Acquired]) -> list[Buffer]:
    """Return the batches that contain acquired records, in few pieces."""
    pieces: list[tuple[int, int]] = []
    wanted = iter(runs)
    run = next(wanted, None)
    for span, (position, size) in zip(layout.spans, layout.places, strict=True):
        while run is not None and run.last < span.first:
            run = next(wanted, None)
        if run is None:
            break
        if run.first > span.last or not size:
            continue
        if pieces and pieces[-1][1] == position:
            pieces[-1] = (pieces[-1][0], position + size)
        else:
            pieces.append((position, position + size))
    view = memoryview(data)
    return [view[first:end] for first, end in pieces]
