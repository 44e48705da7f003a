"""Parts of all ``webhook`` commands: the board, checks, orders. Must not know: a command."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidemill.cli.output import NotFoundError
from tidemill.cli.source.kafka import kafka_of
from tidemill.connect.webhooks.topics import WEBHOOKS

if TYPE_CHECKING:
    from tidemill.confluent.clients import Kafka
    from tidemill.connect.base.board import Board


def board_of(kafka: Kafka) -> Board:
    """Return all definitions, commands and statuses."""
    from tidemill.connect.base.board import Board

    return Board.read(kafka, WEBHOOKS)


def require(board: Board, name: str) -> None:
    """Check that a webhook exists."""
    if name not in board.definitions:
        raise NotFoundError(
            f"webhook {name} does not exist", hint="List the webhooks: tidemill webhook list"
        )


def require_changeable(board: Board, name: str) -> None:
    """Check that a webhook exists, and that no settings file declares it."""
    from tidemill.connect.base.declared import check_not_declared

    require(board, name)
    check_not_declared(board, "webhook", name)


def order(kafka: Kafka, name: str, command: str, **payload: Any) -> None:
    """Store a command."""
    from tidemill.connect.base.board import BoardWriter

    writer = BoardWriter(kafka, WEBHOOKS)
    writer.command(name, command, **payload)
    writer.flush()


def cluster(servers: str, properties: list[str] | None, name: str) -> tuple[Kafka, Board]:
    """Return the cluster and the board, after a check that a webhook exists."""
    kafka = kafka_of(servers, properties)
    board = board_of(kafka)
    require(board, name)
    return kafka, board
