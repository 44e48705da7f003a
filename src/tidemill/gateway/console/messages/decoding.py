"""Bytes as people read them: JSON, text or hexadecimal, cut, with what would deceive made visible.

Pure. Must not know: Kafka, HTML. Sources: RFC 8259 (JSON), W3C Trace Context (``traceparent``),
CloudEvents' Kafka binding, Unicode's report 36 (characters that change the direction of a text).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

import orjson

from tidemill.record_json import Headers

LIST_BYTES = 400
"""Bytes of a value in a list."""
FULL_BYTES = 262_144
"""Bytes of a value on its own page. The rest is in the download."""
_JSON_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[][{},:]|[^\s\][{},:"]+')
_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]"
)
_TRACE = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_CE = ("type", "source", "id", "subject", "time", "specversion")


@dataclass(frozen=True, slots=True)
class Shown:
    """Bytes that are shown.

    Attributes:
        kind: ``json``, ``text``, ``hex``, ``empty`` or ``null``.
        size: Bytes of the whole.
        is_cut: Whether the text is only its beginning.
    """

    kind: str
    text: str
    size: int
    is_cut: bool = False


def short(data: bytes | None, most: int = LIST_BYTES) -> Shown:
    """Return the beginning of a value, in one line."""
    found = _decoded(data, most)
    return Shown(found.kind, " ".join(found.text.split()), found.size, found.is_cut)


def full(data: bytes | None, most: int = FULL_BYTES) -> Shown:
    """Return a value in lines: JSON with an indent, other bytes as a table of hexadecimal."""
    found = _decoded(data, most)
    if found.kind == "json" and not found.is_cut:
        return Shown("json", _visible(indented((data or b"").decode())), found.size)
    if found.kind == "hex" and data is not None:
        return Shown("hex", hex_table(data[: most // 8]), found.size, found.size > most // 8)
    return found


def _decoded(data: bytes | None, most: int) -> Shown:
    if data is None:
        return Shown("null", "null", 0)
    if not data:
        return Shown("empty", "", 0)
    part, is_cut = data[:most], len(data) > most
    try:
        text = part.decode()
    except UnicodeDecodeError as error:
        # The cut can be within a character, which has four bytes at most.
        if not is_cut or error.start < len(part) - 3:
            return Shown("hex", part[:64].hex(" "), len(data), len(data) > 64)
        text = part[: error.start].decode()
    if text.count("\0") > len(text) // 8:
        return Shown("hex", part[:64].hex(" "), len(data), len(data) > 64)
    kind = "json" if _is_json(data, text, is_cut=is_cut) else "text"
    return Shown(kind, _visible(text), len(data), is_cut)


def _is_json(data: bytes, text: str, *, is_cut: bool) -> bool:
    """Return whether a value is a JSON object or list; of a cut one, whether it begins as one."""
    if text.lstrip()[:1] not in ("{", "["):
        return False
    if is_cut:
        return True
    try:
        orjson.loads(data)
    except orjson.JSONDecodeError:
        return False
    return True


def _visible(text: str) -> str:
    """Return a text whose invisible characters, and those that turn its direction, are seen."""
    return _HIDDEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def indented(text: str) -> str:
    """Return JSON with line breaks and an indent. Numbers and strings keep their characters."""
    most = 20 if len(text) < 65_536 else 4  # levels that are indented: a hostile text grows little
    parts: list[str] = []
    depth, before = 0, ""
    for part in _JSON_TOKEN.findall(text):
        if part in "]}":
            depth -= 1
            if before not in "[{":
                parts.append("\n" + "  " * min(depth, most))
        elif before in ("[", "{", ","):
            parts.append("\n" + "  " * min(depth, most))
        parts.append(": " if part == ":" else part)
        if part in "[{":
            depth += 1
        before = part
    return "".join(parts)


def compact(text: str) -> str:
    """Return JSON without spaces between its parts."""
    return "".join(_JSON_TOKEN.findall(text))


def hex_table(data: bytes) -> str:
    """Return bytes as lines of offset, hexadecimal and characters."""
    lines = []
    for at in range(0, len(data), 16):
        part = data[at : at + 16]
        plain = "".join(chr(each) if 32 <= each < 127 else "." for each in part)
        lines.append(f"{at:08x}  {part.hex(' '):<47}  {plain}")
    return "\n".join(lines)


def text_of(data: bytes | None, most: int = 4096) -> str:
    """Return bytes of a header as a text that can be shown."""
    return short(data, most).text if data is not None else "null"


def facts(headers: Headers, value: bytes | None) -> list[tuple[str, str]]:
    """Return what is known of a record from its headers and its envelope, as pairs of words."""
    found: list[tuple[str, str]] = []
    last = {name.lower(): data for name, data in headers if data is not None}
    trace = _TRACE.fullmatch(last.get("traceparent", b""))
    if trace is not None:
        sampled = "sampled" if int(trace[4], 16) & 1 else "not sampled"
        found.append(("Trace", f"{trace[2].decode()}, span {trace[3].decode()}, {sampled}"))
    for name in _CE:  # binary mode
        data = last.get(f"ce_{name}")
        if data is not None:
            found.append((f"CloudEvent {name}", text_of(data)))
    kind = last.get("content-type", b"").lower()
    if kind.startswith(b"application/cloudevents+json") and len(value or b"") <= FULL_BYTES:
        found += _envelope(value)
    if value is not None and len(value) > 5 and value[0] == 0 and value[1] < 8:
        number = int.from_bytes(value[1:5], "big")
        found.append(("Schema registry", f"perhaps schema {number}"))
    if "error.reason" in last:
        found.append(("Dead letter", text_of(last["error.reason"])))
    return found


def _envelope(value: bytes | None) -> Iterable[tuple[str, str]]:
    """Return the attributes of a CloudEvent in structured mode."""
    try:
        event = orjson.loads(value or b"null")
    except orjson.JSONDecodeError:
        return []
    if not isinstance(event, dict):
        return []
    return [
        (f"CloudEvent {name}", _visible(str(event[name])[:500])) for name in _CE if name in event
    ]
