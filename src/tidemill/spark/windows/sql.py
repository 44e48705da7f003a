"""Rewrite the windows in a SQL text to calls of Spark's own functions, before Spark parses it.

The windows can't be defined as functions in Spark, because the body of a temporary SQL function
must not contain ``window()``. So the text is rewritten at the calls that Spark's own parser finds,
and nowhere else:

    tumbling(ts, size)        window(ts, size)
    sliding(ts, size, slide)  window(ts, size, slide)
    hopping(ts, size, hop)    window(ts, size, hop); with gaps, window(ts, size, s) with a HAVING
                              that keeps the windows that start where a hop does
    session(ts, gap)          session_window(ts, gap)

``s`` is a slide that divides the hop. Spark moves the condition on ``window.start`` below the
aggregation, so events in the gaps, and windows that start between two hops, never reach the state.
Must not know: DataFrames, output modes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tidemill.spark.base.pyspark_private import jvm_of
from tidemill.spark.errors import WindowError
from tidemill.spark.windows.spec import (
    Kind,
    WindowSpec,
    hopping_spec,
    session_spec,
    sliding_spec,
    tumbling_spec,
)

_PARAMETERS: dict[Kind, tuple[tuple[str, ...], int]] = {
    Kind.TUMBLING: (("ts", "size", "start"), 2),
    Kind.SLIDING: (("ts", "size", "slide", "start"), 3),
    Kind.HOPPING: (("ts", "size", "hop", "start"), 3),
    Kind.SESSION: (("ts", "gap"), 2),
}
"""The names of the parameters, and how many of them are required."""

_SPECS: dict[Kind, Callable[..., WindowSpec]] = {
    Kind.TUMBLING: tumbling_spec,
    Kind.SLIDING: sliding_spec,
    Kind.HOPPING: hopping_spec,
    Kind.SESSION: session_spec,
}


def sql(spark: Any, text: str, **options: Any) -> Any:
    """Run ``spark.sql`` on a text with ``tumbling``, ``sliding``, ``hopping`` and ``session``.

    Example::

        sql(spark, "SELECT hopping(ts, '6 minutes', '10 minutes') AS window, count(*) "
                   "FROM events GROUP BY 1")

    Args:
        spark: the session.
        text: one SQL statement.
        options: further arguments of ``spark.sql``.

    Returns:
        The DataFrame of the statement.

    Raises:
        WindowError: a window's arguments are malformed, or a window with gaps is used in a place
            where events can't be dropped.
    """
    return spark.sql(rewrite(spark, text), **options)


def rewrite(spark: Any, text: str) -> str:
    """Return a text with calls of Spark's own functions instead of the windows.

    Args:
        text: one SQL statement. A statement that Spark can't parse is returned unchanged: Spark
            reports what is wrong with it when it runs it.

    Raises:
        WindowError: as in ``sql``.
    """
    if not any(f"{kind}" in text.lower() for kind in Kind):
        return text
    tree = _Tree.parse(spark, text)
    if tree is None:
        return text
    edits = _Edits(text)
    for name in tree.nodes("functionName"):
        if name.getText().lower() in tuple(Kind):
            _rewrite_call(edits, Kind(name.getText().lower()), name.getParent())
    return edits.apply()


@dataclass(slots=True)
class _Edits:
    """Replacements in a text, collected first and then applied together.

    Attributes:
        spans: the new text for each span of the old one.
    """

    text: str
    spans: dict[tuple[int, int], str] = field(default_factory=dict)

    def of(self, node: Any) -> str:
        first, end = _span(node)
        return self.text[first:end]

    def replace(self, node: Any, text: str) -> None:
        first, end = _span(node)
        if any(other[0] < first < other[1] for other in self.spans):
            raise WindowError(
                f"{self.of(node)}: a window can't be an argument of another window",
                hint="Aggregate by the inner window in a subquery, and use its column in the "
                "outer one.",
            )
        self.spans[first, end] = text

    def insert(self, at: int, text: str) -> None:
        self.spans[(at, at)] = self.spans.get((at, at), "") + text

    def apply(self) -> str:
        text = self.text
        for (first, end), new in sorted(self.spans.items(), reverse=True):
            text = text[:first] + new + text[end:]
        return text


@dataclass(frozen=True, slots=True)
class _Tree:
    """A statement, parsed by Spark's own ANTLR grammar."""

    jvm: Any
    root: Any

    @classmethod
    def parse(cls, spark: Any, text: str) -> _Tree | None:
        jvm = jvm_of(spark)
        grammar, antlr = jvm.org.apache.spark.sql.catalyst.parser, jvm.org.antlr.v4.runtime
        lexer = grammar.SqlBaseLexer(
            grammar.UpperCaseCharStream(antlr.CharStreams.fromString(text))
        )
        parser = grammar.SqlBaseParser(antlr.CommonTokenStream(lexer))
        for part in (lexer, parser):
            part.removeErrorListeners()  # they print
        root = parser.compoundOrSingleStatement()
        return None if parser.getNumberOfSyntaxErrors() else cls(jvm, root)

    def nodes(self, rule: str, below: Any = None) -> list[Any]:
        """Return all nodes of a rule of the grammar, in the order of the text."""
        number = getattr(
            self.jvm.org.apache.spark.sql.catalyst.parser.SqlBaseParser, f"RULE_{rule}"
        )
        root = self.root if below is None else below
        return list(self.jvm.org.antlr.v4.runtime.tree.Trees.findAllRuleNodes(root, number))


def _rewrite_call(edits: _Edits, kind: Kind, call: Any) -> None:
    ts, spec = _arguments(edits, kind, call)
    slide = spec.slide_with_gaps() if spec.has_gaps else spec.step
    named = _selected_as(call)
    if kind is Kind.SESSION:
        # Without an alias in the SELECT list, Spark would name the column session_window.
        suffix = " AS window" if named == "" else ""
        edits.replace(call, f"session_window({ts}, {_text(spec.size)}){suffix}")
        return
    start = _text(spec.start % slide)
    edits.replace(call, f"window({ts}, {_text(spec.size)}, {_text(slide)}, {start})")
    if spec.has_gaps:
        _drop_gaps(edits, call, spec, named or "window")


def _drop_gaps(edits: _Edits, call: Any, spec: WindowSpec, name: str) -> None:
    """Add a condition to the HAVING of the call's query: windows start where a hop does."""
    query = call
    while query is not None and _rule(query) != "RegularQuerySpecification":
        query = query.getParent()
    groups = query.aggregationClause() if query is not None else None
    if query is None or groups is None:
        raise WindowError(
            f"{edits.of(call)}: a window with gaps must be used in a SELECT with GROUP BY",
            hint="Group by it: SELECT hopping(...) AS window, count(*) FROM t GROUP BY 1.",
        )
    words = {token.upper() for token in edits.of(groups).replace("(", " ").split()}
    if words & {"ROLLUP", "CUBE", "SETS"}:
        raise WindowError(
            f"{edits.of(call)}: a window with gaps can't be used with ROLLUP, CUBE or "
            "GROUPING SETS",
            hint="Group by the window alone in a subquery, and roll up its result.",
        )
    condition = f"pmod(unix_micros({name}.start) - {spec.start}, {spec.step}) = 0"
    having = query.havingClause()
    if having is None:
        at, text = _span(groups)[1], f" HAVING {condition}"
        if (at, at) not in edits.spans:  # SELECT and GROUP BY may both hold the call
            edits.insert(at, text)
        return
    first, end = _span(having.booleanExpression())
    if (first, first) not in edits.spans:
        edits.insert(first, "(")
        edits.insert(end, f") AND {condition}")


def _arguments(edits: _Edits, kind: Kind, call: Any) -> tuple[str, WindowSpec]:
    """Return the time column as text, and the window."""
    names, needed = _PARAMETERS[kind]
    signature = f"{kind}({', '.join(names[:needed])}{'[, start]' if 'start' in names else ''})"
    given: dict[str, str] = {}
    for position, argument in enumerate(call.functionArgument()):
        named = argument.namedArgumentExpression()
        if named is not None:
            name, value = named.getChild(0).getText().lower(), edits.of(named.getChild(2))
        else:
            name = names[position] if position < len(names) else ""
            value = edits.of(argument)
        if name not in names or name in given:
            raise WindowError(f"{edits.of(call)}: unknown argument", hint=f"Use {signature}.")
        given[name] = value
    missing = [name for name in names[:needed] if name not in given]
    if missing:
        raise WindowError(
            f"{edits.of(call)}: the argument {missing[0]} is missing", hint=f"Use {signature}."
        )
    ts = given.pop("ts")
    try:
        return ts, _SPECS[kind](**{name: _literal(value) for name, value in given.items()})
    except WindowError as error:
        raise WindowError(f"{edits.of(call)}: {error}", hint=error.hint) from None


def _literal(text: str) -> str:
    """Return the duration in '6 minutes', INTERVAL 6 MINUTES or INTERVAL '6' MINUTES."""
    if text[:1] in "'\"" and text[-1:] == text[:1]:
        return text[1:-1]
    words = text.replace("'", " ").replace('"', " ").split()
    if words and words[0].upper() == "INTERVAL":
        return " ".join(words)
    raise WindowError(
        f"{text} is not a literal", hint="Durations in SQL must be literals: '6 minutes'."
    )


def _selected_as(call: Any) -> str | None:
    """Return the alias of a SELECT's item that consists of this call only.

    Returns:
        An empty string if the item has no alias; None if the call is elsewhere.
    """
    node = call
    while _rule(node) != "NamedExpression":
        parent = node.getParent()
        if parent is None or (parent.getChildCount() != 1 and _rule(parent) != "NamedExpression"):
            return None
        node = parent
    in_select = _rule(node.getParent()) == "NamedExpressionSeq"
    if not in_select:
        return None
    return (
        str(node.getChild(node.getChildCount() - 1).getText()) if node.getChildCount() > 1 else ""
    )


def _rule(node: Any) -> str:
    name: str = node.getClass().getSimpleName()
    return name.removesuffix("Context")


def _span(node: Any) -> tuple[int, int]:
    """Return where a node of the tree begins and ends in the text, in code points."""
    return node.getStart().getStartIndex(), node.getStop().getStopIndex() + 1


def _text(micros: int) -> str:
    return f"'{micros} microseconds'"
