"""Filters, sorts and cuts the lists of RabbitMQ's management API.

Parameters: ``columns``, ``sort``, ``sort_reverse``, ``page``, ``page_size``, ``name``,
``use_regex``. A regular expression runs with RE2 only, because Python's own engine can take minutes
for a short one. Must not know: routes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tidemill.extras import how_to_install
from tidemill.gateway.management.objects import Json, cut

MOST_ITEMS = 500
"""Largest page."""
_ITEMS = 100
_MOST_COLUMNS = 100


class BadListError(Exception):
    """The parameters of a list are invalid (400).

    Args:
        code: as RabbitMQ's field ``error``.
    """

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.code = code


def listed(
    names: Sequence[Any],
    make: Callable[[Any], Json],
    name_of: Callable[[Any], str],
    asked: Mapping[str, str],
) -> Json | list[Json]:
    """Return a list, or a page of it.

    Args:
        names: what there is, in order.
        make: returns the object of one of them. It is called for a page only, if that can be.
        name_of: returns its name, which ``name`` filters by.

    Raises:
        BadListError: a parameter is invalid.
    """
    columns = columns_of(asked)
    sort, is_paged = asked.get("sort", ""), "page" in asked
    total = len(names)
    page, size = _page(asked) if is_paged else (1, max(total, 1))
    found: Sequence[Any] = names
    if is_paged:
        found = list(filter(_filter(asked, name_of), found))
    objects: Sequence[Json] | None = None
    reverse = asked.get("sort_reverse") == "true"
    if sort and sort != "name":
        path = sort.split(".")
        objects = sorted(map(make, found), key=lambda each: _key(each, path), reverse=reverse)
    elif reverse:
        found = list(reversed(found))
    count = len(found)
    first = (page - 1) * size
    if is_paged and first >= count and page > 1:
        raise BadListError(
            "page_out_of_range",
            f"Page out of range, page: {page} page size: {size}, len: {count}",
        )
    part = slice(first, first + size)
    items = list(objects[part]) if objects is not None else [make(each) for each in found[part]]
    if columns:
        items = [cut(each, columns) for each in items]
    if not is_paged:
        return items
    return {
        "total_count": total,
        "filtered_count": count,
        "item_count": len(items),
        "page": page,
        "page_size": size,
        "page_count": -(-count // size),
        "items": items,
    }


def columns_of(asked: Mapping[str, str]) -> list[list[str]]:
    """Return the fields that are asked for; none for all."""
    given = asked.get("columns", "").split(",")
    return [each.split(".")[:5] for each in given if each][:_MOST_COLUMNS]


def _page(asked: Mapping[str, str]) -> tuple[int, int]:
    given = asked.get("page", ""), asked.get("page_size", str(_ITEMS))
    if not all(each.isascii() and each.isdecimal() and len(each) < 10 for each in given):
        raise BadListError("bad_request", "Pagination parameters are invalid")
    page, size = int(given[0]), int(given[1])
    if page < 1 or not 1 <= size <= MOST_ITEMS:
        shown = size if "page_size" in asked else "undefined"
        raise BadListError(
            "invalid_pagination_parameters",
            f"Invalid pagination parameters: page number {page}, page size {shown}",
        )
    return page, size


def _filter(asked: Mapping[str, str], name_of: Callable[[Any], str]) -> Callable[[Any], bool]:
    text = asked.get("name", "")
    if not text:
        return lambda each: True
    if asked.get("use_regex") != "true":
        return lambda each: text.lower() in name_of(each).lower()
    try:
        import re2
    except ImportError:
        raise BadListError(
            "bad_request", f"use_regex needs google-re2: {how_to_install('re2')}"
        ) from None
    options = re2.Options()
    options.case_sensitive, options.log_errors, options.max_mem = False, False, 1 << 20
    try:
        pattern = re2.compile(text, options)
    except re2.error:
        raise BadListError("bad_request", "Pagination parameters are invalid") from None
    return lambda each: pattern.search(name_of(each)) is not None


def _key(found: Json, path: Sequence[str]) -> tuple[int, Any]:
    """Return what an object is sorted by: missing fields first, then numbers, then texts."""
    value: Any = found
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    if isinstance(value, bool | int | float):
        return 1, value
    return (0, 0) if value is None else (2, str(value))
