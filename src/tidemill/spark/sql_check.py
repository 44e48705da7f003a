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
_PLAIN_NAME = re.compile(r"[A-Za-z_]\w*")  # others may be what Spark calls an expression
_UNRESOLVED = re.compile(r"Column '([^']+)' could not be resolved")

_WINDOW_CALLS = frozenset({"tumbling", "sliding", "hopping", "session", "window", "session_window"})


def tables_of(text: str) -> tuple[str, ...] | None:
    """The tables that a statement reads, or None where it can't be said.

    Those of another catalog or database, and files, are not the pipeline's, and left out.
    """
    statement = _parse(text)
    if statement is None:
        return None
    return tuple(dict.fromkeys(_Reads(statement).tables))


def groups(text: str) -> list[tuple[str, ...]]:
    """For each SELECT that groups rows, the tables that these come from, as far as it is known."""
    statement = _parse(text)
    return [] if statement is None else _Reads(statement).groups


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


class _Reads:
    """Which tables a statement reads, and where: a name may be one that WITH gave.

    Attributes:
        tables: each time that one is named.
        groups: for each SELECT that groups rows, the tables below it.
    """

    def __init__(self, statement: exp.Expr) -> None:
        self.tables: list[str] = []
        self.groups: list[tuple[str, ...]] = []
        self._below(statement, {})

    def _below(self, query: exp.Expr, outer: Mapping[str, Sequence[str]]) -> list[str]:
        """Tables that a query reads, by itself or through names that WITH gave."""
        named = self._named(query.args.get("with_"), outer)
        found: list[str] = []
        for node in query.dfs(prune=lambda node: node is not query and isinstance(node, _SCOPES)):
            if node is query or isinstance(node, exp.With):
                continue
            if isinstance(node, exp.Query):
                found += self._below(node, named)
            elif isinstance(node, exp.Table) and node.name and not node.db:
                inner = named.get(node.name.lower())
                if inner is None:
                    self.tables.append(node.name)
                found += [node.name] if inner is None else inner
        if isinstance(query, exp.Select) and query.args.get("group"):
            self.groups.append(tuple(dict.fromkeys(found)))
        return found

    def _named(
        self, given: exp.With | None, outer: Mapping[str, Sequence[str]]
    ) -> Mapping[str, Sequence[str]]:
        """What names mean after a WITH: within its own definition, a name still means the outer
        table."""
        if given is None:
            return outer
        named = dict(outer)
        for each in given.expressions:
            name = each.alias_or_name.lower()
            inside = {**named, name: ()} if given.recursive else named
            named[name] = self._below(each.this, inside)
        return named


_SCOPES = (exp.Query, exp.With)


def _unknown_columns(
    statement: exp.Expr, known: Mapping[str, Sequence[Column]]
) -> list[tuple[str, str]]:
    if _has_names_of_sparks(statement):
        return []
    windowed = any(
        call.name.lower() in _WINDOW_CALLS for call in statement.find_all(exp.Anonymous, exp.Func)
    ) or any(group.args.get("all") for group in statement.find_all(exp.Group))
    made = _names_made_by(statement)
    made |= set(_WINDOWS) if windowed else set()  # of a join: each of its tables seems to have one
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
        if match is None or match[1].lower() in made or not _PLAIN_NAME.fullmatch(match[1]):
            return []
        every = [column.name for columns in known.values() for column in columns]
        return [(f"the SQL names a column {match[1]} that is not there", meant(match[1], every))]
    return []


def _has_names_of_sparks(statement: exp.Expr) -> bool:
    """Whether columns come from where only Spark can name them."""
    foreign = any(table.db or not table.name for table in statement.find_all(exp.Table))
    unnamed = any(
        not column.output_name and not isinstance(column, exp.Aliases)
        for inner in statement.find_all(exp.Subquery, exp.CTE)
        if isinstance(inner.this, exp.Query)
        for column in inner.this.selects
        if not column.is_star
    )
    generated = any(
        not isinstance(each.this, exp.Subquery) and not _columns_of(each)
        for each in statement.find_all(exp.Lateral, exp.Values)
    )
    return foreign or unnamed or generated or statement.find(exp.Pivot) is not None


def _columns_of(each: exp.Expr) -> Sequence[exp.Expr]:
    alias = each.args.get("alias")
    return alias.columns if isinstance(alias, exp.TableAlias) else ()


def _names_made_by(statement: exp.Expr) -> set[str]:
    """What the statement itself gives a name to: if that is wrong, Spark has to say it."""
    names = {alias.alias.lower() for alias in statement.find_all(exp.Alias)}
    for several in statement.find_all(exp.Aliases):
        names |= {each.name.lower() for each in several.expressions}
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
