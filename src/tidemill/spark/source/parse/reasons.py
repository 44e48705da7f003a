"""The reasons why a value is refused, as users see them. Must not know: how values are read."""

from __future__ import annotations

from json import loads

NULL = "the value is null"
NOT_UTF8 = "the value is not UTF-8 text"
NOT_AN_OBJECT = "the value is not a JSON object"
MORE = "the value has more than its JSON object"

_SHOWN = 100
"""Most characters of a field's text in a reason."""
_BYTES = 4 * _SHOWN + 4


def wrong_type(column: str, ddl: str, raw: bytes) -> str:
    """Return the reason for a field that is not of its column's type.

    Args:
        column: Name of the column.
        ddl: Its type in DDL.
        raw: Text of the field in the value. It is valid JSON.
    """
    return f"{column} is not {ddl}: {_text(raw)}"


def other_case(path: str, raw: bytes) -> str:
    """Return the reason for a field that is missing, while one in other letters is present.

    Args:
        path: Name of the column, or of a field in it: ``gate.name``.
        raw: Text of the other field's name in the value. It is valid JSON.
    """
    return f"the field {_text(raw)} differs from {path} only in case"


def no_event_time(column: str) -> str:
    """Return the reason for a value without its event time."""
    return f"the event time {column} is missing"


def joined(reasons: list[str]) -> str:
    """Return the reasons of all columns as one."""
    return "; ".join(reasons)


def _text(raw: bytes) -> str:
    if raw.startswith(b'"'):
        text: str = loads(raw)
        return text[:_SHOWN]
    return raw[:_BYTES].decode(errors="ignore")[:_SHOWN]
