"""What can be said of a SQL string before Spark starts: which tables and columns it names.

Only what is certain is called a mistake: text that this parser does not understand is left to
Spark, which reads it before any query starts. Must not know: Spark, pipelines.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence

from sqlglot import exp, parse_one
from sqlglot.errors import SqlglotError
from sqlglot.optimizer.qualify import qualify

from tidemill.spark.ddl import Column

# Columns that Spark gives a query that groups by a window.
_WINDOWS = ("window", "session_window")
_STREAM = re.compile(r"\b(FROM|JOIN)\s+STREAM\s+(?=[A-Za-z_`])", re.IGNORECASE)
_SESSION = re.compile(r"\bsession\s*\(", re.IGNORECASE)  # a keyword to this parser
_UNRESOLVED = re.compile(r"Column '([^']+)' could not be resolved")

_WINDOW_CALLS = frozenset({"tumbling", "sliding", "hopping", "session", "window", "session_window"})


def tables_of(text: str) -> tuple[str, ...] | None:
    """The tables that a statement reads, or None where it can't be said."""
    statement = _parse(text)
    if statement is None:
        return None
    inner = {cte.alias_or_name.lower() for cte in statement.find_all(exp.CTE)}
    names = (table.name for table in statement.find_all(exp.Table))
    return tuple(dict.fromkeys(name for name in names if name and name.lower() not in inner))


def mistakes(text: str, known: Mapping[str, Sequence[Column]]) -> list[tuple[str, str]]:
    """What is certainly wrong: (message, hint) each.

    Args:
        text: one SQL statement.
        known: columns of all tables it may name.
    """
    statement = _parse(text)
    if statement is None:
        return []
    if not isinstance(statement, exp.Query):
        return [("the SQL is no query", "A query begins with SELECT or WITH.")]
    spelling = {name.lower(): name for name in known}
    found = [
        (f"the SQL reads {name}, which is not declared", meant(name, known))
        for name in tables_of(text) or ()
        if name.lower() not in spelling
    ]
    return found or _unknown_columns(statement, known)


def aggregates(text: str) -> bool | None:
    """Whether a statement groups rows; None where it can't be said."""
    statement = _parse(text)
    if statement is None:
        return None
    return any(select.args.get("group") for select in statement.find_all(exp.Select))


def groups_by_session(text: str) -> bool:
    """Whether a statement calls ``session``."""
    statement = _parse(text)
    return statement is not None and any(
        call.name.lower() == "session_window" for call in statement.find_all(exp.Anonymous)
    )


def _parse(text: str) -> exp.Expr | None:
    try:
        text = _SESSION.sub("session_window(", _STREAM.sub(r"\1 ", text))
        return parse_one(text, dialect="spark")
    except SqlglotError:
        return None


def _unknown_columns(
    statement: exp.Expr, known: Mapping[str, Sequence[Column]]
) -> list[tuple[str, str]]:
    windowed = any(
        call.name.lower() in _WINDOW_CALLS for call in statement.find_all(exp.Anonymous, exp.Func)
    )
    made = _names_made_by(statement)
    extra = dict.fromkeys(_WINDOWS, "STRUCT<start: TIMESTAMP, end: TIMESTAMP>") if windowed else {}
    schema: dict[str, object] = {
        name: {column.name: column.type for column in columns} | extra
        for name, columns in known.items()
    }
    if windowed:
        for column in list(statement.find_all(exp.Column)):
            if column.table.lower() in _WINDOWS:  # window.start: a field, not a table's column
                column.replace(exp.Dot(this=exp.column(column.table), expression=column.this))
    try:
        qualify(statement, schema=schema, dialect="spark", validate_qualify_columns=True)
    except SqlglotError as error:
        match = _UNRESOLVED.search(str(error))
        if match is None or match[1].lower() in made:
            return []
        every = [column.name for columns in known.values() for column in columns]
        return [(f"the SQL names a column {match[1]} that is not there", meant(match[1], every))]
    return []


def _names_made_by(statement: exp.Expr) -> set[str]:
    """What the statement itself gives a name to: if that is wrong, Spark has to say it."""
    names = {alias.alias.lower() for alias in statement.find_all(exp.Alias)}
    for lateral in statement.find_all(exp.Lateral):
        names |= {each.name.lower() for each in lateral.find_all(exp.Identifier)}
    for alias in statement.find_all(exp.TableAlias):
        names |= {each.name.lower() for each in alias.columns}
    for function in statement.find_all(exp.Lambda):
        names |= {each.name.lower() for each in function.expressions}
    return names


def meant(name: str, known: Sequence[str] | Mapping[str, object]) -> str:
    """A hint for a name that is not among those that are known."""
    spelling = {each.lower(): each for each in known}
    near = difflib.get_close_matches(name.lower(), spelling, n=1, cutoff=0.6)
    if near:
        return f"Did you mean {spelling[near[0]]}?"
    return f"There are {', '.join(dict.fromkeys(spelling.values()))}." if spelling else ""
