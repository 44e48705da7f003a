"""The logs of a round of the journal: take what it writes, and record that it is on disk.

One call of the extension does each for all logs. Knows no journal file and no waiting.
"""

from __future__ import annotations

from typing import TypeAlias

from tidemill.log.disk.segment import Segment
from tidemill.log.journal.entry import Piece
from tidemill.log.partition.partition import PartitionLog
from tidemill.native import extension

Taken: TypeAlias = tuple[Piece, Segment]
"""What a round writes of a log, and the segment that has it."""


def take_pieces(logs: list[PartitionLog], most_bytes: int) -> list[Taken | None]:
    """Return the unsynced batches of logs for the journal; None for a log that it can't serve.

    A log that ``fits_journal`` gives all that is unsynced, and begins to keep copies of what comes
    next. Where they don't reach the journal after all, a ticket must sync them.

    Args:
        most_bytes: logs behind the one with which the pieces have so many bytes get no result.
    """
    pieces: list[Taken | None] = extension.take_pieces(
        [log.head for log in logs], most_bytes, Piece
    )
    return pieces


def finish_pieces(logs: list[PartitionLog], taken: list[Taken]) -> list[tuple[bool, bool]]:
    """Raise the high watermarks of logs to the ends of their pieces, which are in the journal.

    Returns:
        For each log, whether its high watermark rose, and whether it has records above it.
    """
    return extension.finish_pieces([log.head for log in logs], taken)


def promised_ends(logs: list[PartitionLog]) -> bytes:
    """Return the end of what was promised of each log, as ``journal.extent`` stores it."""
    return extension.promised_ends([log.head for log in logs])
