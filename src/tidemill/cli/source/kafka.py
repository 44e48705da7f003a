"""The cluster of a ``source`` command, as connectors know it. Must not know: a command."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemill.cli.client import Cluster
from tidemill.cli.output import NotFoundError

if TYPE_CHECKING:
    from tidemill.confluent.clients import Kafka
    from tidemill.connect.cdc.board import Board


def kafka_of(servers: str, properties: list[str] | None) -> Kafka:
    """Return the cluster for ``-b`` and ``-X``, after a check that it is reachable."""
    from tidemill.confluent.clients import Kafka

    cluster = Cluster.at(servers, properties)
    return Kafka(cluster.servers, cluster.properties)


def board_of(kafka: Kafka) -> Board:
    """Return all definitions, commands and statuses."""
    from tidemill.connect.cdc.board import Board

    return Board.read(kafka)


def require(board: Board, name: str) -> None:
    """Check that a source exists."""
    if name not in board.definitions:
        raise NotFoundError(
            f"source {name} does not exist", hint="List the sources: tidemill source list"
        )


def require_changeable(board: Board, name: str) -> None:
    """Check that a source exists, and that no settings file declares it."""
    from tidemill.connect.base.declared import check_not_declared

    require(board, name)
    check_not_declared(board, "source", name)
