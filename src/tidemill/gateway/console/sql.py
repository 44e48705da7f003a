"""SQL: ask a question about topics, and see the rows.

The statement is in the address, so a result can be shared and its twin is JSON. Must not know:
HTML, how queries run.
"""

from __future__ import annotations

from typing import Any

from tidemill.gateway.console.contract import Data, Page, View
from tidemill.gateway.errors import HttpError

_LONGEST = 16_384
_SHOWN = 500
"""Rows that the page shows; the JSON twin has all."""


async def data(view: View) -> Data:
    """Run the statement of the address, and return its rows, or what is wrong with it."""
    statement = view.text("q")
    if not statement.strip():
        return {"statement": "", "result": None, "problem": None}
    if len(statement) > _LONGEST:
        return _problem(statement, f"the statement has more than {_LONGEST} characters", "")
    try:
        found = await view.parts.queries.run(statement)
    except HttpError as error:
        return _problem(statement, str(error), error.hint)
    result: dict[str, Any] = {
        "columns": [dict(each) for each in found.columns],
        "rows": found.rows,
        "truncated": found.truncated,
        "notes": list(found.notes),
        "warnings": list(found.warnings),
        "shown": min(_SHOWN, len(found.rows)),
    }
    return {"statement": statement, "result": result, "problem": None}


def _problem(statement: str, text: str, hint: str) -> Data:
    return {"statement": statement, "result": None, "problem": {"text": text, "hint": hint}}


PAGE = Page(
    "sql",
    "SQL",
    "A query over topics, and its rows.",
    "sql.html",
    data,
    section="Cluster",
)
