"""Hides fields of records before anything else looks at them: searches, lists, exports.

Pure. Must not know: Kafka, HTML.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson

from tidemill.record_json import Headers

MASK = "\N{BULLET}\N{BULLET}\N{BULLET}"
_BYTES = MASK.encode()


@dataclass
class Record:
    """A record, from which a mask has taken what is hidden. A timestamp of None: it has none."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int | None
    key: bytes | None
    value: bytes | None
    headers: Headers


class Mask:
    """Hides the fields of one topic.

    Args:
        settings: Pairs of a pattern of topics and a field.

    Attributes:
        is_needed: Whether the topic has fields to hide.
        is_whole: Whether values are hidden as a whole.
    """

    def __init__(self, topic: str, settings: Sequence[tuple[str, str]]) -> None:
        fields = [name for pattern, name in settings if fnmatch.fnmatchcase(topic, pattern)]
        self._key = "$key" in fields
        self.is_whole = "$value" in fields
        self._headers = {name[9:].lower() for name in fields if name.startswith("$headers.")}
        self._paths = [name.split(".") for name in fields if not name.startswith("$")]
        self.is_needed = bool(fields)

    def record(self, record: Record) -> Record:
        """Return a record without what is hidden."""
        if not self.is_needed:
            return record
        key, value = self.key(record.key), self.value(record.value)
        return replace(record, key=key, value=value, headers=self.headers(record.headers))

    def key(self, data: bytes | None) -> bytes | None:
        """Return a key without what is hidden."""
        return _BYTES if self._key and data is not None else data

    def headers(self, headers: Headers) -> Headers:
        """Return headers without what is hidden."""
        if not self._headers:
            return headers
        return [(name, _BYTES if name.lower() in self._headers else each) for name, each in headers]

    def value(self, data: bytes | None) -> bytes | None:
        """Return a value without what is hidden.

        One that is not JSON, or is nested too deep, is hidden as a whole.
        """
        if data is None or not (self.is_whole or self._paths):
            return data
        if self.is_whole:
            return _BYTES
        try:
            document = orjson.loads(data)
            for path in self._paths:
                _hide(document, path)
            return orjson.dumps(document)
        except (orjson.JSONDecodeError, orjson.JSONEncodeError, RecursionError):
            return _BYTES


def _hide(node: Any, path: Sequence[str]) -> None:
    """Hide a field, in each element where the path meets a list."""
    if isinstance(node, list):
        for each in node:
            _hide(each, path)
    elif isinstance(node, dict) and path[0] in node:
        if len(path) == 1:
            node[path[0]] = MASK
        else:
            _hide(node[path[0]], path[1:])
