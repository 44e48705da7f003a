"""Parse a SQL text before Spark starts: which tables and columns it names.

Only what is certain is reported as a mistake. Text that this parser does not understand is left to
Spark, which parses it before any query starts. Must not know: PySpark, pipelines.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any

from sqlglot import exp, parse_one
from sqlglot.errors import SqlglotError
from sqlglot.optimizer.qualify import qualify

from tidemill.spark.base.ddl import Column
from tidemill.spark.windows.sql import rewrite

_WINDOWS = ("window", "session_window")
"""Columns that Spark adds to a query that groups by a window."""
_STREAM = re.compile(r"\b(FROM|JOIN)\s+STREAM\s+(?=[A-Za-z_`])", re.IGNORECASE)
_SESSION = re.compile(r"\bsession\s*\(", re.IGNORECASE)  # "session" is a keyword to this parser
_PLAIN_NAME = re.compile(r"[A-Za-z_]\w*")  # other names may be made by Spark from an expression
_UNRESOLVED = re.compile(r"Column '([^']+)' could not be resolved")

_WINDOW_CALLS = frozenset({"tumbling", "sliding", "hopping", "session", "window", "session_window"})


class SqlText:
    """A SQL text. Its checks and the choice of its inputs use one tree, which is parsed once.

    Text that the parser does not understand is left to Spark: it names no tables and no groups,
    and has no mistakes. Get one with ``parse``.

    Attributes:
        text: one SQL statement.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self._rewritten: str | None = None

    def rewritten(self, spark: Any) -> str:
        """Return the text with calls of Spark's own functions instead of the windows.

        Args:
            spark: the session. Its parser runs once for a text, whatever the session is.

        Raises:
            WindowError: a window is malformed, or is used in a place where it can't be.
        """
        if self._rewritten is None:
            self._rewritten = rewrite(spark, self.text)
        return self._rewritten

    @cached_property
    def _statement(self) -> exp.Expr | None:
        return _parsed(self.text)

    @cached_property
    def _reads(self) -> _Reads | None:
        return None if self._statement is None else _Reads(self._statement)

    @cached_property
    def tables(self) -> tuple[str, ...] | None:
        """The tables that the statement reads, or None if the text was not understood.

        Files, and tables of another catalog or database, do not belong to a pipeline, so they are
        not included.
        """
        return None if self._reads is None else tuple(dict.fromkeys(self._reads.tables))

    @property
    def groups(self) -> list[tuple[str, ...]]:
        """For each SELECT that groups rows, the tables from which the rows come."""
        return [] if self._reads is None else self._reads.groups

    @cached_property
    def has_session_windows(self) -> bool:
        """Whether the statement calls ``session`` or ``session_window``."""
        return self._statement is not None and any(
            call.name.lower() == "session_window"
            for call in self._statement.find_all(exp.Anonymous)
        )

    def mistakes(self, known: Mapping[str, Sequence[Column]]) -> list[tuple[str, str]]:
        """Return what is certainly wrong, as pairs of a message and a hint.

        Args:
            known: the columns of all tables that the statement may name.
        """
        if self._statement is None:
            return []
        if not isinstance(self._statement, exp.Query):
            return [("the SQL statement is not a query", "A query begins with SELECT or WITH.")]
        names = {name.lower() for name in known}
        found = [
            (f"the SQL reads {name}, which is not declared", suggestion(name, known))
            for name in self.tables or ()
            if name.lower() not in names
        ]
        return found or _unknown_columns(self._statement, known)


@lru_cache(maxsize=256)
def parse(text: str) -> SqlText:
    """Return a SQL text; the same object for the same text. It is parsed when it is first used."""
    return SqlText(text)


def _parsed(text: str) -> exp.Expr | None:
    """Parse a statement; None if the parser does not understand it."""
    try:
        text = _SESSION.sub("session_window(", _STREAM.sub(r"\1 ", text))
        statement = parse_one(text, dialect="spark")
    except SqlglotError:
        return None
    # The argument of a hint has the form of a table, but names an alias of one.
    for hint in list(statement.find_all(exp.Hint)):
        hint.pop()
    return statement


class _Reads:
    """The tables that a statement reads. A name may also be defined by a WITH.

    Attributes:
        tables: the name of a table for each place that names it.
        groups: for each SELECT that groups rows, the tables below it.
    """

    def __init__(self, statement: exp.Expr) -> None:
        self.tables: list[str] = []
        self.groups: list[tuple[str, ...]] = []
        self._below(statement, {})

    def _below(self, query: exp.Expr, outer: Mapping[str, Sequence[str]]) -> list[str]:
        """Return the tables that a query reads, directly or through names defined by a WITH."""
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
        """Return the tables behind each name after a WITH.

        Inside its own definition, a name still means the outer table, unless WITH is recursive.
        """
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
    if _has_unknowable_columns(statement):
        return []
    statement = statement.copy()  # qualify() changes the tree, which is shared
    windowed = any(
        call.name.lower() in _WINDOW_CALLS for call in statement.find_all(exp.Anonymous, exp.Func)
    ) or any(group.args.get("all") for group in statement.find_all(exp.Group))
    made = _names_made_by(statement)
    # In a join, each of the tables seems to have a window: the name is not unique then.
    made |= set(_WINDOWS) if windowed else set()
    extra = dict.fromkeys(_WINDOWS, "STRUCT<start: TIMESTAMP, end: TIMESTAMP>") if windowed else {}
    schema: dict[str, object] = {
        name: {column.name: column.type for column in columns} | extra
        for name, columns in known.items()
    }
    if windowed:
        for column in list(statement.find_all(exp.Column)):
            if column.table.lower() in _WINDOWS:  # window.start is a field of a struct
                column.replace(exp.Dot(this=exp.column(column.table), expression=column.this))
    try:
        qualify(statement, schema=schema, dialect="spark", validate_qualify_columns=True)
    except SqlglotError as error:
        match = _UNRESOLVED.search(str(error))
        if match is None or match[1].lower() in made or not _PLAIN_NAME.fullmatch(match[1]):
            return []
        every = [column.name for columns in known.values() for column in columns]
        return [(f"the SQL names an unknown column {match[1]}", suggestion(match[1], every))]
    return []


def _has_unknowable_columns(statement: exp.Expr) -> bool:
    """Whether the statement reads columns whose names only Spark knows."""
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
    """Return the names that the statement itself defines: only Spark can check their use."""
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


def suggestion(name: str, known: Sequence[str] | Mapping[str, object]) -> str:
    """Return a hint for an unknown name: the known name that is nearest, or all of them."""
    spelling = {each.lower(): each for each in known}
    near = difflib.get_close_matches(name.lower(), spelling, n=1, cutoff=0.6)
    if near:
        return f"Did you mean {spelling[near[0]]}?"
    return f"Known names: {', '.join(dict.fromkeys(spelling.values()))}." if spelling else ""
