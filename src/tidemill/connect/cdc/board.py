"""The topic ``tidemill.sources``: definitions, commands and statuses of sources.

Commands are pause, restart, delete, and ``snapshot/<table>``. Must not know: a database, or what a
worker does with an order.
"""

from __future__ import annotations

from typing import Self

from tidemill.confluent.clients import Kafka
from tidemill.connect.base import board
from tidemill.connect.cdc.topics import SOURCES


class Board(board.Board):
    """The latest definition, commands and status of each source."""

    @classmethod
    def read(cls, kafka: Kafka, topic: str = SOURCES) -> Self:
        """Return the board as it is now.

        Raises:
            UnreachableError: no broker answers.
        """
        return super().read(kafka, topic)


class BoardFollower(board.BoardFollower):
    """Follows the topic. Use one thread, and ``close`` it."""

    def __init__(self, kafka: Kafka) -> None:
        super().__init__(kafka, SOURCES)


class BoardWriter(board.BoardWriter):
    """Writes records of the topic."""

    def __init__(self, kafka: Kafka) -> None:
        super().__init__(kafka, SOURCES)


def create_topic(kafka: Kafka) -> None:
    """Create the topic if it is missing."""
    board.create_topic(kafka, SOURCES)
