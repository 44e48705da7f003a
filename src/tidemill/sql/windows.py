"""Windows of time in FROM: ``tumble(topic, column, size)``, ``hop(topic, column, slide, size)``.

Each row of the topic is in the windows that contain its time, with the columns ``window_start`` and
``window_end``. Names and arguments are those of RisingWave; windows begin at multiples since 1970,
as those of pipelines. Must not know: clients, offsets.
"""

from __future__ import annotations

import json
from typing import Any

import duckdb

from tidemill.sql.database import ask, quoted, text_of, tree_of
from tidemill.sql.statement import WINDOWS, Node, window_of

_FIRST, _LAST = "TIMESTAMP '0001-01-01'", "TIMESTAMP '9999-12-31 23:59:59.999999'"
_BUCKET = "time_bucket({}, {}, TIMESTAMP '1970-01-01')"


def expanded(database: duckdb.DuckDBPyConnection, tree: Any) -> Any:
    """Return a tree with a subquery for each window in it.

    A column that is text is read as a time in ISO 8601.
    """
    if isinstance(tree, list):
        return [expanded(database, each) for each in tree]
    if not isinstance(tree, dict):
        return tree
    window = window_of(tree)
    if window is None:
        return {key: expanded(database, value) for key, value in tree.items()}
    name, (topic, *arguments) = window
    table = quoted(str(topic["column_names"][-1]))
    column, *lengths = [text_of(database, each) for each in arguments]
    given = [time_text(column), *lengths]
    text = _tumble(table, *given) if name == "tumble" else _hop(table, *given)
    alias = quoted(tree["alias"] or name)
    ((made,),) = ask(
        database, "SELECT json_serialize_sql(?::VARCHAR)", [f"SELECT * FROM ({text}) AS {alias}"]
    )
    return json.loads(made)["statements"][0]["node"]["from_table"]


def with_windows(database: duckdb.DuckDBPyConnection, query: str) -> str:
    """Return a query with subqueries for the windows in it."""
    if not any(name in query.lower() for name in WINDOWS):
        return query
    tree = tree_of(database, query)
    whole = expanded(database, tree)
    return query if whole == tree else statement_text(database, whole["statements"][0]["node"])


def time_text(column: str) -> str:
    """Return the time that a column has: it can be text. What is not a time is in no window.

    DuckDB also takes 'infinity' and years that ISO 8601 does not have, which no clock shows.
    """
    time = f"TRY_CAST({column} AS TIMESTAMP)"
    return f"CASE WHEN {time} BETWEEN {_FIRST} AND {_LAST} THEN {time} END"


def statement_text(database: duckdb.DuckDBPyConnection, node: Node) -> str:
    """Return the text of a query, given the tree of its SELECT."""
    tree = {"error": False, "statements": [{"node": node, "named_param_map": []}]}
    ((text,),) = ask(database, "SELECT json_deserialize_sql(?::JSON)", [json.dumps(tree)])
    return str(text)


def _tumble(table: str, column: str, size: str) -> str:
    start = _BUCKET.format(size, column)
    return (
        f"SELECT *, {start} AS window_start, {start} + {size} AS window_end FROM {table} "
        f"WHERE {column} IS NOT NULL"
    )


def _hop(table: str, column: str, slide: str, size: str) -> str:
    """Return the rows in each of their windows. A slide that is longer than the size has gaps."""
    before = f"unnest(range(0, 1 + epoch_us({size}) // epoch_us({slide})))"
    start = f"{_BUCKET.format(slide, column)} - {before} * {slide}"
    inner = f"SELECT *, {start} AS window_start FROM {table} WHERE {column} IS NOT NULL"
    return (
        f"SELECT *, window_start + {size} AS window_end FROM ({inner}) "
        f"WHERE window_start + {size} > {column}"
    )
