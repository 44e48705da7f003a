"""The layout of stored batches: which offsets of them readers see, and where their bytes are.

Knows bytes of a log, and no share partition.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tidemill.log.format.batch import Buffer, iter_headers
from tidemill.state.queues.window import Acquired
from tidemill.state.share_partitions.partition import Span


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
