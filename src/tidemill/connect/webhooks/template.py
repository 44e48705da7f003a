"""Transform: a JSON value in which ``${path}`` is replaced by what the path refers to.

A text that is nothing but ``${path}`` becomes the value itself, with its type; inside of a longer
text it becomes its characters. ``$${`` stands for ``${``. The result is always valid JSON, whatever
a record contains. Must not know: Kafka, HTTP.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from tidemill.connect.webhooks.errors import ExpressionError
from tidemill.connect.webhooks.expression import Path, Scope, lookup, parse_path

_PLACE = re.compile(r"\$\$\{|\$\{([^}]*)\}")

Template = Callable[[Scope], Any]


def parse_template(value: Any) -> Template:
    """Return what makes a JSON value from a record.

    Args:
        value: a JSON or TOML value.

    Raises:
        ExpressionError: a path in it is invalid, or a value is not JSON.
    """
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, dict):
        fields = {str(key): parse_template(each) for key, each in value.items()}
        return lambda scope: {key: each(scope) for key, each in fields.items()}
    if isinstance(value, list):
        items = [parse_template(each) for each in value]
        return lambda scope: [each(scope) for each in items]
    is_number = isinstance(value, int | float) and abs(value) < 1 << 63  # nor is it NaN
    if value is None or isinstance(value, bool) or is_number:
        return lambda scope: value
    raise ExpressionError(f"a template can't contain {value!r}: it is not JSON")


def _text(text: str) -> Template:
    whole = _PLACE.fullmatch(text)
    if whole is not None and whole[1] is not None:
        path = parse_path(whole[1])
        return lambda scope: lookup(scope, path)
    parts: list[str | Path] = []
    end = 0
    for match in _PLACE.finditer(text):
        parts.append(text[end : match.start()])
        parts.append("${" if match[1] is None else parse_path(match[1]))
        end = match.end()
    parts.append(text[end:])
    if all(isinstance(each, str) for each in parts):
        fixed = "".join(str(each) for each in parts)
        return lambda scope: fixed
    return lambda scope: "".join(
        each if isinstance(each, str) else _shown(lookup(scope, each)) for each in parts
    )


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
