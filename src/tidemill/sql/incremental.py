"""Find out how a query can be kept current batch by batch: a plan of what each batch adds.

A query over one topic, which can be joined with ``$latest`` tables, is either a filter with
projections, or groups with count, sum, min, max and avg, whose parts are merged. Must not know:
clients, offsets, files.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import duckdb

from tidemill.sql.database import ask, text_of, tree_of
from tidemill.sql.errors import MalformedStatementError, StatementRefusedError
from tidemill.sql.statement import LATEST, Node, Uses, function_of, table_of, uses, window_of
from tidemill.sql.windows import expanded, statement_text, time_text

_PARTS: dict[str, tuple[str, ...]] = {
    "count": ("count",),
    "count_star": ("count_star",),
    "sum": ("sum",),
    "min": ("min",),
    "max": ("max",),
    "avg": ("sum", "count"),
}
"""For each function, those of the parts of which it is made."""
_MERGED = {"count": "sum", "count_star": "sum", "sum": "sum", "min": "min", "max": "max"}
COUNT = "__count"
"""The column of a state with the number of rows that a group has."""
END = "__end"
"""The column of a state with the end of the window."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The steps that keep a query current.

    Attributes:
        source: the topic whose new records are its rows.
        tables: topics whose ``$latest`` it is joined with.
        used: the tables and columns that it uses.
        batch: the query over the records of a batch: rows of the result, or parts of groups.
            Expressions of DuckDB's tree are written out, so it can look different.
        keys: the columns of the parts that identify a group.
        merged: for each other column of the parts, the function that merges it.
        result: the query over the merged parts, which are in a table ``{}``; empty without groups.
        time: the time whose windows it has, as an expression; empty without windows.
        limit: after how many rows it ends; None for never.
    """

    source: str
    tables: tuple[str, ...]
    used: Uses
    batch: str
    keys: tuple[str, ...] = ()
    merged: dict[str, str] = field(default_factory=dict)
    result: str = ""
    time: str = ""
    limit: int | None = None


def plan(database: duckdb.DuckDBPyConnection, statement: str, *, endless: bool = False) -> Plan:
    """Return how a query is kept current.

    Args:
        endless: whether nothing keeps its groups: then they must end, by their windows.

    Raises:
        StatementRefusedError: it can't be: the text says why.
        MalformedStatementError: it is malformed.
    """
    tree = tree_of(database, statement)
    (one,) = tree["statements"]
    node, limit = _checked(database, one["node"])
    source, tables = _tables(node["from_table"])
    if LATEST in str(source["table_name"]):
        raise _refused("it reads $latest of a topic, and not its new records")
    _check_parts(node)
    aggregates = _aggregate_names(database)
    items = node["select_list"]
    is_grouped = node["group_expressions"] or node["aggregate_handling"] == "FORCE_AGGREGATES"
    found = [_is_aggregate(item, aggregates) for item in items]
    where = (str(source["table_name"]), tuple(tables), uses(tree))
    window = window_of(_first(node["from_table"]))
    if not is_grouped and not any(found):
        text = statement_text(database, expanded(database, node))
        return Plan(*where, text, limit=limit)
    if limit is not None:
        raise _refused("it has LIMIT, and groups")
    if endless and window is None:
        raise _refused("its groups never end: it has no windows (tumble, hop)")
    return _grouped(database, node, found, where, window)


def _grouped(
    database: duckdb.DuckDBPyConnection,
    node: Node,
    found: Sequence[bool],
    where: tuple[str, tuple[str, ...], Uses],
    window: tuple[str, list[Node]] | None,
) -> Plan:
    items = node["select_list"]
    groups = _groups(database, node, found)
    parts: list[Node] = [_named(group, f"k{n}") for n, group in enumerate(groups)]
    keys, merged, result = [f"k{n}" for n in range(len(groups))], {}, []
    texts = [_plain_text(database, group) for group in groups]
    for number, (item, is_aggregate) in enumerate(zip(items, found, strict=True)):
        if not is_aggregate:
            text = _plain_text(database, item)
            place = next((n for n, each in enumerate(groups) if _is_same(each, item)), None)
            place = texts.index(text) if place is None and text in texts else place
            if place is None:
                raise _refused(f"{text} is not one of its groups")
            result.append((f"k{place}", item))
            continue
        columns = []
        for each in _PARTS[function_of(item)[0]]:
            column = f"p{number}_{each}"
            parts.append(_named(_with_function(item, each), column))
            merged[column] = _MERGED[each]
            columns.append(column)
        value = columns[0] if len(columns) == 1 else f"{columns[0]} / {columns[1]}"
        result.append((value, item))
    time = ""
    if window is not None:
        if not any(text.split(".")[-1] in ("window_start", "window_end") for text in texts):
            raise _refused("its groups have neither window_start nor window_end")
        time = time_text(text_of(database, window[1][1]))
        end = {"class": "COLUMN_REF", "type": "COLUMN_REF", "column_names": ["window_end"]}
        parts.append(_named({**end, "query_location": 0}, END))
        keys.append(END)
    parts.append(_named(_count(database), COUNT))
    merged[COUNT] = "sum"
    inner = {
        **node,
        "select_list": parts,
        "group_expressions": [],
        "group_sets": [],
        "aggregate_handling": "FORCE_AGGREGATES",
    }
    text = statement_text(database, expanded(database, inner))
    columns_text = ", ".join(f"{value} AS {_output(database, item)}" for value, item in result)
    return Plan(*where, text, tuple(keys), merged, f"SELECT {columns_text} FROM {{}}", time)


# --- what can be kept current --------------------------------------------------------------------


def _refused(why: str) -> StatementRefusedError:
    return StatementRefusedError(f"this query can't be kept current: {why}", hint="")


def _checked(database: duckdb.DuckDBPyConnection, node: Node) -> tuple[Node, int | None]:
    """Return the SELECT without its limit, and the limit."""
    if node.get("type") != "SELECT_NODE":
        raise _refused("it is a UNION or another set operation")
    if (node.get("cte_map") or {}).get("map"):
        raise _refused("it has WITH")
    limit = None
    for modifier in node["modifiers"]:
        is_limit = modifier["type"] == "LIMIT_MODIFIER" and modifier["offset"] is None
        if not is_limit or modifier.get("limit_type", "ROW_COUNT") != "ROW_COUNT":
            what = modifier["type"].removesuffix("_MODIFIER")
            raise _refused(f"it has {what} BY" if what == "ORDER" else f"it has {what}")
        ((limit,),) = ask(database, f"SELECT ({text_of(database, modifier['limit'])})::BIGINT")
        if limit is not None and limit < 0:
            raise MalformedStatementError("LIMIT is negative")
    for name in ("having", "sample", "qualify"):
        if node.get(name):
            raise _refused(f"it has {name.upper()}")
    if len(node["group_sets"]) > 1:
        raise _refused("it has several sets of groups")
    return {**node, "modifiers": []}, limit


def _first(node: Node) -> Node:
    while node.get("type") == "JOIN":
        node = node["left"]
    return node


def _tables(node: Node) -> tuple[Node, list[str]]:
    """Return the source, and the topics of the tables that it is joined with."""
    tables: list[str] = []
    while node.get("type") == "JOIN":
        right = node["right"]
        name = str(right.get("table_name", ""))
        if right.get("type") != "BASE_TABLE" or not name.endswith(LATEST):
            raise _refused("it joins with something else than a topic's $latest on the right side")
        if node["ref_type"] != "REGULAR" or node["join_type"] not in ("INNER", "LEFT"):
            raise _refused(f"it has a join of the kind {node['join_type']}, not INNER or LEFT")
        tables.append(name.removesuffix(LATEST))
        node = node["left"]
    table = table_of(node)
    if table is None or table.get("sample"):
        raise _refused("it reads something else than a topic")
    return table, tables


def _check_parts(node: Any) -> None:
    """Check that no part of a SELECT reads, or looks at other rows.

    Raises:
        StatementRefusedError: one does.
    """
    if isinstance(node, list):
        for each in node:
            _check_parts(each)
    elif isinstance(node, dict):
        if node.get("class") == "SUBQUERY" or node.get("type") == "SUBQUERY":
            raise _refused("it has a subquery")
        if node.get("class") == "WINDOW":
            raise _refused("it has a function over a window of rows (OVER)")
        for each in node.values():
            _check_parts(each)


def _aggregate_names(database: duckdb.DuckDBPyConnection) -> set[str]:
    asked = "SELECT DISTINCT function_name FROM duckdb_functions() WHERE function_type='aggregate'"
    return {str(name) for (name,) in ask(database, asked)} | {"count_star"}


def _is_aggregate(item: Node, names: set[str]) -> bool:
    """Return whether an item is one of the functions that can be merged.

    Raises:
        StatementRefusedError: it is another one, or one is inside of an expression.
    """
    name, arguments = function_of(item)
    if name in _PARTS and (name == "count_star" or len(arguments) <= 1):
        if item.get("distinct"):
            raise _refused(f"{name} counts DISTINCT values")
        if (item.get("order_bys") or {}).get("orders"):
            raise _refused(f"{name} has ORDER BY")
        return True
    if (other := _aggregate_in(item, names)) is not None:
        whole = f"{other} is not count, sum, min, max or avg"
        raise _refused(f"{other} is inside of an expression" if other in _PARTS else whole)
    return False


def _aggregate_in(node: Any, names: set[str]) -> str | None:
    inside: list[Any] = []
    if isinstance(node, list):
        inside = node
    elif isinstance(node, dict):
        function, _ = function_of(node)
        if function in names:
            return function
        inside = list(node.values())
    found = (_aggregate_in(each, names) for each in inside)
    return next((name for name in found if name), None)


# --- groups --------------------------------------------------------------------------------------


def _groups(database: duckdb.DuckDBPyConnection, node: Node, found: Sequence[bool]) -> list[Node]:
    """Return the expressions of GROUP BY: also those that it names by number, by alias or ALL."""
    items = node["select_list"]
    others = [item for item, is_aggregate in zip(items, found, strict=True) if not is_aggregate]
    if any(item.get("class") == "STAR" or item.get("type") == "STAR" for item in others):
        raise _refused("it groups by *")
    if not node["group_expressions"]:
        return others
    groups = []
    for each in node["group_expressions"]:
        names = each.get("column_names") or []
        if each.get("class") == "CONSTANT":
            place = int(text_of(database, each))
            if not 1 <= place <= len(items):
                raise MalformedStatementError(f"GROUP BY {place}: there are {len(items)} columns")
            groups.append(items[place - 1])
            continue
        same = [item for item in items if names and item.get("alias") == names[0]]
        groups.append(same[0] if len(names) == 1 and same else each)
    return groups


def _is_same(one: Node, other: Node) -> bool:
    """Return whether two columns are the same, of which one can be written with its table."""
    first, second = one.get("column_names"), other.get("column_names")
    if not first or not second:
        return False
    count = min(len(first), len(second))
    return [*first][-count:] == [*second][-count:]


def _plain_text(database: duckdb.DuckDBPyConnection, node: Node) -> str:
    return text_of(database, {**node, "alias": ""})


def _named(node: Node, name: str) -> Node:
    return {**node, "alias": name}


def _with_function(item: Node, name: str) -> Node:
    """Return a call of another function with the same arguments and the same filter."""
    made = copy.deepcopy(item)
    made["function_name"] = name
    if "qualified_name" in made:
        made["qualified_name"]["path"] = [name]
    return made


def _count(database: duckdb.DuckDBPyConnection) -> Node:
    node: Node = tree_of(database, "SELECT count(*)")["statements"][0]["node"]["select_list"][0]
    return node


def _output(database: duckdb.DuckDBPyConnection, item: Node) -> str:
    """Return the name that DuckDB gives an item, in double quotes."""
    name = item.get("alias") or (item.get("column_names") or [""])[-1]
    name = name or _plain_text(database, item)
    return '"' + str(name).replace('"', '""') + '"'


# --- the state of groups -------------------------------------------------------------------------


def merge(
    database: duckdb.DuckDBPyConnection,
    plan: Plan,
    state: str,
    parameters: Sequence[Any] = (),
    watermark: Any = None,
) -> int:
    """Merge the parts of a batch into the table of a state, and return how many rows were late.

    ``__changed`` then has the groups that have changed. It runs in the transaction that is open.

    Args:
        state: the name of the table, which is made if it is missing.
        watermark: rows in windows that end until then are late; None for never.
    """
    late = 0
    ask(database, f"CREATE OR REPLACE TEMP TABLE __delta AS {plan.batch}", parameters)
    if watermark is not None:
        ((found,),) = ask(
            database, f"SELECT sum({COUNT}) FROM __delta WHERE {END} <= ?", [watermark]
        )
        late = int(found or 0)
        ask(database, f"DELETE FROM __delta WHERE {END} <= ?", [watermark])
    ask(database, f"CREATE TABLE IF NOT EXISTS {state} AS FROM __delta LIMIT 0")
    same = " AND ".join(f"s.{key} IS NOT DISTINCT FROM d.{key}" for key in plan.keys) or "true"
    merged = [f"{function}({column}) AS {column}" for column, function in plan.merged.items()]
    ask(
        database,
        f"CREATE OR REPLACE TEMP TABLE __changed AS SELECT {', '.join([*plan.keys, *merged])} "
        f"FROM (SELECT s.* FROM {state} s SEMI JOIN __delta d ON {same} "
        "UNION ALL FROM __delta) GROUP BY ALL",
    )
    ask(database, f"DELETE FROM {state} s USING __changed d WHERE {same}")
    ask(database, f"INSERT INTO {state} BY NAME FROM __changed")
    return late
