"""Errors of acknowledgement windows."""

from __future__ import annotations

from tidemill.errors import TidemillError


class NotAcquiredError(TidemillError):
    """The caller settles a record that it does not hold.

    Attributes:
        offset: the first such record.
    """

    def __init__(self, offset: int) -> None:
        super().__init__(f"offset {offset} is not acquired by this consumer")
        self.offset = offset
