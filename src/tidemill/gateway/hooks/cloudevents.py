"""Read CloudEvents 1.0 from requests: binary, structured and batched mode.

Each event becomes a record in the binary mode of Kafka's protocol binding, however it was sent: its
attributes are headers (``ce_type``), and its data is the value. Must not know: how a request is
verified or stored. Sources: CloudEvents 1.0.2, its JSON format, its bindings of HTTP and Kafka, and
HTTP 1.1 Web Hooks for Event Delivery.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from tidemill.connect.webhooks.signatures import decode_base64
from tidemill.errors import TidemillError
from tidemill.gateway.hooks.mapping import Delivery, encode, text_at

STRUCTURED, BATCH = "application/cloudevents+json", "application/cloudevents-batch+json"
MAX_EVENTS = 1000
"""Events of one batch."""
_MAX_ATTRIBUTES = 100
_ATTRIBUTE = re.compile(r"[a-z0-9]{1,100}", re.ASCII)
_SOURCE = re.compile(r"[^\s\x00-\x1f]+")
_SPACE = re.compile(r"[ \t\r\n]*")
_JSON = re.compile(r"[/+]json$", re.I)
_DATA, _BASE64 = "data", "data_base64"
_DECODER = json.JSONDecoder(parse_float=str)


class EventError(TidemillError):
    """A request does not contain a valid CloudEvent. The sender corrects it; a retry is in vain."""


@dataclass(frozen=True, slots=True)
class Event:
    """An event.

    Attributes:
        id: what identifies it: its source and its id. A source contains no space.
        key: the attribute ``partitionkey``, or None.
        value: the data, as it was sent.
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
    if media in (STRUCTURED, BATCH):
        scanner = _Scanner(delivery.body)
        objects = [scanner.members()] if media == STRUCTURED else list(scanner.objects())
        scanner.end()
        return [_structured(each) for each in objects]
    if media.startswith("application/cloudevents"):
        raise EventError(f"the format {media} is not supported", hint=f"Use {STRUCTURED}.")
    attributes = {
        name[3:]: unquote(value, errors="replace")
        for name, value in delivery.headers.items()
        if name.startswith("ce-")
    }
    return [_event(attributes, delivery.body, kind)]


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


def _structured(members: dict[str, tuple[Any, str]]) -> Event:
    """Return the event of a JSON object, given the value and the text of each member."""
    attributes: dict[str, str] = {}
    for name, (value, _) in members.items():
        if name in (_DATA, _BASE64) or value is None:
            continue
        plain = isinstance(value, str | int)
        _require(plain, f"the attribute {name[:100]!r} must be text, a number, true or false")
        attributes[name] = text_at(value, []) or ""
    kind = attributes.pop("datacontenttype", "")
    value, text = members.get(_DATA, (None, ""))
    encoded, _ = members.get(_BASE64, (None, ""))
    if encoded is not None:
        _require(not text, "an event has data or data_base64, and not both")
        found = decode_base64(encoded) if isinstance(encoded, str) else None
        _require(found is not None, "data_base64 is not base64")
        data = found or b""
    elif isinstance(value, str) and kind and not _JSON.search(kind.partition(";")[0].strip()):
        data = encode(value)  # the text is the data, and not JSON
    else:
        kind, data = kind or ("application/json" if text else ""), text.encode()
    return _event(attributes, data, kind)


def _event(attributes: Mapping[str, str], value: bytes, kind: str) -> Event:
    _require(len(attributes) <= _MAX_ATTRIBUTES, f"more than {_MAX_ATTRIBUTES} attributes")
    for name in ("specversion", "id", "source", "type"):
        _require(bool(attributes.get(name)), f"the attribute {name} is missing")
    for name in attributes:
        _require(_ATTRIBUTE.fullmatch(name) is not None, f"invalid attribute {name[:100]!r}")
    version, source = attributes["specversion"], attributes["source"]
    _require(version == "1.0", f"the version {version[:20]!r} of CloudEvents is not supported")
    _require(_SOURCE.fullmatch(source) is not None, "the attribute source is not a URI")
    headers = tuple((f"ce_{name}", encode(text)) for name, text in attributes.items())
    more = (("content-type", encode(kind)),) if kind else ()
    key = attributes.get("partitionkey")
    return Event(f"{source} {attributes['id']}", key, value, (*more, *headers))


class _Scanner:
    """Reads JSON, and keeps the text of what it reads: numbers would not survive a conversion."""

    def __init__(self, body: bytes) -> None:
        try:
            self._text = body.decode()
        except UnicodeDecodeError:
            raise EventError("the body is not UTF-8") from None
        self._place = 0
        self._skip()

    def objects(self) -> Iterator[dict[str, tuple[Any, str]]]:
        """Yield the objects of an array."""
        _require(self._take("["), "a batch must be a JSON array")
        count, is_open = 0, not self._take("]")
        while is_open:
            yield self.members()
            count += 1
            _require(count <= MAX_EVENTS, f"more than {MAX_EVENTS} events")
            is_open = self._take(",")
            _require(is_open or self._take("]"), "the body is not JSON: expected a comma or ]")

    def members(self) -> dict[str, tuple[Any, str]]:
        """Return the members of an object: value and text by name."""
        _require(self._take("{"), "an event must be a JSON object")
        found: dict[str, tuple[Any, str]] = {}
        is_open = not self._take("}")
        while is_open:
            name, _ = self._value()
            _require(isinstance(name, str) and self._take(":"), "the body is not JSON: no name")
            _require(name not in found, f"{name[:100]!r} occurs twice")
            _require(len(found) < _MAX_ATTRIBUTES, f"more than {_MAX_ATTRIBUTES} attributes")
            found[name] = self._value()
            is_open = self._take(",")
            _require(is_open or self._take("}"), "the body is not JSON: expected a comma or }")
        return found

    def end(self) -> None:
        """Check that nothing follows."""
        _require(self._place == len(self._text), "something follows the event or the batch")

    def _value(self) -> tuple[Any, str]:
        start = self._place
        try:
            value, self._place = _DECODER.raw_decode(self._text, start)
        except (ValueError, RecursionError) as error:
            raise EventError(f"the body is not JSON: {str(error)[:100]}") from None
        text = self._text[start : self._place]
        self._skip()
        return value, text

    def _take(self, character: str) -> bool:
        if not self._text.startswith(character, self._place):
            return False
        self._place += 1
        self._skip()
        return True

    def _skip(self) -> None:
        found = _SPACE.match(self._text, self._place)
        self._place = found.end() if found else self._place


def _require(valid: bool, message: str) -> None:
    if not valid:
        raise EventError(message)
