"""Rebuild the state of producers from stored batches.

Recovery uses it for the part of a log behind the last snapshot. Knows segments and batches; not
where to begin.
"""

from __future__ import annotations

from tidemill.log.disk.aborted_index import AbortedTransaction
from tidemill.log.disk.segment import Segment
from tidemill.log.errors import InvalidRecordError
from tidemill.log.format.batch import BatchHeader
from tidemill.log.format.markers import decode_marker
from tidemill.log.partition.producers import ProducerStates


def replay_segment(
    states: ProducerStates, segment: Segment, now_ms: int
) -> list[AbortedTransaction]:
    """Apply all batches of a segment to ``states``.

    Returns:
        The entries that the segment's index of aborted transactions must hold.
    """
    aborted = []
    for position, header in segment.batches():
        if header.producer_id >= 0:
            entry = replay_batch(states, segment, position, header, now_ms)
            if entry is not None:
                aborted.append(entry)
    return aborted


def replay_batch(
    states: ProducerStates, segment: Segment, position: int, header: BatchHeader, now_ms: int
) -> AbortedTransaction | None:
    """Apply one stored, verified batch of a producer to ``states``.

    Returns:
        The transaction that the batch aborts, or None.
    """
    if not header.is_control:
        states.update(header, header.base_offset, now_ms)
        return None
    try:
        marker = decode_marker(segment.file.pread(header.size, position))
    except InvalidRecordError as error:
        raise segment.corrupt(str(error), position, header.base_offset) from error
    if marker is None:
        states.see_control(header, now_ms)
        return None
    return states.end(marker, header.base_offset, now_ms)
