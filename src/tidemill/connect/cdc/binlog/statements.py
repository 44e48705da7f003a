"""The meaning of statements in the binary log, from their first words.

With row-based logging the binary log has statements only for definitions (DDL), for the ends of
transactions and for savepoints. Must not know events or tables.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_COMMENT = re.compile(r"\s+|--[^\n]*(?:\n|$)|#[^\n]*(?:\n|$)|/\*(?![!M]).*?\*/", re.DOTALL)
_HINT = re.compile(r"/\*[!M]+\d*")
_NAME = r"(?:`((?:[^`]|``)+)`|([\w$]+))"
_TRUNCATE = re.compile(rf"TRUNCATE\s+(?:TABLE\s+)?(?:{_NAME}\s*\.\s*)?{_NAME}", re.IGNORECASE)
_SAVEPOINT = re.compile(rf"SAVEPOINT\s+{_NAME}", re.IGNORECASE)
_ROLLBACK_TO = re.compile(rf"ROLLBACK\s+(?:WORK\s+)?TO\s+(?:SAVEPOINT\s+)?{_NAME}", re.IGNORECASE)
_CHANGE = re.compile(r"(INSERT|UPDATE|DELETE|REPLACE|LOAD)\b", re.IGNORECASE)
_XA = re.compile(r"XA\b", re.IGNORECASE)
_XA_START = re.compile(r"XA\s+(?:START|BEGIN)\b", re.IGNORECASE)
_ATOMIC = re.compile(r"CREATE\s+TABLE\b.*\bSTART TRANSACTION\s*$", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Statement:
    """The meaning of a statement.

    Attributes:
        kind: ``begin``, ``commit``, ``rollback``, ``savepoint``, ``rollback_to``, ``truncate``,
            ``change`` (a change of rows that was logged as a statement), ``xa_start``, ``xa`` or
            ``other``. ``begin`` is also a CREATE TABLE whose rows follow in the same transaction.
        database: of the truncated table, if the statement names it.
        name: of the table or savepoint.
    """

    kind: str
    database: str = ""
    name: str = ""


def parse_statement(text: str) -> Statement:
    """Return the meaning of a statement."""
    body = _skip_comments(text)
    word = body[:8].upper().rstrip(" ;\n")
    if word == "COMMIT":
        return Statement("commit")
    if word == "BEGIN" or _ATOMIC.match(body):
        return Statement("begin")
    if match := _ROLLBACK_TO.match(body):
        return Statement("rollback_to", name=_unquoted(match[1], match[2]))
    if word == "ROLLBACK":
        return Statement("rollback")
    if match := _SAVEPOINT.match(body):
        return Statement("savepoint", name=_unquoted(match[1], match[2]))
    if match := _TRUNCATE.match(body):
        return Statement("truncate", _unquoted(match[1], match[2]), _unquoted(match[3], match[4]))
    if _CHANGE.match(body):
        return Statement("change")
    if _XA_START.match(body):
        return Statement("xa_start")
    return Statement("xa" if _XA.match(body) else "other")


def _skip_comments(text: str) -> str:
    position = 0
    while match := _COMMENT.match(text, position):
        if match.end() == position:
            break
        position = match.end()
    hint = _HINT.match(text, position)
    return text[hint.end() :].lstrip() if hint else text[position:]


def _unquoted(quoted: str | None, plain: str | None) -> str:
    return quoted.replace("``", "`") if quoted is not None else plain or ""
