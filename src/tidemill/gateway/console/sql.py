"""SQL: ask a question about topics, and see the rows.

The statement is in the address, so a result can be shared and its twin is JSON. Must not know:
HTML, how queries run.
"""

from __future__ import annotations

from typing import Any

import orjson

from tidemill.gateway.console.contract import Data, Page, View
from tidemill.gateway.console.messages.decoding import short
from tidemill.gateway.errors import HttpError
from tidemill.gateway.following import disconnected

_LONGEST = 16_384
_SHOWN = 500
"""Rows that the page shows; the JSON twin has all."""
_LONGEST_CELL = 2_000
"""Bytes of a value that the page shows."""


async def data(view: View) -> Data:
    """Run the statement of the address, and return its rows, or what is wrong with it."""
    statement = view.text("q")
    if not statement.strip():
        return {"statement": "", "result": None, "problem": None}
    if len(statement) > _LONGEST:
        return _problem(statement, f"the statement has more than {_LONGEST} characters", "")
    hidden = [topic for topic, _ in view.settings.masked()]
    try:
        with view.parts.budget.taken() as take:
            found = await view.parts.queries.run(
                statement, lambda: disconnected(view.request), take, hidden=hidden
            )
    except HttpError as error:
        return _problem(statement, str(error), error.hint)
    result: dict[str, Any] = {
        "columns": [dict(each) for each in found.columns],
        "rows": found.rows,
        "truncated": found.truncated,
        "notes": list(found.notes),
        "warnings": list(found.warnings),
        "cells": [[_cell(each) for each in row] for row in found.rows[:_SHOWN]],
    }
    return {"statement": statement, "result": result, "problem": None}


def _cell(value: Any) -> str | None:
    """Return a value as the page shows it: cut, with what is invisible made visible."""
    if value is None:
        return None
    text = value if isinstance(value, str) else orjson.dumps(value).decode()
    found = short(text.encode(errors="replace"), _LONGEST_CELL)
    return f"{found.text}…" if found.is_cut else found.text


def _problem(statement: str, text: str, hint: str) -> Data:
    return {"statement": statement, "result": None, "problem": {"text": text, "hint": hint}}


PAGE = Page(
    address="sql",
    title="SQL",
    about="A query over topics, and its rows.",
    data=data,
    section="Cluster",
)
