"""Filters: expressions on the JSON of a record, such as ``type == "order.paid" and cents > 100``.

A path names a field: ``customer.country``, ``items[0].id``, ``data["a.b"]``. Names that begin with
``$`` are about the record: ``$key``, ``$headers.NAME``, ``$topic``, ``$partition``, ``$offset``,
``$timestamp``, ``$id``, ``$type``, ``$value``. A field that is missing is null. Values are compared
as JSON: 1 and "1" differ, and so do 1 and true. ``<`` and ``>`` compare two numbers or two texts,
and are false for anything else.

There are no functions, loops or arithmetic, so a filter takes time in proportion to its length.
Must not know: Kafka, HTTP.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable
from typing import Any, Protocol

from tidemill.connect.webhooks.errors import ExpressionError

LONGEST = 4096
DEEPEST = 32
_TOKEN = re.compile(
    r"""\s*(?:
    (?P<number>-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)
  | (?P<text>"(?:[^"\\]|\\.)*")
  | (?P<name>\$?[A-Za-z_][A-Za-z0-9_-]*)
  | (?P<sign>==|!=|<=|>=|<|>|\(|\)|\[|\]|,|\.)
)""",
    re.VERBOSE,
)
_WORDS = {"true": True, "false": False, "null": None}
_OPERATORS = frozenset({"and", "or", "not", "in"})
_ORDER: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}

Path = tuple[str | int, ...]


class Scope(Protocol):
    """A record, as paths refer to it."""

    def root(self, name: str) -> Any:
        """Return a JSON value: that of a ``$name``, or of a field of the record's value."""
        ...


Term = Callable[[Scope], Any]


def lookup(scope: Scope, path: Path) -> Any:
    """Return what a path refers to; None if there is nothing."""
    found = scope.root(str(path[0]))
    for part in path[1:]:
        if isinstance(part, str) and isinstance(found, dict):
            found = found.get(part)
        elif isinstance(part, int) and isinstance(found, list) and 0 <= part < len(found):
            found = found[part]
        else:
            return None
    return found


def parse_path(text: str) -> Path:
    """Return the path that a text names.

    Raises:
        ExpressionError: it is not a path.
    """
    parser = _Parser(text)
    path = parser.path()
    parser.expect_end()
    return path


def parse_filter(text: str) -> Callable[[Scope], bool]:
    """Return the condition that a text states.

    Raises:
        ExpressionError: it is not an expression.
    """
    parser = _Parser(text)
    term = parser.any_of()
    parser.expect_end()
    return lambda scope: _holds(term(scope))


def equal(a: Any, b: Any) -> bool:
    """Return whether two JSON values are the same. A number is never the same as true or false."""
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    return bool(a == b)


def _holds(value: Any) -> bool:
    return value is not None and value is not False


def _ordered(sign: str, a: Any, b: Any) -> bool:
    numbers = all(isinstance(each, int | float) and not isinstance(each, bool) for each in (a, b))
    if numbers or (isinstance(a, str) and isinstance(b, str)):
        return _ORDER[sign](a, b)
    return False


class _Parser:
    """Recursive descent over: ``or`` < ``and`` < ``not`` < comparisons < terms."""

    def __init__(self, text: str) -> None:
        if len(text) > LONGEST:
            raise ExpressionError(f"an expression is longer than {LONGEST} characters")
        self._text = text
        self._tokens: list[tuple[str, str]] = []
        self._at = self._depth = 0
        place = 0
        while place < len(text.rstrip()):
            match = _TOKEN.match(text, place)
            if match is None or match.lastgroup is None:
                raise self._error(f"unexpected {text[place:].strip()[:10]!r}")
            self._tokens.append((match.lastgroup, match[match.lastgroup]))
            place = match.end()

    def _error(self, problem: str) -> ExpressionError:
        return ExpressionError(
            f"invalid expression {self._text[:200]!r}: {problem}",
            hint='For example: type == "order.paid" and (cents > 100 or country in ["NL", "BE"])',
        )

    @property
    def _next(self) -> tuple[str, str]:
        return self._tokens[self._at] if self._at < len(self._tokens) else ("end", "the end")

    def _take(self, *texts: str) -> str | None:
        kind, text = self._next
        if text in texts and kind in ("sign", "name"):
            self._at += 1
            return text
        return None

    def _expect(self, text: str) -> None:
        if self._take(text) is None:
            raise self._error(f"expected {text} before {self._next[1]}")

    def expect_end(self) -> None:
        """Check that nothing is left."""
        if self._next[0] != "end":
            raise self._error(f"unexpected {self._next[1]}")

    def any_of(self) -> Term:
        """Parse terms with ``or`` between them."""
        terms = [self._all_of()]
        while self._take("or"):
            terms.append(self._all_of())
        if len(terms) == 1:
            return terms[0]
        return lambda scope: any(_holds(each(scope)) for each in terms)

    def _all_of(self) -> Term:
        terms = [self._negation()]
        while self._take("and"):
            terms.append(self._negation())
        if len(terms) == 1:
            return terms[0]
        return lambda scope: all(_holds(each(scope)) for each in terms)

    def _negation(self) -> Term:
        negations = 0
        while self._take("not"):
            negations += 1
        term = self._comparison()
        if negations == 0:
            return term
        return lambda scope: _holds(term(scope)) == (negations % 2 == 0)

    def _comparison(self) -> Term:
        left = self._term()
        sign = self._take("==", "!=", "<", "<=", ">", ">=", "in")
        if sign is None:
            return left
        if sign == "in":
            values = self._list()
            return lambda scope: any(equal(left(scope), each) for each in values)
        right = self._term()
        if sign in _ORDER:
            return lambda scope: _ordered(sign, left(scope), right(scope))
        wanted = sign == "=="
        return lambda scope: equal(left(scope), right(scope)) is wanted

    def _term(self) -> Term:
        if self._take("("):
            self._depth += 1
            if self._depth > DEEPEST:
                raise self._error(f"more than {DEEPEST} parentheses inside of each other")
            term = self.any_of()
            self._expect(")")
            self._depth -= 1
            return term
        kind, text = self._next
        if kind in ("number", "text") or text in _WORDS:
            value = self._literal()
            return lambda scope: value
        path = self.path()
        return lambda scope: lookup(scope, path)

    def _literal(self) -> Any:
        kind, text = self._next
        self._at += 1
        if kind in ("number", "text"):
            try:
                return json.loads(text)
            except ValueError as error:
                raise self._error(f"{text} is not JSON: {error}") from None
        if kind == "name" and text in _WORDS:
            return _WORDS[text]
        raise self._error(f"expected a value before {text}")

    def _list(self) -> list[Any]:
        self._expect("[")
        values: list[Any] = []
        while self._take("]") is None:
            if values:
                self._expect(",")
            values.append(self._literal())
        return values

    def path(self) -> Path:
        """Parse a path."""
        if self._next[1] in _OPERATORS:
            raise self._error(f"expected a name before {self._next[1]}")
        parts: list[str | int] = [self._name()]
        while sign := self._take(".", "["):
            if sign == ".":
                parts.append(self._name())
                continue
            part = self._literal()
            if not isinstance(part, str | int) or isinstance(part, bool):
                raise self._error("expected a text or a number between [ and ]")
            parts.append(part)
            self._expect("]")
        return tuple(parts)

    def _name(self) -> str:
        kind, text = self._next
        if kind != "name":
            raise self._error(f"expected a name before {text}")
        self._at += 1
        return text
