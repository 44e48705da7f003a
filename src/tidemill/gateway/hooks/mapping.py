"""A request as verifiers see it, and selectors, which take keys, headers and ids from it.

Must not know: how a request is verified or stored.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from urllib.parse import parse_qsl

MAX_QUERY = 100
"""Parameters of a query that are read."""

Select = Callable[["Delivery"], str | None]
"""Returns a part of a request, or None if the request does not have it."""


@dataclass(frozen=True)
class Delivery:
    """A request to a hook.

    Attributes:
        method: the HTTP method.
        url: the URL as the sender knows it, with the query; without a host if that is not set.
        headers: the headers by names in small letters. Of those that occur twice, the first.
        body: the bytes as they arrived.
        path: the parameters of the path.
        query: the query as it arrived, without the question mark.
        trace: the context of its trace, for the headers of records.
    """

    method: str
    url: str
    headers: Mapping[str, str]
    body: bytes = field(repr=False)
    path: Mapping[str, str] = field(default_factory=dict)
    query: str = ""
    trace: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def json(self) -> Any:
        """The body as JSON; None if it is something else. Numbers with a fraction are text."""
        try:
            return json.loads(self.body, parse_float=str)
        except (ValueError, RecursionError):
            return None

    @cached_property
    def parameters(self) -> Mapping[str, str]:
        """The parameters of the query. Of those that occur twice, the first."""
        try:
            found = parse_qsl(self.query, keep_blank_values=True, max_num_fields=MAX_QUERY)
        except ValueError:
            return {}
        return dict(reversed(found))


@dataclass(frozen=True, slots=True)
class Record:
    """A record to store.

    Attributes:
        id: what identifies the delivery, or None if it is stored each time.
    """

    key: bytes | None
    value: bytes
    headers: tuple[tuple[str, bytes], ...] = ()
    id: bytes | None = None

    @property
    def size(self) -> int:
        """About the bytes that it takes in a batch."""
        pairs = sum(len(name) + len(value) + 10 for name, value in self.headers)
        return len(self.key or b"") + len(self.value) + pairs + 50


def selector(text: str) -> Select:
    """Return what takes a part of a request, e.g. ``header:x-github-event``.

    Args:
        text: ``method``, ``header:NAME``, ``query:NAME``, ``path:NAME`` or ``json:FIELD.FIELD``.
    """
    kind, _, name = text.partition(":")
    take = _PARTS[kind]
    return lambda delivery: take(delivery, name)


_PARTS: Mapping[str, Callable[[Delivery, str], str | None]] = {
    "method": lambda delivery, _: delivery.method,
    "header": lambda delivery, name: delivery.headers.get(name.lower()),
    "query": lambda delivery, name: delivery.parameters.get(name),
    "path": lambda delivery, name: delivery.path.get(name),
    "json": lambda delivery, name: text_at(delivery.json, name.split(".")),
}


def text_at(value: Any, fields: list[str]) -> str | None:
    """Return the text of a field of a JSON value, or None if it is missing or null.

    Objects, arrays, true and false become JSON.
    """
    for name in fields:
        value = value.get(name) if isinstance(value, dict) else None
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    except RecursionError:  # it is nested more deeply than can be written
        return None


def encode(text: str) -> bytes:
    """Return text as UTF-8. Half of a surrogate pair, which JSON can contain, becomes ``?``."""
    return text.encode("utf-8", "replace")
