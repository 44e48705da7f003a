"""Read CloudEvents 1.0 from requests: binary, structured and batched mode.

Each event becomes a record in the binary mode of Kafka's protocol binding, however it was sent: its
attributes are headers (``ce_type``), and its data is the value. Must not know: how a request is
verified or stored. Sources: CloudEvents 1.0.2, its JSON format, its bindings of HTTP and Kafka, and
HTTP 1.1 Web Hooks for Event Delivery.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from urllib.parse import unquote

from tidemill.connect.webhooks.signatures import decode_base64
from tidemill.gateway.errors import EventError
from tidemill.gateway.hooks.mapping import Delivery, encode
from tidemill.record_json import Json, elements, members, parse_json

STRUCTURED, BATCH = "application/cloudevents+json", "application/cloudevents-batch+json"
MAX_EVENTS = 1000
"""Events of one batch."""
_MAX_ATTRIBUTES = 100
_ATTRIBUTE = re.compile(r"[a-z0-9]{1,100}", re.ASCII)
_SOURCE = re.compile(r"[^\s\x00-\x1f]+")
_JSON = re.compile(r"[/+]json$", re.I)
_DATA, _BASE64 = "data", "data_base64"


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
        return _json_events(delivery.body, are_many=media == BATCH)
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


def _json_events(body: bytes, *, are_many: bool) -> list[Event]:
    """Return the event of a JSON object, or the events of an array."""
    try:
        value = parse_json(body)
    except ValueError as error:
        raise EventError(str(error)) from None
    if not are_many:
        return [_structured(value)]
    _require(value.first == "[", "a batch must be a JSON array")
    found = [*islice(elements(value), MAX_EVENTS + 1)]
    _require(len(found) <= MAX_EVENTS, f"more than {MAX_EVENTS} events")
    return [_structured(each) for each in found]


def _structured(event: Json) -> Event:
    _require(event.first == "{", "an event must be a JSON object")
    attributes: dict[str, str] = {}
    given: dict[str, Json] = {}
    for name, each in members(event):
        _require(name not in given, f"{name[:100]!r} occurs twice")
        given[name] = each
        if name in (_DATA, _BASE64) or each.raw == "null":
            continue
        plain = each.first not in "{["
        _require(plain, f"the attribute {name[:100]!r} must be text, a number, true or false")
        attributes[name] = each.string if each.first == '"' else each.raw
    kind = attributes.pop("datacontenttype", "")
    data, encoded = given.get(_DATA), given.get(_BASE64)
    if encoded is not None and encoded.raw != "null":
        _require(data is None, "an event has data or data_base64, and not both")
        value = decode_base64(encoded.string) if encoded.first == '"' else None
        if value is None:
            raise EventError("data_base64 is not base64")
    elif data is None:
        value = b""
    elif data.first == '"' and kind and not _JSON.search(kind.partition(";")[0].strip()):
        value = encode(data.string)  # the text is the data, and not JSON
    else:
        kind, value = kind or "application/json", data.raw.encode()
    return _event(attributes, value, kind)


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


def _require(valid: bool, message: str) -> None:
    if not valid:
        raise EventError(message)
