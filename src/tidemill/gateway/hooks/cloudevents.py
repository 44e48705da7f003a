"""Read CloudEvents 1.0 from requests: binary, structured and batched mode.

Each event becomes a record by Kafka's protocol binding. An event in binary mode has its attributes
in headers (``ce_type``). One in structured mode, or in a batch, keeps its JSON as it was sent, and
has its attributes in headers as well. Must not know: how a request is verified or stored. Sources:
CloudEvents 1.0.2, its HTTP, JSON and Kafka bindings, and HTTP 1.1 Web Hooks for Event Delivery.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from tidemill.errors import TidemillError
from tidemill.gateway.hooks.mapping import Delivery, encode, text_at

STRUCTURED, BATCH = "application/cloudevents+json", "application/cloudevents-batch+json"
MAX_EVENTS = 1000
"""Events of one batch."""
_MAX_ATTRIBUTES = 100
_ATTRIBUTE = re.compile(r"[a-z0-9]{1,100}", re.ASCII)
_SOURCE = re.compile(r"[^\s\x00-\x1f]+")
_SPACE = re.compile(r"[ \t\r\n]*")
_DECODER = json.JSONDecoder(parse_float=str)


class EventError(TidemillError):
    """A request does not contain a valid CloudEvent. The sender corrects it; a retry is in vain."""


@dataclass(frozen=True, slots=True)
class Event:
    """An event.

    Attributes:
        id: what identifies it: its source and its id. A source contains no space.
        key: the attribute ``partitionkey``, or None.
        value: the data, or in structured mode the JSON of the event.
        headers: the headers of its record.
    """

    id: str
    key: str | None
    value: bytes
    headers: tuple[tuple[str, bytes], ...]


def read_events(delivery: Delivery) -> list[Event]:
    """Return the events of a request.

    Raises:
        EventError: an event is invalid, or there are too many. None of them must be stored.
    """
    kind = delivery.headers.get("content-type", "")
    media = kind.partition(";")[0].strip().lower()
    if media == STRUCTURED:
        text = _text(delivery.body)
        event, end = _value(text, 0)
        _require(_SPACE.fullmatch(text, end) is not None, "something follows the event")
        return [_structured(event, delivery.body)]
    if media == BATCH:
        return [_structured(event, raw.encode()) for event, raw in _elements(delivery.body)]
    if media.startswith("application/cloudevents"):
        raise EventError(f"the format {media} is not supported", hint=f"Use {STRUCTURED}.")
    attributes = {
        name[3:]: unquote(value, errors="replace")
        for name, value in delivery.headers.items()
        if name.startswith("ce-")
    }
    more = (("content-type", kind.encode("latin-1", "replace")),) if kind else ()
    return [_event(attributes, delivery.body, more)]


def allowed(headers: Mapping[str, str], origins: list[str], rate: int | None) -> dict[str, str]:
    """Return the headers that answer OPTIONS: whether a sender can send, and how much.

    Args:
        headers: those of the request, by names in small letters.
        origins: the senders that can register; ``*`` for all.
        rate: requests per minute; None for any number.
    """
    answer = {"allow": "POST, OPTIONS"}
    origin = headers.get("webhook-request-origin", "")
    if not re.fullmatch(r"[!-~]{1,255}", origin):
        return answer
    lower = origin.lower()
    if "*" in origins or lower in (each.lower() for each in origins):
        answer["webhook-allowed-origin"] = origin
        answer["webhook-allowed-rate"] = "*" if rate is None else str(rate)
    return answer


def _structured(event: Any, raw: bytes) -> Event:
    _require(isinstance(event, dict), "an event must be a JSON object")
    attributes: dict[str, str] = {}
    for name, value in event.items():
        if name in ("data", "data_base64") or value is None:
            continue
        plain = isinstance(value, str | int)
        _require(plain, f"the attribute {name[:100]!r} must be text, a number, true or false")
        attributes[name] = text_at(value, []) or ""
    return _event(attributes, raw, (("content-type", f"{STRUCTURED}; charset=UTF-8".encode()),))


def _event(
    attributes: Mapping[str, str], value: bytes, more: tuple[tuple[str, bytes], ...]
) -> Event:
    _require(len(attributes) <= _MAX_ATTRIBUTES, f"more than {_MAX_ATTRIBUTES} attributes")
    for name in ("specversion", "id", "source", "type"):
        _require(bool(attributes.get(name)), f"the attribute {name} is missing")
    for name in attributes:
        _require(_ATTRIBUTE.fullmatch(name) is not None, f"invalid attribute {name[:100]!r}")
    version, source = attributes["specversion"], attributes["source"]
    _require(version == "1.0", f"the version {version[:20]!r} of CloudEvents is not supported")
    _require(_SOURCE.fullmatch(source) is not None, "the attribute source is not a URI")
    headers = tuple((f"ce_{name}", encode(text)) for name, text in attributes.items())
    key = attributes.get("partitionkey")
    return Event(f"{source} {attributes['id']}", key, value, (*more, *headers))


def _elements(body: bytes) -> Iterator[tuple[Any, str]]:
    """Yield the elements of a JSON array, each with its text."""
    text = _text(body)
    place = _skip(text, 0)
    _require(text[place : place + 1] == "[", "a batch must be a JSON array")
    place, count = _skip(text, place + 1), 0
    is_open = text[place : place + 1] != "]"
    while is_open:
        value, end = _value(text, place)
        yield value, text[place:end]
        count += 1
        _require(count <= MAX_EVENTS, f"more than {MAX_EVENTS} events")
        place = _skip(text, end)
        is_open = text[place : place + 1] == ","
        if is_open:
            place = _skip(text, place + 1)
    _require(text[place : place + 1] == "]", "the array is malformed")
    _require(_SPACE.fullmatch(text, place + 1) is not None, "something follows the array")


def _value(text: str, place: int) -> tuple[Any, int]:
    try:
        return _DECODER.raw_decode(text, _skip(text, place))
    except (ValueError, RecursionError) as error:
        raise EventError(f"the body is not JSON: {str(error)[:100]}") from None


def _text(body: bytes) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError:
        raise EventError("the body is not UTF-8") from None


def _skip(text: str, place: int) -> int:
    found = _SPACE.match(text, place)
    return found.end() if found else place


def _require(valid: bool, message: str) -> None:
    if not valid:
        raise EventError(message)
