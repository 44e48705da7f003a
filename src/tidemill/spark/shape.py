"""What a streaming DataFrame is made of, read from Spark's analysed plan: sources, and its state.

Spark's checkpoint holds offsets by the position of a source, and state by the position of an
operator and its columns. What of a plan decides about them is written down here in a form that is
the same in each session and for each spelling: no numbers that Spark gives anew, no names of what
is computed, no columns that nobody needs (Spark prunes them), nothing above the state, nothing of
how a stream's records are parsed. Must not know: checkpoints' files, sinks, pipelines.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from tidemill.spark.checkpoint import Shape

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FORMAT = 1
"""Of the text; shapes of another one, or of another Spark, are not compared."""

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
# Numbers that Spark gives anew in each session, and the watermark's delay, which may be changed.
_NUMBERED = re.compile(r"(?<=[\w)`\]'\"])#(\d+)L?")
_LAST_NUMBER = re.compile(r"#(\d+)L?(?:-T\d+ms)?$", re.MULTILINE)
_ANEW = re.compile(
    r"-T\d+ms|plan_id=\d+|\[id=#\d+\]|@[0-9a-f]{4,}\b"
    r"|\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b"
)

_WINDOWS = ("window", "session_window", "__tidemill_window")
_NUMBER = re.compile(r"\b[1-9]\d*\b")

Needed = frozenset[str]
"""Numbers of the columns that are used further up."""


def mark(df: DataFrame, what: str) -> DataFrame:
    """Say that a stream's columns are known as ``what``: how it is made of its source is hidden."""
    return df.alias(f"{_INPUT}{what}")


def shape_of(df: DataFrame, mode: str) -> Shape:
    """The shape of a query.

    Args:
        df: its result; nothing is run.
        mode: its output mode.
    """
    plan = df._jdf.queryExecution().analyzed()
    reader = _Reader()
    state = tuple(reader.lines(plan, _ids(plan.output()), 0))
    return Shape(
        sources=tuple(_sources(plan)),
        mode=mode,
        state=state,
        made_by=f"{FORMAT} {df.sparkSession.version}",
    )


class _Reader:
    """Walks down a plan. Depth 0 is above all state; nothing is written there."""

    def __init__(self) -> None:
        self._named: dict[int, Any] = {}  # WITH name AS (...)

    def lines(self, node: Any, needed: Needed, depth: int) -> Iterator[str]:
        """What of a node and all below it decides about state."""
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

    def _below(self, node: Any, needed: Needed, depth: int) -> Iterator[str]:
        for child in _items(node.children()):
            yield from self.lines(child, needed, depth)

    def _other(self, node: Any, depth: int) -> Iterator[str]:
        """An operator of which only its text is known: it may need every column."""
        name = node.nodeName()
        depth += name in _STATEFUL and not depth
        if depth:
            yield _line(depth, f"{name} {_plain(node.simpleString(10_000))}")
        for child in _items(node.children()):
            yield from self.lines(child, _ids(child.output()), depth and depth + 1)

    def _project(self, node: Any, needed: Needed, depth: int) -> Iterator[str]:
        kept = [each for each in _items(node.projectList()) if _id(each) in needed]
        made = [each for each in kept if each.nodeName() != "AttributeReference"]
        if depth:
            for each in made:
                yield _line(depth, f"with {_made(each)}")
        passed = frozenset(_id(each) for each in kept) - {_id(each) for each in made}
        yield from self._below(node, passed | _used(made), depth)

    def _filter(self, node: Any, needed: Needed, depth: int) -> Iterator[str]:
        condition = node.condition()
        if depth:
            yield _line(depth, f"where {_plain(condition.toString())}")
        yield from self._below(node, needed | _used([condition]), depth)

    def _aggregate(self, node: Any, needed: Needed, depth: int) -> Iterator[str]:
        keys = list(_items(node.groupingExpressions()))
        results = [each for each in _items(node.aggregateExpressions()) if _id(each) in needed]
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

    def _join(self, node: Any, needed: Needed, depth: int) -> Iterator[str]:
        condition = node.condition()
        on = condition.get() if condition.isDefined() else None
        needed |= _used([] if on is None else [on])
        sides = list(_items(node.children()))
        keeps_state = all(side.isStreaming() for side in sides)
        depth += keeps_state and not depth
        if depth:
            text = "" if on is None else f" on {_plain(_with_sides(on.toString(), sides[0]))}"
            yield _line(depth, f"join {node.joinType().toString()}{text}")
            if keeps_state:  # of rows as they are: what is used above counts
                for side in sides:
                    yield _line(depth, f"of {_columns(side, needed)}")
        for side in sides:
            yield from self.lines(side, needed, depth and depth + 1)

    def _deduplicate(self, node: Any, needed: Needed, depth: int) -> Iterator[str]:
        keys = list(_items(node.keys()))
        depth += not depth
        yield _line(depth, f"{node.nodeName()} {', '.join(_plain(k.toString()) for k in keys)}")
        yield from self._below(node, _carried(node, needed) | _used(keys), depth + 1)

    _deduplicatewithinwatermark = _deduplicate

    def _globallimit(self, node: Any, needed: Needed, depth: int) -> Iterator[str]:
        depth += not depth
        yield _line(depth, "limit")
        yield from self._below(node, _carried(node, needed), depth + 1)

    def _union(self, node: Any, needed: Needed, depth: int) -> Iterator[str]:
        if depth:
            yield _line(depth, "union")
        for child in _items(node.children()):
            yield from self.lines(child, _same_places(node, needed, child), depth and depth + 1)

    def _withcte(self, node: Any, needed: Needed, depth: int) -> Iterator[str]:
        for each in _items(node.cteDefs()):
            self._named[each.id()] = each.child()
        yield from self.lines(node.plan(), needed, depth)

    def _cterelationref(self, node: Any, needed: Needed, depth: int) -> Iterator[str]:
        meant = self._named[node.cteId()]
        yield from self.lines(meant, _same_places(node, needed, meant), depth)


def _sources(node: Any) -> Iterator[str]:
    """Where a plan's streams come from, in its order."""
    children = list(_items(node.children()))
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
    for child in _items(expression.children()):
        yield from _aggregate_calls(child)


def _carried(node: Any, needed: Needed) -> Needed:
    """Columns that pass an operator which keeps none: they count for the rows of a join below."""
    return needed if _has_join(node) else frozenset()


def _has_join(node: Any) -> bool:
    return node.nodeName() == "Join" or any(_has_join(each) for each in _items(node.children()))


def _same_places(node: Any, needed: Needed, child: Any) -> Needed:
    """A child's columns at the places of those that are needed of a node."""
    pairs = zip(_items(node.output()), _items(child.output()), strict=True)
    return frozenset(_id(below) for above, below in pairs if _id(above) in needed)


def _columns(node: Any, needed: Needed) -> str:
    made = [
        f"{each.name()} {each.dataType().simpleString()}"
        for each in _items(node.output())
        if _id(each) in needed
    ]
    return ", ".join(made) or "no columns"


def _ids(attributes: Any) -> Needed:
    # As one text: a call of the JVM for each would take longer than all else.
    return frozenset(_LAST_NUMBER.findall(attributes.mkString("\n")))


def _id(expression: Any) -> str:
    return str(expression.exprId().id())


def _used(expressions: Iterable[Any]) -> Needed:
    """Columns in expressions, and their own numbers, which do no harm."""
    return frozenset(n for each in expressions for n in _NUMBERED.findall(each.toString()))


def _plain(text: str) -> str:
    return _ANEW.sub("", _NUMBERED.sub("", text))


def _with_sides(text: str, left: Any) -> str:
    """Both sides may have columns of the same name."""
    ids = _ids(left.output())
    return _NUMBERED.sub(lambda found: " (left)" if found[1] in ids else " (right)", text)


def _made(expression: Any) -> str:
    """A column that is computed. Spark writes a window as half a page: its numbers tell it."""
    text = _plain(expression.toString())
    if expression.name() not in _WINDOWS:
        return text
    numbers = ", ".join(dict.fromkeys(_NUMBER.findall(text)))
    used = ", ".join(sorted(_plain(each.toString()) for each in _items(_references(expression))))
    return f"{expression.name()} of {used}: {numbers} microseconds"


def _references(expression: Any) -> Any:
    return expression.references().toSeq()


def _line(depth: int, text: str) -> str:
    return f"{'  ' * (depth - 1)}{text}"


def _items(seq: Any) -> Iterator[Any]:
    """The elements of a Scala Seq."""
    for index in range(seq.size()):
        yield seq.apply(index)
