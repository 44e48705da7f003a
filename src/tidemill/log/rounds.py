"""The logs of a round of the journal: take what it writes, and record that it is on disk.

Native code does this for all logs in one call, where the extension was built, with the same results
as ``PartitionLog.take_piece`` and ``PartitionLog.finish_journal``. Knows no journal file and no
waiting.
"""

from __future__ import annotations

from typing import TypeAlias

from tidemill import native
from tidemill.log.disk.segment import Segment
from tidemill.log.journal.entry import Piece
from tidemill.log.journal.journal import LOG_BYTES
from tidemill.log.partition.partition import PartitionLog

Taken: TypeAlias = tuple[Piece, Segment]
"""What a round writes of a log, and the segment that has it."""

_native = native.load()


def take_pieces(logs: list[PartitionLog], most_bytes: int) -> list[Taken | None]:
    """Return the unsynced batches of logs for the journal; None for a log that it can't serve.

    Args:
        logs: the logs.
        most_bytes: logs behind the one with which the pieces have so many bytes get no result.
    """
    if _native is not None:
        pieces: list[Taken | None] = _native.take_pieces(logs, most_bytes, Piece, LOG_BYTES)
        return pieces
    found: list[Taken | None] = []
    size = 0
    for log in logs:
        if size >= most_bytes:
            break
        taken = log.take_piece()
        found.append(taken)
        size += 0 if taken is None else taken[0].size
    return found


def finish_pieces(logs: list[PartitionLog], taken: list[Taken]) -> list[tuple[bool, bool]]:
    """Raise the high watermarks of logs to the ends of their pieces, which are in the journal.

    Returns:
        For each log, whether its high watermark rose, and whether it has records above it.
    """
    if _native is not None:
        found: list[tuple[bool, bool]] = _native.finish_pieces(logs, taken)
        return found
    return [
        (log.finish_journal(piece, segment), log.high_watermark < log.log_end_offset)
        for log, (piece, segment) in zip(logs, taken, strict=True)
    ]
