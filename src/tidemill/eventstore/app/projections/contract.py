"""The contracts of projections and of databases that they are in.

Tables have a *generation*: a projection that is built again fills the tables of the next
generation beside the live ones, and then the views with the tables' names show those. So users of
the tables never see a half-built one. Knows no database.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

from tidemill.eventstore.app.errors import DeclarationError

_NAME = re.compile(r"[a-z][a-z0-9_]{0,40}\Z")
_PLACE = re.compile(r"\{([a-z][a-z0-9_]*)\}")

POSITIONS = "tidemill_projections"
"""The table with the position of each generation."""


class Projection(Protocol):
    """Turns events into rows. A plain class: it has these attributes, and methods ``on_…``.

        class Statement:
            name = "statement"
            version = 1
            tables = {"statement": "account TEXT PRIMARY KEY, cents BIGINT NOT NULL"}

            def on_deposited(self, event: Deposited, stored: StoredEvent, db: Rows) -> None:
                db.execute("INSERT INTO {statement} ...", ...)

    Attributes:
        name: identifies it in the database: small letters, digits and ``_``.
        version: raise it when the code changes what is in the tables: they are built again.
        tables: the columns of each table, as in ``CREATE TABLE name (…)``.
    """

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> int: ...

    @property
    def tables(self) -> Mapping[str, str]: ...


class Rows(Protocol):
    """A database, in the transaction of the events that are projected."""

    def execute(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run one statement and return its rows.

        Args:
            sql: ``{table}`` stands for a table of the projection, ``?`` for a value.
        """


class Progress(NamedTuple):
    """The position of a generation of a projection.

    Attributes:
        generation: its number.
        version: the version of the code that fills it.
        position: the position of the last event that is in its tables.
        is_live: whether the views show it.
        tables: the names of its tables, as the code had declared them.
    """

    generation: int
    version: int
    position: int
    is_live: bool
    tables: tuple[str, ...] = ()


class Database(Protocol):
    """A database that projections can be in. One thread uses it."""

    def transaction(self) -> AbstractContextManager[Statements]:
        """Return a context in which everything is stored, or nothing if it ends with an error."""

    def close(self) -> None:
        """Close the connection."""


class Statements(Protocol):
    """A transaction of a database."""

    def run(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run one statement, with ``?`` for values, and return its rows."""

    def lock(self, projection: str) -> None:
        """Keep other transactions from moving the projection until this one ends."""


class GenerationRows:
    """The tables of one generation: puts their real names into statements (``Rows``)."""

    def __init__(self, statements: Statements, tables: Mapping[str, str], generation: int) -> None:
        self._statements = statements
        self._names = {name: table_name(name, generation) for name in tables}

    def execute(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run one statement and return its rows.

        Raises:
            DeclarationError: it names a table that the projection has not declared.
        """
        return self._statements.run(_PLACE.sub(self._name, sql), values)

    def _name(self, found: re.Match[str]) -> str:
        try:
            return self._names[found[1]]
        except KeyError:
            raise DeclarationError(
                f"unknown table {found[0]}", hint="Declare it in the projection's tables."
            ) from None


def table_name(name: str, generation: int) -> str:
    """Return the name of a table of a generation."""
    return f"{name}__g{generation}"


def check(projection: Projection) -> None:
    """Check the declaration of a projection.

    Raises:
        DeclarationError: a name is invalid, or there is no table.
    """
    if not projection.tables:
        raise DeclarationError(f"projection {projection.name!r} has no tables")
    for name in (projection.name, *projection.tables):
        if not _NAME.match(name):
            raise DeclarationError(
                f"invalid name {name!r}: use up to 41 small letters, digits and '_'"
            )
