"""Create and drop views, and read the copies that their worker publishes.

Must not know: the worker, files of the worker besides copies.
"""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import duckdb

from tidemill.confluent.clients import Kafka
from tidemill.connect.base.board import Board, BoardWriter, create_topic
from tidemill.connect.base.declared import check_not_declared
from tidemill.connect.base.errors import DefinitionExistsError
from tidemill.sql.commands import CreateView
from tidemill.sql.database import message, quoted, reader
from tidemill.sql.errors import SqlError, UnknownTableError
from tidemill.sql.topics import Topics
from tidemill.sql.views.definition import Definition
from tidemill.sql.views.topics import VIEWS

_ROWS = 10_000


def create(kafka: Kafka, command: CreateView, columns: dict[str, str]) -> None:
    """Store the definition of a view, with a new version. A running worker makes it.

    Raises:
        SqlError: its query can't be kept current, or names columns that its topics don't have.
        DefinitionExistsError: the name is taken.
        DeclaredError: a settings file declares it.
    """
    from tidemill.sql.views.store import check

    definition = Definition.parse(
        {
            "name": command.name,
            "query": command.query.rstrip("; \n"),
            "columns": columns,
            "version": uuid.uuid4().hex,
        }
    )
    check(definition, Topics(kafka))
    create_topic(kafka, VIEWS)
    board = Board.read(kafka, VIEWS)
    check_not_declared(board, "view", command.name)
    if command.name in board.definitions and not command.replaces:
        raise DefinitionExistsError(
            f"view {command.name} already exists", hint="Use CREATE OR REPLACE."
        )
    writer = BoardWriter(kafka, VIEWS)
    writer.define(definition)
    writer.close()


def drop(kafka: Kafka, name: str) -> None:
    """Delete the definition of a view.

    Raises:
        UnknownTableError: it does not exist.
        DeclaredError: a settings file declares it.
    """
    create_topic(kafka, VIEWS)
    board = Board.read(kafka, VIEWS)
    if name not in board.definitions:
        raise UnknownTableError(f"there is no view {name}")
    check_not_declared(board, "view", name)
    writer = BoardWriter(kafka, VIEWS)
    writer.forget(name, board)
    writer.close()


def exists(kafka: Kafka, name: str) -> bool:
    """Return whether there is a view of a name."""
    return name in Board.read(kafka, VIEWS).definitions


class Copy:
    """The rows of a view as a stream of Arrow that can be read several times."""

    def __init__(self, path: Path, name: str) -> None:
        self._path, self._name = path, name

    def __arrow_c_stream__(self, requested_schema: object = None) -> Any:
        try:
            database = duckdb.connect(str(self._path), read_only=True)
            found = reader(database.sql(f"FROM {quoted(self._name)}"), _ROWS)
        except duckdb.Error as error:
            raise SqlError(f"can't read view {self._name}: {message(error)}") from error
        return found.__arrow_c_stream__(requested_schema)


def find(kafka: Kafka, names: set[str]) -> dict[str, Copy]:
    """Return the copies of the views with these names. Names that are not views are left out.

    Raises:
        SqlError: a view has no copy that this machine can open.
    """
    board = Board.read(kafka, VIEWS)
    found = {}
    for name in names & board.definitions.keys():
        status = board.statuses.get(name) or {}
        path = Path(status.get("file") or "")
        if not path.is_file():
            said = status.get("error") or f"its worker is {status.get('worker', 'not running')}"
            raise SqlError(
                f"view {name} has no copy here: {said}",
                hint="See 'tidemill view describe'. A view is read on the machine of its worker.",
            )
        found[name] = Copy(path, name)
    return found
