"""Errors of the native edition, before they are worded for the user.

Must not know: Spark, ranges, plans.
"""

from __future__ import annotations


class OldFormatError(Exception):
    """The log contains message format v0 or v1, which this edition does not decode.

    Args:
        position: The offset from which it does.
    """

    def __init__(self, position: int) -> None:
        super().__init__(position)
        self.position = position


class DamagedRecordsError(Exception):
    """The stored records are damaged. The text names the batch and the position in it."""
