"""Compute the fingerprint of a query from Spark's analysed plan: its sources and its state.

Spark's checkpoint stores offsets by the position of a source, and state by the position of an
operator and its columns. The fingerprint is text about the parts of a plan that decide about them.
It is the same in each session and for each spelling of a query. It leaves out: the numbers that
Spark assigns in each session, the names of computed columns, unused columns (Spark prunes them),
all operators above the state, and the parsing of a stream's records. Must not know: the files of a
checkpoint, sinks, pipelines.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from tidemill.spark.base.pyspark_private import analyzed_plan
from tidemill.spark.pipelines.checkpoint import Fingerprint

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FORMAT = 2
"""Version of the text. ``earlier_fingerprints`` converts those of earlier versions. Fingerprints of
different versions of Spark are not compared."""

_INPUT = "__tidemill_input "
_PASSED = frozenset({"SubqueryAlias", "View", "EventTimeWatermark", "CollectMetrics", "LocalLimit"})
_STATEFUL = frozenset(
    {
        "Distinct",
        "FlatMapGroupsInPandasWithState",
        "FlatMapGroupsWithState",
        "TransformWithState",
        "TransformWithStateInPandas",
        "TransformWithStateInPySpark",
    }
)
# Numbers that Spark assigns in each session, and the watermark's delay, which may be changed.
_NUMBERED = re.compile(r"(?<=[\w)`\]'\"])#(\d+)L?")
_LAST_NUMBER = re.compile(r"#(\d+)L?(?:-T\d+ms)?$", re.MULTILINE)
_VOLATILE = re.compile(
    r"-T\d+ms|plan_id=\d+|\[id=#\d+\]|@[0-9a-f]{4,}\b"
    r"|\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b"
)

_WINDOWS = ("window", "session_window", "__tidemill_window")
_NUMBER = re.compile(r"\b[1-9]\d*\b")

Ids = frozenset[str]
"""Spark's numbers of columns."""


def mark(df: DataFrame, what: str) -> DataFrame:
    """Mark a stream as an input with a name: fingerprints show the name and not the plan below.

    Args:
        what: the name in fingerprints, for example ``topic departures``.
    """
    return df.alias(f"{_INPUT}{what}")


def fingerprint_of(df: DataFrame, mode: str) -> Fingerprint:
    """Return the fingerprint of a query.

    Args:
        df: the query's result. It is not computed.
    """
    plan = analyzed_plan(df)
    reader = _Reader()
    state = tuple(reader.lines(plan, ids_of(plan.output()), 0))
    return Fingerprint(
        sources=tuple(_sources(plan)),
        mode=mode,
        state=state,
        made_by=f"{FORMAT} {df.sparkSession.version}",
    )


class _Reader:
    """Walks down a plan. Operators above all state have depth 0 and give no lines."""

    def __init__(self) -> None:
        self._ctes: dict[int, Any] = {}  # the plans of WITH name AS (...), by Spark's number

    def lines(self, node: Any, needed: Ids, depth: int) -> Iterator[str]:
        """Yield lines about the parts of a node, and of all nodes below, that decide about state.

        Args:
            needed: the columns of the node that operators above use.
            depth: the number of operators above, counted from the first one that keeps state.
        """
        name = node.nodeName()
        if not node.isStreaming():
            if depth:
                yield _line(depth, f"a batch with {_columns(node, needed)}")
            return
        known = _input_name(node) if name == "SubqueryAlias" else None
        if known is not None:
            if depth:
                yield _line(depth, f"{known} with {_columns(node, needed)}")
            return
        found = getattr(self, f"_{name.lower()}", None)
        if found is not None:
            yield from found(node, needed, depth)
        elif name in _PASSED:
            yield from self._below(node, needed, depth)
        elif node.children().size() == 0:
            if depth:
                yield _line(depth, f"{_source(node)} with {_columns(node, needed)}")
        else:
            yield from self._other(node, depth)

    def _below(self, node: Any, needed: Ids, depth: int) -> Iterator[str]:
        for child in items(node.children()):
            yield from self.lines(child, needed, depth)

    def _other(self, node: Any, depth: int) -> Iterator[str]:
        """Yield lines for an operator of which only the text is known: it may use all columns."""
        name = node.nodeName()
        depth += name in _STATEFUL and not depth
        if depth:
            yield _line(depth, f"{name} {_plain(node.simpleString(10_000))}")
        for child in items(node.children()):
            yield from self.lines(child, ids_of(child.output()), depth and depth + 1)

    def _project(self, node: Any, needed: Ids, depth: int) -> Iterator[str]:
        kept = [each for each in items(node.projectList()) if id_of(each) in needed]
        made = [each for each in kept if each.nodeName() != "AttributeReference"]
        if depth:
            for each in made:
                yield _line(depth, f"with {_made(each)}")
        passed = frozenset(id_of(each) for each in kept) - {id_of(each) for each in made}
        yield from self._below(node, passed | _used(made), depth)

    def _filter(self, node: Any, needed: Ids, depth: int) -> Iterator[str]:
        condition = node.condition()
        if depth:
            yield _line(depth, f"where {_plain(condition.toString())}")
        yield from self._below(node, needed | _used([condition]), depth)

    def _aggregate(self, node: Any, needed: Ids, depth: int) -> Iterator[str]:
        keys = list(items(node.groupingExpressions()))
        results = [each for each in items(node.aggregateExpressions()) if id_of(each) in needed]
        functions = list(
            dict.fromkeys(
                _plain(call.toString()) for each in results for call in _aggregate_calls(each)
            )
        )
        what = f"aggregate {', '.join(functions) or 'nothing'}"
        by = ", ".join(_plain(each.toString()) for each in keys)
        depth += not depth
        yield _line(depth, f"{what} by {by}" if by else what)
        yield from self._below(node, _used([*keys, *results]), depth + 1)

    def _join(self, node: Any, needed: Ids, depth: int) -> Iterator[str]:
        condition = node.condition()
        on = condition.get() if condition.isDefined() else None
        needed |= _used([] if on is None else [on])
        sides = list(items(node.children()))
        keeps_state = all(side.isStreaming() for side in sides)
        depth += keeps_state and not depth
        if depth:
            text = "" if on is None else f" on {_plain(_with_sides(on.toString(), sides[0]))}"
            yield _line(depth, f"join {node.joinType().toString()}{text}")
            if keeps_state:  # The state holds whole rows: the columns that are used above.
                for side in sides:
                    yield _line(depth, f"of {_columns(side, needed)}")
        for side in sides:
            yield from self.lines(side, needed, depth and depth + 1)

    def _deduplicate(self, node: Any, needed: Ids, depth: int) -> Iterator[str]:
        keys = list(items(node.keys()))
        depth += not depth
        yield _line(depth, f"{node.nodeName()} {', '.join(_plain(k.toString()) for k in keys)}")
        yield from self._below(node, _carried(node, needed) | _used(keys), depth + 1)

    _deduplicatewithinwatermark = _deduplicate

    def _globallimit(self, node: Any, needed: Ids, depth: int) -> Iterator[str]:
        depth += not depth
        yield _line(depth, "limit")
        yield from self._below(node, _carried(node, needed), depth + 1)

    def _union(self, node: Any, needed: Ids, depth: int) -> Iterator[str]:
        if depth:
            yield _line(depth, "union")
        for child in items(node.children()):
            yield from self.lines(child, same_positions(node, needed, child), depth and depth + 1)

    def _withcte(self, node: Any, needed: Ids, depth: int) -> Iterator[str]:
        for each in items(node.cteDefs()):
            self._ctes[each.id()] = each.child()
        yield from self.lines(node.plan(), needed, depth)

    def _cterelationref(self, node: Any, needed: Ids, depth: int) -> Iterator[str]:
        plan = self._ctes[node.cteId()]
        yield from self.lines(plan, same_positions(node, needed, plan), depth)


def _sources(node: Any) -> Iterator[str]:
    """Yield the sources of a plan's streams, in its order."""
    children = list(items(node.children()))
    if not children and node.isStreaming() and node.nodeName() != "CTERelationRef":
        yield _source(node)
    for child in children:
        yield from _sources(child)


def _source(node: Any) -> str:
    if node.nodeName() != "StreamingRelationV2":
        return str(node.nodeName())
    options = node.extraOptions()
    for name in ("subscribe", "subscribePattern", "assign"):
        if options.containsKey(name):
            kind = "" if node.sourceName() == "tidemill" else f" of {node.sourceName()}"
            return f"topic {options.get(name)}{kind}"
    return str(node.sourceName())


def _input_name(node: Any) -> str | None:
    name = str(node.identifier().name())
    return name.removeprefix(_INPUT) if name.startswith(_INPUT) else None


def _aggregate_calls(expression: Any) -> Iterator[Any]:
    if expression.getClass().getSimpleName() in ("AggregateExpression", "PythonUDAF"):
        yield expression
        return
    for child in items(expression.children()):
        yield from _aggregate_calls(child)


def _carried(node: Any, needed: Ids) -> Ids:
    """Return the columns that pass through an operator to a join below, whose state holds them."""
    return needed if _has_join(node) else frozenset()


def _has_join(node: Any) -> bool:
    return node.nodeName() == "Join" or any(_has_join(each) for each in items(node.children()))


def same_positions(node: Any, needed: Ids, child: Any) -> Ids:
    """Return the child's columns at the positions of a node's needed columns."""
    pairs = zip(items(node.output()), items(child.output()), strict=True)
    return frozenset(id_of(below) for above, below in pairs if id_of(above) in needed)


def _columns(node: Any, needed: Ids) -> str:
    made = [
        f"{each.name()} {each.dataType().simpleString()}"
        for each in items(node.output())
        if id_of(each) in needed
    ]
    return ", ".join(made) or "no columns"


def ids_of(attributes: Any) -> Ids:
    """Return the numbers of a Scala Seq of columns."""
    # One text for all: one call into the JVM for each attribute would be slow.
    return frozenset(_LAST_NUMBER.findall(attributes.mkString("\n")))


def id_of(expression: Any) -> str:
    """Return the number of a column."""
    return str(expression.exprId().id())


def _used(expressions: Iterable[Any]) -> Ids:
    """Return the columns that expressions use, and the expressions' own numbers."""
    return frozenset(n for each in expressions for n in _NUMBERED.findall(each.toString()))


def _plain(text: str) -> str:
    return _VOLATILE.sub("", _NUMBERED.sub("", text))


def _with_sides(text: str, left: Any) -> str:
    """Mark each column of a join's condition with its side: both may have the same name."""
    ids = ids_of(left.output())
    return _NUMBERED.sub(lambda found: " (left)" if found[1] in ids else " (right)", text)


def _made(expression: Any) -> str:
    """Return the text of a computed column; of a window, only its columns and durations.

    Spark's own text of a window is half a page long.
    """
    text = _plain(expression.toString())
    if expression.name() not in _WINDOWS:
        return text
    numbers = ", ".join(dict.fromkeys(_NUMBER.findall(text)))
    used = ", ".join(sorted(_plain(each.toString()) for each in items(references_of(expression))))
    return f"{expression.name()} of {used}: {numbers} microseconds"


def references_of(expression: Any) -> Any:
    """Return the columns that an expression uses, as a Scala Seq."""
    return expression.references().toSeq()


def _line(depth: int, text: str) -> str:
    return f"{'  ' * (depth - 1)}{text}"


def items(seq: Any) -> Iterator[Any]:
    """Yield the elements of a Scala Seq."""
    for index in range(seq.size()):
        yield seq.apply(index)
