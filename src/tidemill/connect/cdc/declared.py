"""Applies the sources that a settings file declares, and keeps commands from changing them.

Their definitions become records of ``tidemill.sources``, like those that ``source create`` stores,
with a note that names the file. Must not know: the file's format, or a worker.
"""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from tidemill.confluent.clients import Kafka
from tidemill.connect.cdc.board import Board, BoardWriter, create_topic
from tidemill.connect.cdc.definition import Definition
from tidemill.connect.cdc.errors import DeclaredSourceError

log = structlog.get_logger("tidemill.cdc")


def apply_declared(kafka: Kafka, definitions: Sequence[Definition], file: str) -> None:
    """Store the sources that a file declares.

    A source that the file declared before, and does not any more, is paused. It keeps its position
    and what it has created in the database, until it is declared again, resumed or deleted.

    Raises:
        UnreachableError: no broker answers.
    """
    create_topic(kafka)
    board = Board.read(kafka)
    writer = BoardWriter(kafka)
    for definition in definitions:
        name = definition.name
        if board.definitions.get(name) != definition.encode():
            writer.define(definition)
            log.info("source.declared", source=name, file=file)
        if board.declared.get(name) != file:
            writer.declare(name, file)
        if board.commands.get(name, {}).get("pause", {}).get("paused"):
            writer.command(name, "pause", paused=False)
    for name in sorted(board.declared.keys() - {each.name for each in definitions}):
        writer.declare(name, None)
        if name in board.definitions:
            writer.command(name, "pause", paused=True)
            log.warning(
                "source.no_longer_declared",
                source=name,
                file=board.declared[name],
                hint=f"It is paused, and keeps its position. To remove it: tidemill source delete "
                f"{name}. To continue without the file: tidemill source resume {name}",
            )
    writer.flush()


def check_not_declared(board: Board, source: str) -> None:
    """Check that commands can change a source.

    Raises:
        DeclaredSourceError: a settings file declares it.
    """
    if source in board.declared:
        raise DeclaredSourceError(
            f"source {source} is declared in {board.declared[source]}",
            hint="Change or remove its entry there, then: tidemill worker restart sources",
        )
