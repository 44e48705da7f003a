"""Events and service checks of DogStatsD. Must not know: sockets, metrics.

Source: https://docs.datadoghq.com/developers/dogstatsd/datagram_shell, and parse_events.go and
parse_service_checks.go of DataDog/datadog-agent.
"""

from __future__ import annotations

import re
from typing import Any

from tidemill.direct.statsd.errors import StatsdError

_EVENT = re.compile(rb"_e\{(\d{1,9}),(\d{1,9})\}:")
_STATUS = {b"0": "ok", b"1": "warning", b"2": "critical", b"3": "unknown"}
_EVENT_FIELDS = {b"h": "host", b"k": "aggregation_key", b"s": "source", b"c": "container"}
_CHOICES = {
    b"p": ("priority", (b"normal", b"low")),
    b"t": ("alert_type", (b"info", b"success", b"warning", b"error")),
}


def parse_notice(line: bytes) -> dict[str, Any]:
    """Return an event or a service check as a document.

    An optional field that is invalid is left out and named in ``warnings``, as the agent does; one
    that is not known is ignored.

    Raises:
        StatsdError: The line is malformed.
    """
    return _event(line) if line.startswith(b"_e") else _service_check(line)


def _text(raw: bytes) -> str:
    return raw.decode(errors="backslashreplace")


def _unescaped(raw: bytes) -> str:
    return _text(raw).replace("\\n", "\n")


def _event(line: bytes) -> dict[str, Any]:
    found = _EVENT.match(line)
    if found is None:
        raise StatsdError("the event has no header _e{TITLE LENGTH,TEXT LENGTH}:")
    title_size, text_size = int(found[1]), int(found[2])
    title, rest = line[found.end() :][:title_size], line[found.end() + title_size :]
    if title_size == 0:
        raise StatsdError("the event has no title")
    # Lengths are bytes of UTF-8, after line ends have become \n.
    if len(title) < title_size or rest[:1] != b"|" or len(rest) < text_size + 1:
        raise StatsdError(f"the lengths {title_size} and {text_size} are not those of the event")
    text, behind = rest[1 : text_size + 1], rest[text_size + 1 :]
    if behind and behind[:1] != b"|":
        raise StatsdError(f"the text of the event is longer than {text_size} bytes")
    event: dict[str, Any] = {"type": "event", "title": _unescaped(title), "text": _unescaped(text)}
    _add_fields(event, behind[1:].split(b"|") if behind else [], _EVENT_FIELDS)
    return event


def _service_check(line: bytes) -> dict[str, Any]:
    # The message comes last, and can have any character.
    head, has_message, message = line.partition(b"|m:")
    parts = head.split(b"|")
    if len(parts) < 3 or not parts[1]:
        raise StatsdError("the service check has no name, or no status")
    if (status := _STATUS.get(parts[2])) is None:
        raise StatsdError(f"status {_text(parts[2][:20])!r} is not from 0 to 3")
    check: dict[str, Any] = {"type": "service_check", "name": _text(parts[1]), "status": status}
    _add_fields(check, parts[3:], {b"h": "host", b"c": "container"})
    if has_message:
        check["message"] = _unescaped(message.replace(rb"m\:", b"m:"))
    return check


def _add_fields(to: dict[str, Any], fields: list[bytes], names: dict[bytes, str]) -> None:
    """Add the optional fields. Each is ``letter:value``, or ``#`` and tags."""
    warnings = []
    for field in fields:
        if field.startswith(b"#"):
            to["tags"] = sorted({_text(tag) for tag in field[1:].split(b",") if tag})
            continue
        letter, _, value = field.partition(b":")
        if letter in names:
            to[names[letter]] = _text(value)
        elif letter == b"d":
            if value.isdigit() and len(value) <= 12:
                to["timestamp"] = int(value)
            else:
                warnings.append(f"timestamp {_text(value[:20])!r}")
        elif letter in _CHOICES:
            name, choices = _CHOICES[letter]
            if value in choices:
                to[name] = value.decode()
            else:
                warnings.append(f"{name} {_text(value[:20])!r}")
    if warnings:
        to["warnings"] = warnings
