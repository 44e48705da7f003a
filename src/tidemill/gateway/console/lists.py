"""Lists that are filtered, sorted and paged at the server, by parameters of the URL.

``q`` searches, ``sort`` is a column (with ``-`` before it: descending), ``page`` and ``size``
choose the part. Must not know: what is listed.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar, cast

from tidemill.gateway.console.contract import View

SIZE, MOST = 50, 500
T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class Listed(Generic[T]):
    """A part of a list.

    Attributes:
        rows: What is shown.
        total: How many there are, before the search.
        found: How many the search has found.
        page: The number of the part, from 1 on.
        sort: The column, with ``-`` before it if it is descending.
    """

    rows: list[T]
    total: int
    found: int
    page: int
    pages: int
    size: int
    sort: str
    q: str

    def showing(self, rows: Sequence[R]) -> Listed[R]:
        """Return this part of the list with other rows: what a page shows of each of them."""
        return replace(cast("Listed[R]", self), rows=list(rows))


def by_key(*names: str) -> dict[str, Callable[[Any], Any]]:
    """Return columns that are fields of rows, with the same names."""
    return {name: operator.itemgetter(name) for name in names}


def by_attribute(*names: str) -> dict[str, Callable[[Any], Any]]:
    """Return columns that are attributes of items, with the same names."""
    return {name: operator.attrgetter(name) for name in names}


def listed(
    view: View,
    items: Iterable[T],
    columns: Mapping[str, Callable[[T], Any]],
    *,
    search: Callable[[T], str],
    sort: str = "",
) -> Listed[T]:
    """Return the part of a list that the URL asks for.

    Args:
        columns: By name, the value that rows are sorted by. None comes last.
        search: The text of a row that ``q`` is looked for in; case does not matter.
        sort: The order without a parameter; empty: as the items come.

    Raises:
        HttpError: a parameter is malformed (400).
    """
    parameters = view.parameters
    q = (parameters.text("q") or "").strip()
    wanted = parameters.word("sort", ["", *columns, *(f"-{name}" for name in columns)], sort)
    size = parameters.number("size", 1, MOST) or SIZE
    page = parameters.number("page", 1, 1_000_000) or 1
    everything = list(items)
    rows = [each for each in everything if q.lower() in search(each).lower()] if q else everything
    found = len(rows)
    if wanted:
        value = columns[wanted.removeprefix("-")]
        known = [each for each in rows if value(each) is not None]
        known.sort(key=value, reverse=wanted.startswith("-"))
        rows = [*known, *(each for each in rows if value(each) is None)]
    pages = max(1, -(-found // size))
    page = min(page, pages)
    part = rows[(page - 1) * size : page * size]
    return Listed(part, len(everything), found, page, pages, size, wanted, q)
