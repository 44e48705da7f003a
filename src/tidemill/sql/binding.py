"""Binds a query as its user has written it, for the error about a name that does not exist.

What runs has only the columns that a query names, or is a statement of our own around it. DuckDB's
error about that suggests too little, or shows too much. Must not know: clients, offsets, commands.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import duckdb
import pyarrow as pa

from tidemill.sql.columns import Columns, Misfits, Shape
from tidemill.sql.database import ask, open_database, quoted, translation, views
from tidemill.sql.windows import with_windows

UNKNOWN_NAME = (duckdb.BinderException, duckdb.CatalogException)
"""DuckDB's errors about a name that does not exist, among others."""


def bind(
    query: str,
    shapes: Mapping[str, Shape],
    parameters: Sequence[Any] = (),
    copies: Mapping[str, Any] | None = None,
) -> None:
    """Bind a query to topics that have all their columns, and no rows. Nothing is read.

    Args:
        shapes: the columns of its topics.
        parameters: for the placeholders ``?``.
        copies: other tables, by name.

    Raises:
        SqlError: it names what does not exist; the error has the names that are near.
    """
    with translation(), open_database("100MB", 1) as database:
        for topic, shape in shapes.items():
            columns, rows = Columns(shape, None, Misfits()), f"__rows {topic}"
            database.register(rows, pa.Table.from_batches([], columns.schema))
            for view in views(topic, quoted(rows), columns):
                ask(database, view)
        for name, copy in (copies or {}).items():
            database.register(name, copy)
        database.sql(with_windows(database, query), params=list(parameters) or None)
