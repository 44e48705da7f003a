"""Parts of the commands for what a topic defines: its board, checks, orders. See ``Board``.

Must not know: a command, or what is defined.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidemill.cli.client import Cluster
from tidemill.cli.output import NotFoundError

if TYPE_CHECKING:
    from tidemill.confluent.clients import Kafka
    from tidemill.connect.base.board import Board, BoardWriter, StoredDefinition


@dataclass(frozen=True, slots=True)
class Boards:
    """The commands' side of a topic with definitions.

    Attributes:
        noun: what is defined, as the command line calls it: ``bridge``.
        topic: the topic of the board.
    """

    noun: str
    topic: str

    def kafka(self, servers: str, properties: list[str] | None) -> Kafka:
        """Return the cluster for ``-b`` and ``-X``, after a check that it is reachable."""
        from tidemill.confluent.clients import Kafka

        cluster = Cluster.at(servers, properties)
        return Kafka(cluster.servers, cluster.properties)

    def read(self, kafka: Kafka) -> Board:
        """Return all definitions, commands and statuses."""
        from tidemill.connect.base.board import Board

        return Board.read(kafka, self.topic)

    def require(self, board: Board, name: str) -> None:
        """Check that a definition exists.

        Raises:
            NotFoundError: it does not.
        """
        if name not in board.definitions:
            raise NotFoundError(
                f"{self.noun} {name} does not exist",
                hint=f"List all of them: tidemill {self.noun} list",
            )

    def require_changeable(self, board: Board, name: str) -> None:
        """Check that a definition exists, and that no settings file declares it.

        Raises:
            NotFoundError: it does not exist.
            DeclaredError: a settings file declares it.
        """
        from tidemill.connect.base.declared import check_not_declared

        self.require(board, name)
        check_not_declared(board, self.noun, name)

    def define(self, kafka: Kafka, definition: StoredDefinition) -> None:
        """Store a definition."""
        from tidemill.connect.base.board import create_topic

        create_topic(kafka, self.topic)
        writer = self.writer(kafka)
        writer.define(definition)
        writer.flush()

    def order(self, kafka: Kafka, name: str, command: str, **payload: Any) -> None:
        """Store a command."""
        writer = self.writer(kafka)
        writer.command(name, command, **payload)
        writer.flush()

    def writer(self, kafka: Kafka) -> BoardWriter:
        """Return a writer of the topic."""
        from tidemill.connect.base.board import BoardWriter

        return BoardWriter(kafka, self.topic)
