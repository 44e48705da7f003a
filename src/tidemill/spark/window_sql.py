"""The windows in SQL: their calls are put in Spark's own words before Spark reads the text.

Spark can't be taught the names: a temporary SQL function's body may not hold ``window()``. So the
text is rewritten where Spark's own parser says a call stands, and nowhere else:

    tumbling(ts, size)        window(ts, size)
    sliding(ts, size, slide)  window(ts, size, slide)
    hopping(ts, size, hop)    the same; with gaps, window(ts, size, s) HAVING its start is a hop's
    session(ts, gap)          session_window(ts, gap)

``s`` is a slide that divides the hop. Spark moves the condition on ``window.start`` below the
aggregation: events in the gaps, and windows at starts that are no hop's, never reach the state.
Must not know: DataFrames, output modes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tidemill.errors import WindowError
from tidemill.spark.window_spec import (
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
"""Names of the parameters, and how many of them must be given."""

_SPECS: dict[Kind, Callable[..., WindowSpec]] = {
    Kind.TUMBLING: tumbling_spec,
    Kind.SLIDING: sliding_spec,
    Kind.HOPPING: hopping_spec,
    Kind.SESSION: session_spec,
}


def sql(spark: Any, text: str, **options: Any) -> Any:
    """``spark.sql``, with ``tumbling``, ``sliding``, ``hopping`` and ``session`` in the text.

    Example::

        sql(spark, "SELECT hopping(ts, '6 minutes', '10 minutes') AS window, count(*) "
                   "FROM events GROUP BY 1")

    Args:
        spark: the session.
        text: one SQL statement.
        options: as of ``spark.sql``.

    Raises:
        WindowError: a window's arguments are malformed, or a window with gaps stands where its
            events can't be left out.
    """
    return spark.sql(rewrite(spark, text), **options)


def rewrite(spark: Any, text: str) -> str:
    """The text in Spark's own words; all but the windows is left as it is.

    Args:
        spark: the session, of which the parser is asked.
        text: one SQL statement. One that Spark can't parse is returned as it is: Spark says best
            what is wrong with it.

    Raises:
        WindowError: as ``sql``.
    """
    if not any(f"{kind}" in text.lower() for kind in Kind):
        return text
    tree = _Tree.parse(spark, text)
    if tree is None:
        return text
    edits = _Edits(text)
    for name in tree.nodes("functionName"):
        if name.getText().lower() in tuple(Kind):
            _rewrite_call(tree, edits, Kind(name.getText().lower()), name.getParent())
    return edits.apply()


@dataclass(slots=True)
class _Edits:
    """Replacements of spans of a text, each made once."""

    text: str
    spans: dict[tuple[int, int], str] = field(default_factory=dict)

    def of(self, node: Any) -> str:
        first, end = _span(node)
        return self.text[first:end]

    def replace(self, node: Any, text: str) -> None:
        first, end = _span(node)
        if any(other[0] < first < other[1] for other in self.spans):
            raise WindowError(
                f"{self.of(node)}: a window can't stand in another's arguments",
                hint="Aggregate by the inner one in a subquery, and give its column to the outer.",
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
    """A parsed statement: Spark's own grammar, through ANTLR."""

    jvm: Any
    root: Any

    @classmethod
    def parse(cls, spark: Any, text: str) -> _Tree | None:
        jvm = spark._jvm
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
        """All nodes of a rule of the grammar, in the order of the text."""
        number = getattr(
            self.jvm.org.apache.spark.sql.catalyst.parser.SqlBaseParser, f"RULE_{rule}"
        )
        root = self.root if below is None else below
        return list(self.jvm.org.antlr.v4.runtime.tree.Trees.findAllRuleNodes(root, number))


def _rewrite_call(tree: _Tree, edits: _Edits, kind: Kind, call: Any) -> None:
    ts, spec = _arguments(edits, kind, call)
    slide = spec.slide_with_gaps() if spec.has_gaps else spec.step
    named = _selected_as(call)
    if kind is Kind.SESSION:
        # Alone in the SELECT list it would be called session_window.
        suffix = " AS window" if named == "" else ""
        edits.replace(call, f"session_window({ts}, {_text(spec.size)}){suffix}")
        return
    start = _text(spec.start % slide)
    edits.replace(call, f"window({ts}, {_text(spec.size)}, {_text(slide)}, {start})")
    if spec.has_gaps:
        _leave_gaps_out(tree, edits, call, spec, named or "window")


def _leave_gaps_out(tree: _Tree, edits: _Edits, call: Any, spec: WindowSpec, name: str) -> None:
    """Add to the HAVING of the call's query that windows start where a hop does."""
    query = call
    while query is not None and _rule(query) != "RegularQuerySpecification":
        query = query.getParent()
    groups = query.aggregationClause() if query is not None else None
    if query is None or groups is None:
        raise WindowError(
            f"{edits.of(call)}: a window with gaps must stand in a SELECT with GROUP BY",
            hint="Group by it: SELECT hopping(...) AS window, count(*) FROM t GROUP BY 1.",
        )
    words = {token.upper() for token in edits.of(groups).replace("(", " ").split()}
    if words & {"ROLLUP", "CUBE", "SETS"}:
        raise WindowError(
            f"{edits.of(call)}: a window with gaps can't be grouped by ROLLUP, CUBE or "
            "GROUPING SETS",
            hint="Group by it alone in a subquery, and roll up that.",
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
    """The time column as text, and the window."""
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
            raise WindowError(f"{edits.of(call)}: no such argument", hint=f"Use {signature}.")
        given[name] = value
    missing = [name for name in names[:needed] if name not in given]
    if missing:
        raise WindowError(f"{edits.of(call)}: {missing[0]} is missing", hint=f"Use {signature}.")
    ts = given.pop("ts")
    try:
        return ts, _SPECS[kind](**{name: _literal(value) for name, value in given.items()})
    except WindowError as error:
        raise WindowError(f"{edits.of(call)}: {error}", hint=error.hint) from None


def _literal(text: str) -> str:
    """The duration in a literal: '6 minutes', INTERVAL 6 MINUTES or INTERVAL '6' MINUTES."""
    if text[:1] in "'\"" and text[-1:] == text[:1]:
        return text[1:-1]
    words = text.replace("'", " ").replace('"', " ").split()
    if words and words[0].upper() == "INTERVAL":
        return " ".join(words)
    raise WindowError(f"{text} is no literal", hint="Durations in SQL are literals: '6 minutes'.")


def _selected_as(call: Any) -> str | None:
    """The alias of an item of a SELECT that is this call and nothing else; "" if it has none."""
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
    """First and last position of a node in the text, the last exclusive. In code points."""
    return node.getStart().getStartIndex(), node.getStop().getStopIndex() + 1


def _text(micros: int) -> str:
    return f"'{micros} microseconds'"
