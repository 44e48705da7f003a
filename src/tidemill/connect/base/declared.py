"""Applies what a settings file declares, and keeps commands from changing it.

The definitions become records of a board, like those that commands store, with a note that names
the file. Must not know: the file's format, or a connector.
"""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from tidemill.confluent.clients import Kafka
from tidemill.connect.base.board import Board, BoardWriter, StoredDefinition, create_topic
from tidemill.connect.base.errors import DeclaredError


def apply_declared(
    kafka: Kafka, topic: str, noun: str, definitions: Sequence[StoredDefinition], file: str
) -> None:
    """Store the definitions of a file.

    What the file declared before, and does not any more, is paused. It keeps its position, until it
    is declared again, resumed or deleted.

    Args:
        topic: of the board.
        noun: what is defined, as the command line calls it: ``source``.

    Raises:
        UnreachableError: no broker answers.
    """
    log = structlog.get_logger("tidemill.connect")
    create_topic(kafka, topic)
    board = Board.read(kafka, topic)
    writer = BoardWriter(kafka, topic)
    for definition in definitions:
        name = definition.name
        if board.definitions.get(name) != definition.encode():
            writer.define(definition)
            log.info("definition.declared", kind=noun, name=name, file=file)
        if board.declared.get(name) != file:
            writer.declare(name, file)
        if board.commands.get(name, {}).get("pause", {}).get("paused"):
            writer.command(name, "pause", paused=False)
    for name in sorted(board.declared.keys() - {each.name for each in definitions}):
        writer.declare(name, None)
        if name in board.definitions:
            writer.command(name, "pause", paused=True)
            log.warning(
                "definition.no_longer_declared",
                kind=noun,
                name=name,
                file=board.declared[name],
                hint=f"It is paused, and keeps its position. To remove it: tidemill {noun} delete "
                f"{name}. To continue without the file: tidemill {noun} resume {name}",
            )
    writer.flush()


def check_not_declared(board: Board, noun: str, name: str) -> None:
    """Check that commands can change a definition.

    Raises:
        DeclaredError: a settings file declares it.
    """
    if name in board.declared:
        raise DeclaredError(
            f"{noun} {name} is declared in {board.declared[name]}",
            hint=f"Change or remove its entry there, then: tidemill worker restart {noun}s",
        )
