"""Find what a statement reads: its tables, the columns it uses, and bounds of what it needs.

Works on the tree that DuckDB makes of a statement (``json_serialize_sql``). Bounds only leave out
records that the statement filters itself: what is not understood has no bound. Must not know:
DuckDB connections, topics, clients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from tidemill.sql.errors import StatementRefusedError

Node = dict[str, Any]
LATEST = "$latest"
"""The end of a table's name: the last record of each key of the topic."""
Operator = Literal["<", "<=", ">", ">=", "=", "in"]
_COMPARISONS: dict[str, Operator] = {
    "COMPARE_EQUAL": "=",
    "COMPARE_LESSTHAN": "<",
    "COMPARE_LESSTHANOREQUALTO": "<=",
    "COMPARE_GREATERTHAN": ">",
    "COMPARE_GREATERTHANOREQUALTO": ">=",
}
_MIRRORED: dict[Operator, Operator] = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "=": "="}
BOUNDED = ("_offset", "_partition", "_timestamp")
_JOINS = {"REGULAR", "CROSS", "NATURAL"}
"""Joins in which a row that the filter drops can't change another row: not ASOF, POSITIONAL."""
_CONSTANT = {"CONSTANT", "CAST", "FUNCTION", "OPERATOR"}
_MOVING = {
    "now",
    "current_timestamp",
    "get_current_timestamp",
    "transaction_timestamp",
    "current_date",
    "today",
    "current_localtimestamp",
}
"""Functions whose value can be later when the statement runs than when it is planned."""
_PURE = {
    "-",
    "+",
    "*",
    "trunc",
    "to_milliseconds",
    "to_seconds",
    "to_minutes",
    "to_hours",
    "to_days",
}
_PURE |= {"epoch_ms", "make_timestamp", "make_timestamptz", "to_timestamp"}


@dataclass(frozen=True, slots=True)
class Bound:
    """A condition that each record must fulfil which the statement needs.

    Attributes:
        column: one of ``BOUNDED``.
        values: expressions without columns; one, or several for ``in``.
        moves: whether they can have a later value when the statement runs.
    """

    column: str
    operator: Operator
    values: tuple[Node, ...]
    moves: bool = False


@dataclass
class Uses:
    """The tables and names that a statement uses.

    Attributes:
        tables: for each table that it names, the bounds of each place where it does. An empty list
            of bounds needs all records.
        qualified: tables with a schema, ``schema.name``. A topic has none.
        names: all names of columns, fields and tables in it, in lower case.
        unqualified: those that are written without a table, in lower case.
        rows: names by which a row of a table can be named, in lower case: its name or alias.
        all_columns: whether it names columns by ``*`` or in another way that needs all.
    """

    tables: dict[str, list[list[Bound]]] = field(default_factory=dict)
    qualified: set[str] = field(default_factory=set)
    names: set[str] = field(default_factory=set)
    unqualified: set[str] = field(default_factory=set)
    rows: set[str] = field(default_factory=set)
    all_columns: bool = False


WINDOWS = {"tumble": 3, "hop": 4}
"""Table functions whose first argument is a topic, and how many arguments they have."""


def function_of(node: Any) -> tuple[str, list[Node]]:
    """Return the name and the arguments of a function; an empty name if it is none."""
    if not isinstance(node, dict) or node.get("class") != "FUNCTION":
        return "", []
    # DuckDB 2 has named arguments.
    given = node.get("arguments") or node.get("children") or []
    return str(node["function_name"]).lower(), [each.get("expression", each) for each in given]


def window_of(node: Any) -> tuple[str, list[Node]] | None:
    """Return the name and the arguments of ``tumble`` or ``hop`` in FROM; None if it is none.

    Their first argument is the topic, as a column.
    """
    if not isinstance(node, dict) or node.get("type") != "TABLE_FUNCTION":
        return None
    name, arguments = function_of(node.get("function"))
    if WINDOWS.get(name) != len(arguments) or "column_names" not in arguments[0]:
        return None
    return name, arguments


def table_of(node: Any) -> Node | None:
    """Return a table in FROM: a topic, also one that is in windows; None for anything else."""
    if isinstance(node, dict) and node.get("type") == "BASE_TABLE":
        return node
    window = window_of(node)
    if window is None:
        return None
    names = window[1][0]["column_names"]
    return {"type": "BASE_TABLE", "table_name": names[-1], "alias": node["alias"]} | (
        {"schema_name": ".".join(names[:-1])} if len(names) > 1 else {}
    )


def uses(tree: Node) -> Uses:
    """Return what a statement uses. Names of common table expressions are left out.

    Raises:
        StatementRefusedError: two tables differ in case only. DuckDB takes them for one.
    """
    found = Uses()
    _visit(tree, found, frozenset())
    spellings: dict[str, str] = {}
    for table in found.tables:
        name = table.removesuffix(LATEST)
        other = spellings.setdefault(name.lower(), name)
        if other != name:
            raise StatementRefusedError(
                f"{other} and {name} can't be in one statement: their names differ in case only",
                hint="Copy one of them: INSERT INTO another_topic SELECT ...",
            )
    # A table's name in the place of a column is the whole row.
    found.all_columns |= not found.unqualified.isdisjoint(found.rows)
    return found


def _visit(node: Any, found: Uses, hidden: frozenset[str]) -> None:
    if isinstance(node, list):
        for each in node:
            _visit(each, found, hidden)
        return
    if not isinstance(node, dict):
        return
    if "cte_map" in node:
        entries = (node["cte_map"] or {}).get("map") or []
        hidden |= {str(entry["key"]).lower() for entry in entries}
    kind = node.get("type")
    if kind == "SELECT_NODE":
        bounds = _bounds(node)
        for table in _direct(node.get("from_table")):
            _add(table, found, hidden, bounds)
        rest = {key: value for key, value in node.items() if key != "from_table"}
        for value in rest.values():
            _visit(value, found, hidden)
        _visit_from(node.get("from_table"), found, hidden)
        return
    if (named := table_of(node)) is not None:
        _add(named, found, hidden, {})
    _names(node, found)
    for value in node.values():
        _visit(value, found, hidden)


def _visit_from(node: Any, found: Uses, hidden: frozenset[str]) -> None:
    """Visit what is in FROM besides its own tables, which have been added."""
    if table_of(node) is not None:
        _names(node, found)
        for argument in (window_of(node) or ("", []))[1][1:]:  # the first one is the topic
            _visit(argument, found, hidden)
    elif isinstance(node, dict) and node.get("type") == "JOIN":
        _names(node, found)
        for key, value in node.items():
            if key in ("left", "right"):
                _visit_from(value, found, hidden)
            else:
                _visit(value, found, hidden)
    else:
        _visit(node, found, hidden)


def _names(node: Node, found: Uses) -> None:
    kind, cls = node.get("type"), node.get("class")
    if kind in ("STAR", "POSITIONAL_REFERENCE") or cls == "STAR":
        found.all_columns = True
    if cls == "COLUMN_REF" or kind == "COLUMN_REF":
        parts = [str(part).lower() for part in node.get("column_names") or []]
        found.names.update(parts)
        found.unqualified.update(parts[:1] if len(parts) == 1 else ())
    if kind == "JOIN":
        found.all_columns |= node.get("ref_type") == "NATURAL"
        found.names.update(str(name).lower() for name in node.get("using_columns") or [])
    if kind in ("PIVOT", "SHOW_REF") or node.get("column_name_alias"):
        found.all_columns = True


def _direct(node: Any) -> Iterator[Node]:
    """Yield the tables that FROM names itself, and in its joins."""
    if isinstance(node, dict):
        if (table := table_of(node)) is not None:
            yield table
        elif node.get("type") == "JOIN":
            yield from _direct(node.get("left"))
            yield from _direct(node.get("right"))


def _add(table: Node, found: Uses, hidden: frozenset[str], bounds: dict[str, list[Bound]]) -> None:
    name = str(table["table_name"])
    if table.get("schema_name") or table.get("catalog_name"):
        parts = (table.get("catalog_name"), table.get("schema_name"), name)
        found.qualified.add(".".join(str(part) for part in parts if part))
        return
    if name.lower() in hidden:
        return
    alias = str(table.get("alias") or table["table_name"]).lower()
    found.rows.add(alias)
    mine = [*bounds.get(alias, []), *bounds.get("", [])]
    if table.get("sample") or table.get("column_name_alias"):
        mine = []
    found.tables.setdefault(name, []).append(mine)


# --- bounds --------------------------------------------------------------------------------------


def _bounds(select: Node) -> dict[str, list[Bound]]:
    """Return the bounds in WHERE by table; those with the name "" count for the only table."""
    source = select.get("from_table")
    if not _is_plain(source):
        return {}
    alone = len(list(_direct(source))) == 1
    found: dict[str, list[Bound]] = {}
    for condition in _conjuncts(select.get("where_clause")):
        for table, bound in _bound(condition):
            if table or (alone and table_of(source) is not None):
                found.setdefault(table, []).append(bound)
    return found


def _is_plain(node: Any) -> bool:
    if not isinstance(node, dict):
        return False
    if node.get("type") == "JOIN":
        plain = node.get("ref_type") in _JOINS and node.get("join_type") in (
            "INNER",
            "LEFT",
            "RIGHT",
            "OUTER",
            "FULL",
        )
        return plain and _is_plain(node.get("left")) and _is_plain(node.get("right"))
    plain = node.get("type") == "SUBQUERY" or table_of(node) is not None
    return plain and not node.get("sample")


def _conjuncts(node: Any) -> Iterator[Node]:
    if not isinstance(node, dict):
        return
    if node.get("type") == "CONJUNCTION_AND":
        for child in node.get("children") or []:
            yield from _conjuncts(child)
    else:
        yield node


def _bound(node: Node) -> Iterator[tuple[str, Bound]]:
    kind = node.get("type")
    if kind in _COMPARISONS:
        operator = _COMPARISONS[kind]
        for one, other, way in (
            (node.get("left"), node.get("right"), operator),
            (node.get("right"), node.get("left"), _MIRRORED[operator]),
        ):
            yield from _made(one, way, [other])
    elif kind == "COMPARE_BETWEEN":
        yield from _made(node.get("input"), ">=", [node.get("lower")])
        yield from _made(node.get("input"), "<=", [node.get("upper")])
    elif kind == "COMPARE_IN":
        first, *values = node.get("children") or [None]
        yield from _made(first, "in", values)


def _made(column: Any, operator: Operator, values: Sequence[Any]) -> Iterator[tuple[str, Bound]]:
    if not isinstance(column, dict) or column.get("type") != "COLUMN_REF":
        return
    parts = [str(part).lower() for part in column.get("column_names") or []]
    if not parts or parts[-1] not in BOUNDED or len(parts) > 2 or not values:
        return
    kinds = [_constant(value) for value in values]
    if None not in kinds:
        table = parts[0] if len(parts) == 2 else ""
        yield table, Bound(parts[-1], operator, tuple(values), any(kinds))


def _constant(node: Any) -> bool | None:
    """Return whether an expression without columns can have a later value; None if it has some."""
    if not isinstance(node, dict) or node.get("class") not in _CONSTANT:
        return None
    moves = False
    if node["class"] == "FUNCTION":
        name = str(node.get("function_name")).lower()
        if name not in _PURE | _MOVING:
            return None
        moves = name in _MOVING
    arguments = [each.get("expression", each) for each in node.get("arguments") or []]
    for child in (*arguments, *(node.get("children") or []), *filter(None, [node.get("child")])):
        inner = _constant(child)
        if inner is None:
            return None
        moves |= inner
    return moves


# --- ranges --------------------------------------------------------------------------------------

Evaluate = Callable[[Node, str], int | None]
"""Returns the value of an expression for a column, as an integer; None if it has none."""


@dataclass(frozen=True, slots=True)
class Needed:
    """The records of a topic that one place of a statement needs.

    Attributes:
        partitions: None for all.
        first: the first offset of each partition; None for all.
        end: the offset behind the last one; None for the end of the log.
        since_ms: the first time, in ms since 1970; None for all.
    """

    partitions: frozenset[int] | None = None
    first: int | None = None
    end: int | None = None
    since_ms: int | None = None


def needed(bounds: Sequence[Bound], evaluate: Evaluate) -> Needed:
    """Return what records fulfil all bounds, or more.

    An upper bound of ``_timestamp`` is not used: later records can have earlier times.
    """
    partitions: frozenset[int] | None = None
    first, end, since = None, None, None
    for bound in bounds:
        values = [evaluate(value, bound.column) for value in bound.values]
        known = [value for value in values if value is not None]
        if len(known) < len(values):
            continue
        low, high = min(known), max(known)
        upper = bound.operator in ("<", "<=", "=", "in")
        lower = bound.operator in (">", ">=", "=", "in")
        if bound.column == "_partition" and bound.operator in ("=", "in"):
            chosen = frozenset(known)
            partitions = chosen if partitions is None else partitions & chosen
        elif bound.column == "_offset":
            if lower:
                first = max(first or 0, low + (bound.operator == ">"))
            if upper and not bound.moves:
                behind = high + (bound.operator != "<")
                end = behind if end is None else min(end, behind)
        elif bound.column == "_timestamp" and lower:
            since = low if since is None else max(since, low)
    return Needed(partitions, first, end, since)
