"""Views of pages without a gateway: a test gives the parts that the page uses."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from starlette.requests import Request

from tidemill.gateway.cluster.history import History
from tidemill.gateway.console.contract import Page, View
from tidemill.gateway.console.settings import ConsoleSettings


def view_of(page: Page, query: str = "", *, settings: Any = None, **parts: Any) -> View:
    """Return a view of a page."""
    about = {"type": "http", "query_string": query.encode(), "headers": [], "path": "/"}
    about["method"] = "GET"
    return View(
        page=page,
        request=Request(about),
        parts=cast("Any", SimpleNamespace(**parts)),
        history=History(),
        settings=settings or ConsoleSettings(),
        user="",
        is_read_only=False,
    )
