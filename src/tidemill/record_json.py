"""Records as JSON objects, one per line, as ``consume`` prints them and ``produce`` reads them.

The gateway has the same form over HTTP.

UTF-8 text is a JSON string. Other bytes are base64 with a flag: ``"value_encoding": "base64"``, and
for a header a third element. ``produce`` writes each printed record again byte for byte, and stores
JSON that is not a string with the bytes that it has on the line: numbers keep all their digits.
This module must not know a broker or a file.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import NamedTuple, NoReturn

Headers = Sequence[tuple[str, bytes | None]]
"""Names and values, in order; a name can occur several times."""

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
_PLAIN = {"key", "value", "headers", "partition", "timestamp", "topic", "offset"}


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
    headers: Headers,
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


class Json(NamedTuple):
    """A JSON value and its place in the line."""

    text: str
    start: int
    end: int

    @property
    def raw(self) -> str:
        """The characters that it has in the text."""
        return self.text[self.start : self.end]

    @property
    def first(self) -> str:
        """The first character, which tells a string, an object and so on."""
        return self.text[self.start]

    @property
    def string(self) -> str:
        """The text of a JSON string."""
        text: str = json.loads(self.raw) if "\\" in self.raw else self.raw[1:-1]
        return text


def from_line(line: bytes) -> InputRecord:
    """Parse a record.

    A value or key that is not a JSON string is stored as JSON, with the bytes that it has on the
    line. ``topic`` and ``offset``, which ``consume`` prints, are ignored.

    Raises:
        ValueError: the line is not a JSON object, or a field is unknown or invalid.
    """
    return _record(parse_json(line))


def from_document(data: bytes, most: int) -> tuple[list[InputRecord], bool]:
    """Parse one record, or an object whose only field ``records`` has a list of them.

    Args:
        most: The most records that a list can have.

    Returns:
        The records, and whether they were in a list.

    Raises:
        ValueError: as ``from_line``; for a list, the error names the record by its index.
    """
    document = parse_json(data)
    fields = dict(members(document)) if document.first == "{" else {}
    if [*fields] != ["records"]:
        return [_record(document)], False
    if fields["records"].first != "[":
        raise ValueError("field 'records' is not a list")
    records: list[InputRecord] = []
    for number, each in enumerate(elements(fields["records"])):
        if number == most:
            raise ValueError(f"more than {most} records")
        try:
            records.append(_record(each))
        except ValueError as error:
            raise ValueError(f"record {number}: {error}") from error
    return records, True


def parse_json(data: bytes) -> Json:
    """Return the only JSON value of a text.

    Raises:
        ValueError: it is not JSON.
    """
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"not JSON: byte {error.start + 1} is not UTF-8") from error
    return _whole(text)


def _record(document: Json) -> InputRecord:
    return _plain_record(document) or _exact_record(document)


def _plain_record(document: Json) -> InputRecord | None:
    """Return a record of strings and whole numbers; None for all others, and for errors.

    Most records are so. They need no places in the text, which take most of the time.
    """
    try:
        pairs, _ = _scan_pairs(document.text, document.start)
        fields = dict(pairs) if type(pairs) is tuple else {}
        if len(fields) != len(pairs) or not fields.keys() <= _PLAIN or fields.get("headers"):
            return None
        key, value = fields.get("key"), fields["value"]
        partition, timestamp = fields.get("partition"), fields.get("timestamp")
        if not _is_whole(partition, 2**31) or not _is_whole(timestamp, 2**63) or timestamp == 0:
            return None
        return InputRecord(_encoded(key), _encoded(value), [], partition, timestamp)
    except (ValueError, TypeError, LookupError, RecursionError):
        return None


def _is_whole(value: object, end: int) -> bool:
    return value is None or (type(value) is int and 0 <= value < end)


def _encoded(value: object) -> bytes | None:
    if value is None:
        return None
    if type(value) is str:
        return value.encode()
    raise TypeError


def _exact_record(document: Json) -> InputRecord:
    if document.first != "{":
        raise ValueError("not a JSON object")
    fields: dict[str, Json] = {}
    for name, value in members(document):
        if name in fields:
            raise ValueError(f"field {name!r} occurs twice")
        if name not in _FIELDS:
            raise ValueError(f"unknown field {name!r}")
        fields[name] = value
    if "value" not in fields:
        raise ValueError("field 'value' is missing (null is a tombstone)")
    return InputRecord(
        key=_bytes(fields.get("key"), fields.get("key_encoding")),
        value=_bytes(fields["value"], fields.get("value_encoding")),
        headers=_headers(fields.get("headers")),
        partition=_whole_number(_plain(fields.get("partition")), "partition", 2**31 - 1),
        timestamp_ms=_timestamp(_plain(fields.get("timestamp"))),
    )


def time_ms(text: str) -> int:
    """Return an ISO 8601 time in ms since the epoch. Without a time zone it is in UTC.

    Raises:
        ValueError: the text is not an ISO 8601 time.
    """
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    delta = moment - epoch  # timestamp() is a float and not exact
    return delta.days * 86_400_000 + delta.seconds * 1000 + delta.microseconds // 1000


# --- JSON with its places ------------------------------------------------------------------------


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"not JSON: {constant} is not a JSON value")


_scan = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=_refuse).raw_decode
"""Numbers stay text: they are checked and not read."""
_scan_pairs = json.JSONDecoder(object_pairs_hook=tuple, parse_constant=_refuse).raw_decode
"""An object is a tuple of names and values, so that a name that occurs twice is seen."""
_space = re.compile(r"[ \t\n\r]*").match


def _after_space(text: str, at: int) -> int:
    if text[at : at + 1] > " ":  # no white space: most often
        return at
    found = _space(text, at)
    return at if found is None else found.end()


def _value_at(text: str, at: int) -> Json:
    """Return the JSON value that begins at a place."""
    at = _after_space(text, at)
    try:
        _, end = _scan(text, at)
    except json.JSONDecodeError as error:
        reason = error.msg.removesuffix(" at")  # as in "Unterminated string starting at"
        raise ValueError(f"not JSON: {reason} at column {error.colno}") from error
    except RecursionError as error:
        raise ValueError(
            f"not JSON that can be read: it is nested too deeply from column {at + 1} on"
        ) from error
    return Json(text, at, end)


def _whole(text: str) -> Json:
    """Return the one JSON value in a line."""
    value = _value_at(text, 0)
    end = _after_space(text, value.end)
    if end != len(text):
        raise ValueError(f"not JSON: Extra data at column {end + 1}")
    return value


def check_json(text: str) -> None:
    """Check that a text is one JSON value.

    Raises:
        ValueError: it is not. The message says where: "not JSON: ... at column 3".
    """
    _whole(text)


def elements(value: Json) -> Iterator[Json]:
    """Yield the elements of an array, or the names and values of an object, which is valid."""
    text = value.text
    at = _after_space(text, value.start + 1)
    while text[at] not in "]}":
        element = _value_at(text, at)
        yield element
        at = _after_space(text, element.end)
        if text[at] in ",:":
            at = _after_space(text, at + 1)


def members(value: Json) -> Iterator[tuple[str, Json]]:
    """Yield the names and values of an object. A name can occur twice."""
    found = elements(value)
    for name in found:
        yield name.string, next(found)


def _plain(value: Json | None) -> object:
    """Return a value as Python has it; a number with very many digits stays text."""
    if value is None:
        return None
    if value.first == '"':
        return value.string
    try:
        return json.loads(value.raw)
    except ValueError:
        return value.raw


# --- fields --------------------------------------------------------------------------------------


def _bytes(value: Json | None, encoding: Json | None) -> bytes | None:
    if value is None or value.raw == "null":
        return None
    known = _plain(encoding)
    if known not in (None, "base64"):
        raise ValueError(f"unknown encoding {known!r}")
    if value.first != '"' and known is None:
        return value.raw.encode()
    text = str(_plain(value))
    if known == "base64":
        try:
            return base64.b64decode(text, validate=True)
        except ValueError as error:
            raise ValueError(f"invalid base64: {error}") from error
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        column = value.start + 1
        raise ValueError(f"half of a surrogate pair in the string at column {column}") from error


def _headers(value: Json | None) -> list[tuple[str, bytes | None]]:
    """Parse headers: an object, or a list of ``[name, value]`` if a name occurs twice."""
    if value is None or value.raw == "null":
        return []
    if value.first == "{":
        return [(_name(name), _bytes(content, None)) for name, content in members(value)]
    if value.first == "[":
        return [_header_pair(pair) for pair in elements(value)]
    raise ValueError("headers must be an object or a list of [name, value]")


def _header_pair(pair: Json) -> tuple[str, bytes | None]:
    parts = [*elements(pair)] if pair.first == "[" else []
    if len(parts) not in (2, 3) or parts[0].first != '"':
        raise ValueError("a header must be [name, value]")
    return _name(_plain(parts[0])), _bytes(parts[1], parts[2] if len(parts) == 3 else None)


def _name(name: object) -> str:
    text = str(name)
    if "\0" in text:  # librdkafka would cut the name there
        raise ValueError(f"zero character in the header name {text[:100]!r}")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"half of a surrogate pair in the header name {text!r}") from error
    return text


def _whole_number(value: object, name: str, most: int) -> int | None:
    if value is None:
        return None
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most:
        return value
    raise ValueError(f"invalid {name} {value!r}: use a whole number")


def _timestamp(value: object) -> int | None:
    if isinstance(value, str):
        try:
            found: int | None = time_ms(value)
        except ValueError as error:
            raise ValueError(
                f"invalid timestamp {value!r}: use ISO 8601 or milliseconds"
            ) from error
    else:
        found = _whole_number(value, "timestamp", 2**63 - 1)
    if found is not None:
        check_timestamp(found)
    return found


def check_timestamp(timestamp_ms: int) -> None:
    """Check that a record can have a timestamp.

    Raises:
        ValueError: it can't. Kafka has no negative ones, and librdkafka sends the present time in
            place of 0.
    """
    if timestamp_ms < 1:
        raise ValueError(f"invalid timestamp {timestamp_ms}: it must be after 1970-01-01T00:00:00Z")
