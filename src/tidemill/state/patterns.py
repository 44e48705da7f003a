"""Match transactional ids and names of topics with the pattern of a client, in bounded time.

RE2 matches in linear time. Python's own ``re`` must not see such a pattern: with it, one of six
characters can stop the broker for minutes. Without the package ``google-re2`` (the extra ``re2``)
a pattern can have literal characters and ``.*``; this module refuses all others.

Source: KIP-1152 (transactional ids), KIP-848 (topics).
"""

from __future__ import annotations

from collections.abc import Callable
from string import punctuation
from typing import Any

from tidemill.extras import how_to_install
from tidemill.state.errors import InvalidRegularExpressionError

_PATTERN_BYTES = 1 << 20
"""The largest memory of a compiled pattern."""
_SPECIAL = frozenset(r"\.+*?()[]{}|^$")
"""Characters that are not literals in a regular expression."""
_ESCAPABLE = frozenset(punctuation) - {"_"}
"""Characters that mean themselves after a backslash."""


def id_matcher(pattern: str) -> Callable[[str], bool]:
    """Return a function that says whether ``pattern`` matches the whole of an id.

    Raises:
        InvalidRegularExpressionError: the pattern is invalid, or needs google-re2.
    """
    try:
        import re2
    except ImportError:
        return _literal_matcher(pattern)
    return _re2_matcher(re2, pattern)


def name_matcher(pattern: str) -> Callable[[str], bool]:
    """Return a function that says whether ``pattern`` is found in a name, as RabbitMQ searches.

    An empty pattern is found nowhere. ``^`` and ``$`` tie it to the ends of the name.

    Raises:
        InvalidRegularExpressionError: the pattern is invalid, or needs google-re2.
    """
    if not pattern:
        return lambda _: False
    try:
        import re2
    except ImportError:
        start = "" if pattern.startswith("^") else ".*"
        text = pattern.removeprefix("^")
        is_tied = text.endswith("$") and not text.endswith("\\$")
        return _literal_matcher(start + (text[:-1] if is_tied else text + ".*"))
    return _re2_matcher(re2, f"(?s:.*)(?:{pattern})(?s:.*)", pattern)


def _re2_matcher(re2: Any, pattern: str, shown: str | None = None) -> Callable[[str], bool]:
    options = re2.Options()
    options.log_errors = False  # re2 would print them to stderr
    options.max_mem = _PATTERN_BYTES
    try:
        compiled = re2.compile(pattern, options=options)
    except re2.error as error:
        reason = error.args[0] if error.args else ""
        text = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        raise InvalidRegularExpressionError(
            f"invalid regular expression {shown or pattern!r}: {text}",
            hint="The pattern must match the whole text, e.g. 'shop-.*'. "
            "The syntax is RE2's: https://github.com/google/re2/wiki/Syntax",
        ) from error
    return lambda transactional_id: compiled.fullmatch(transactional_id) is not None


def _literal_matcher(pattern: str) -> Callable[[str], bool]:
    """Match literals and ``.*``: each literal at its first place, the last one at the end."""
    first, *others = _literals(pattern)
    if not others:
        return lambda transactional_id: transactional_id == first
    *middle, last = others

    def matches(transactional_id: str) -> bool:
        end = len(transactional_id) - len(last)
        if not transactional_id.startswith(first) or not transactional_id.endswith(last):
            return False
        place = len(first)
        for literal in middle:
            found = transactional_id.find(literal, place, end)
            if found < 0:
                return False
            place = found + len(literal)
        return place <= end

    return matches


def _literals(pattern: str) -> list[str]:
    """Return the texts between the ``.*`` of a pattern, without their backslashes."""
    literals, place = [""], 0
    while place < len(pattern):
        here, two = pattern[place], pattern[place : place + 2]
        if two == ".*":
            literals.append("")
        elif here == "\\" and two[1:] in _ESCAPABLE:
            literals[-1] += two[1]
        elif here in _SPECIAL:
            raise InvalidRegularExpressionError(
                f"regular expression {pattern!r} is not supported without google-re2: "
                "use literal characters and '.*'",
                hint=f"Install RE2 where the broker runs: {how_to_install('re2')}.",
            )
        else:
            literals[-1] += here
            place += 1
            continue
        place += 2
    return literals
