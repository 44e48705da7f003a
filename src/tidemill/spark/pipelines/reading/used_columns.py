"""Find which columns of each stream a query uses, from Spark's analysed plan.

Operators that are not known here use all columns, so a column that is left out is one whose values
no result depends on. Must not know: files, sinks, how values are parsed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from tidemill.spark.base.pyspark_private import analyzed_plan
from tidemill.spark.pipelines.fingerprint import (
    Ids,
    id_of,
    ids_of,
    items,
    references_of,
    same_positions,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_PASSED = frozenset({"SubqueryAlias", "View", "LocalLimit", "GlobalLimit"})


def used_columns(df: DataFrame, option: str) -> dict[str, frozenset[str]] | None:
    """Return the columns that a query uses of each of its streams.

    Args:
        df: the query's result. It is not computed.
        option: an option of the streams' sources, which tells streams apart.

    Returns:
        Value of the option -> names of columns; None if that is not known.
    """
    plan = analyzed_plan(df)
    if plan.subqueriesAll().size():  # their plans are inside of expressions
        return None
    found: dict[str, frozenset[str]] = {}
    for name, columns in _Walk(option).of(plan, ids_of(plan.output())):
        found[name] = found.get(name, frozenset()) | columns
    return found


class _Walk:
    """A walk down a plan, with the columns of each node that operators above use."""

    def __init__(self, option: str) -> None:
        self._option = option
        self._ctes: dict[int, Any] = {}  # the plans of WITH name AS (...), by Spark's number

    def of(self, node: Any, needed: Ids) -> Iterator[tuple[str, frozenset[str]]]:
        """Yield the columns of each source below a node that the node needs."""
        if not node.isStreaming():
            return
        name = node.nodeName()
        if node.children().size() == 0 and name != "CTERelationRef":
            yield from self._source(node, needed)
            return
        for child, wanted in self._below(node, name, needed):
            yield from self.of(child, wanted)

    def _source(self, node: Any, needed: Ids) -> Iterator[tuple[str, frozenset[str]]]:
        if node.nodeName() == "StreamingRelationV2":
            options = node.extraOptions()
            if options.containsKey(self._option):
                names = frozenset(str(e.name()) for e in items(node.output()) if id_of(e) in needed)
                yield str(options.get(self._option)), names

    def _below(self, node: Any, name: str, needed: Ids) -> Iterable[tuple[Any, Ids]]:
        """Return the children of a node, with the columns that they must have."""
        if name == "WithCTE":
            for each in items(node.cteDefs()):
                self._ctes[each.id()] = each.child()
            return [(node.plan(), needed)]
        if name == "CTERelationRef":
            plan = self._ctes[node.cteId()]
            return [(plan, same_positions(node, needed, plan))]
        children = list(items(node.children()))
        if name == "Union":
            return [(each, same_positions(node, needed, each)) for each in children]
        outputs = [ids_of(each.output()) for each in children]
        wanted = _expected(node, name, needed)
        if wanted is None or not wanted <= frozenset().union(*outputs):  # not as expected
            return list(zip(children, outputs, strict=True))
        return [(each, wanted & ids) for each, ids in zip(children, outputs, strict=True)]


def _expected(node: Any, name: str, needed: Ids) -> Ids | None:
    """Return the columns that an operator needs of its children; None if that is not known."""
    if name in _PASSED:
        return needed
    if name == "Project":
        return _used(each for each in items(node.projectList()) if id_of(each) in needed)
    if name == "Expand":  # of sliding windows: a row for each list of expressions
        kept = [index for index, each in enumerate(items(node.output())) if id_of(each) in needed]
        return _used(row.apply(index) for row in items(node.projections()) for index in kept)
    if name == "Filter":
        return needed | _used([node.condition()])
    if name == "Aggregate":
        return _used([*items(node.groupingExpressions()), *items(node.aggregateExpressions())])
    if name == "Join":
        condition = node.condition()
        return needed | (_used([condition.get()]) if condition.isDefined() else frozenset())
    if name == "EventTimeWatermark":
        return needed | _used([node.eventTime()])
    if name == "CollectMetrics":
        return needed | _used(items(node.metrics()))
    if name in ("Deduplicate", "DeduplicateWithinWatermark"):
        return needed | _used(items(node.keys()))
    return None


def _used(expressions: Iterable[Any]) -> Ids:
    # Not by their texts: Spark shortens those with many columns.
    return frozenset().union(*[ids_of(references_of(each)) for each in expressions])
