"""Records as JSON objects, one per line, as ``consume`` prints them and ``produce`` reads them.

UTF-8 text is a JSON string. Other bytes are base64 with a flag: ``"value_encoding": "base64"``, and
for a header a third element. ``produce`` writes each printed record again byte for byte. This
module must not know a broker or a file.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from tidemill.cli.positions import time_ms

_FIELDS = {
    "key",
    "value",
    "headers",
    "partition",
    "timestamp",
    "key_encoding",
    "value_encoding",
    "topic",
    "offset",
}


@dataclass
class InputRecord:
    """A record to produce. If ``timestamp_ms`` or ``partition`` is None, the client chooses it."""

    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]] = field(default_factory=list)
    partition: int | None = None
    timestamp_ms: int | None = None


def to_line(
    *,
    topic: str,
    partition: int,
    offset: int,
    timestamp_ms: int | None,
    key: bytes | None,
    value: bytes | None,
    headers: Sequence[tuple[str, bytes | None]],
) -> bytes:
    """Return a record as one line of JSON, with a line feed."""
    document: dict[str, object] = {
        "topic": topic,
        "partition": partition,
        "offset": offset,
        "timestamp": timestamp_ms,
    }
    for name, data in (("key", key), ("value", value)):
        text, encoding = _text(data)
        document[name] = text
        if encoding:
            document[f"{name}_encoding"] = encoding
    document["headers"] = [_header(name, data) for name, data in headers]
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def _text(data: bytes | None) -> tuple[str | None, str | None]:
    if data is None:
        return None, None
    try:
        return data.decode(), None
    except UnicodeDecodeError:
        return base64.b64encode(data).decode(), "base64"


def _header(name: str, data: bytes | None) -> list[str | None]:
    text, encoding = _text(data)
    return [name, text, encoding] if encoding else [name, text]


def from_line(line: bytes) -> InputRecord:
    """Parse a record.

    A value or key that is not a JSON string is stored as JSON text. ``topic`` and ``offset``, which
    ``consume`` prints, are ignored.

    Raises:
        ValueError: the line is not a JSON object, or a field is unknown or invalid.
    """
    try:
        document = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} at column {error.colno}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"not JSON: byte {error.start + 1} is not UTF-8") from error
    if not isinstance(document, dict):
        raise ValueError("not a JSON object")  # noqa: TRY004  invalid input, not a wrong type
    unknown = document.keys() - _FIELDS
    if unknown:
        raise ValueError(f"unknown field {sorted(unknown)[0]!r}")
    if "value" not in document:
        raise ValueError("field 'value' is missing (null is a tombstone)")
    return InputRecord(
        key=_bytes(document.get("key"), document.get("key_encoding")),
        value=_bytes(document["value"], document.get("value_encoding")),
        headers=_headers(document.get("headers")),
        partition=_whole_number(document.get("partition"), "partition"),
        timestamp_ms=_timestamp(document.get("timestamp")),
    )


def _bytes(value: object, encoding: object) -> bytes | None:
    if value is None:
        return None
    if encoding == "base64":
        try:
            return base64.b64decode(str(value), validate=True)
        except binascii.Error as error:
            raise ValueError(f"invalid base64: {error}") from error
    if encoding is not None:
        raise ValueError(f"unknown encoding {encoding!r}")
    if isinstance(value, str):
        return value.encode()
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _headers(value: object) -> list[tuple[str, bytes | None]]:
    """Parse headers: an object, or a list of ``[name, value]`` if a name occurs twice."""
    if value is None:
        return []
    if isinstance(value, dict):
        return [(name, _bytes(content, None)) for name, content in value.items()]
    if isinstance(value, list):
        return [_header_pair(pair) for pair in value]
    raise ValueError("headers must be an object or a list of [name, value]")


def _header_pair(pair: object) -> tuple[str, bytes | None]:
    if not (isinstance(pair, list) and len(pair) in (2, 3) and isinstance(pair[0], str)):
        raise ValueError("a header must be [name, value]")
    return pair[0], _bytes(pair[1], pair[2] if len(pair) == 3 else None)


def _whole_number(value: object, name: str) -> int | None:
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 0):
        return value
    raise ValueError(f"invalid {name} {value!r}: use a whole number")


def _timestamp(value: object) -> int | None:
    if isinstance(value, str):
        try:
            return time_ms(value)
        except ValueError as error:
            raise ValueError(
                f"invalid timestamp {value!r}: use ISO 8601 or milliseconds"
            ) from error
    return _whole_number(value, "timestamp")
