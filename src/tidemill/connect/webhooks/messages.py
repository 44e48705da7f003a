"""Make messages of records: id, event type, body, headers and signatures.

Must not know: a Kafka client, an HTTP client.
"""

from __future__ import annotations

import base64
import fnmatch
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from tidemill import __version__
from tidemill.connect.base.secrets import Secret, resolve
from tidemill.connect.webhooks.definition import Webhook
from tidemill.connect.webhooks.errors import MessageError
from tidemill.connect.webhooks.expression import lookup, parse_filter, parse_path
from tidemill.connect.webhooks.lanes import Delivery, Event
from tidemill.connect.webhooks.signatures import Signer
from tidemill.connect.webhooks.template import parse_template

_ID = re.compile(rb"[A-Za-z0-9_:=+/@-]{1,200}")
"""Ids of records that are used as they are. A dot separates the parts of what is signed."""
_MISSING = object()


@dataclass(slots=True)
class Message:
    """An id and a body. Each attempt has signatures of its own."""

    id: str
    body: bytes


class Messages:
    """Makes the messages of one webhook.

    Args:
        webhook: its definition.
        topic_id: identifies the topic, also after one with the same name was deleted.

    Raises:
        SettingsError: a secret can't be resolved, or is invalid.
    """

    def __init__(self, webhook: Webhook, topic_id: str) -> None:
        self._webhook = webhook
        self._topic_id = topic_id
        self._signer = Signer(resolve(webhook.secrets)) if webhook.secrets else None
        own = {
            name.lower(): value.reveal() if isinstance(value, Secret) else str(value)
            for name, value in resolve(webhook.headers).items()
        }
        self._fixed = {
            "content-type": webhook.content_type,
            "user-agent": f"tidemill/{__version__} (webhooks)",
            **own,
        }
        self._type = parse_path(webhook.event_type)
        patterns = "|".join(f"(?:{fnmatch.translate(each)})" for each in _stars(webhook.types))
        self._types = re.compile(patterns) if webhook.types else None
        self._filter = parse_filter(webhook.filter) if webhook.filter else None
        self._template = None if webhook.template is None else parse_template(webhook.template)
        self._needs_json = webhook.needs_json
        self._makes_json = self._template is not None or webhook.batch > 1

    def accepts(self, event: Event) -> bool:
        """Return whether a record is to be delivered, and give it its id.

        Raises:
            MessageError: it must be JSON, and is not.
        """
        event.id = self._id_of(event)
        if not self._needs_json and self._types is None:
            return True
        scope = self._scope(event)
        if self._needs_json:
            scope.check_json()
        try:
            if not self._selects(scope):
                return False
            if self._makes_json:
                self.message(Delivery([event]))  # what can't be sent is found before it is planned
        except (orjson.JSONEncodeError, RecursionError) as error:
            raise MessageError(f"no message can be made of the value: {error}") from None
        return True

    def _selects(self, scope: RecordScope) -> bool:
        if self._types is not None:
            found = lookup(scope, self._type)
            if not isinstance(found, str) or not self._types.fullmatch(found):
                return False
        return self._filter is None or self._filter(scope)

    def message(self, delivery: Delivery) -> Message:
        """Return the message of a delivery. Its id is the same at each attempt."""
        events = delivery.events
        if self._webhook.batch > 1:
            body = orjson.dumps([self._entry(each) for each in events])
            return Message(_batch_id(events), body)
        (event,) = events
        if self._template is None:
            return Message(event.id, event.value or b"")
        return Message(event.id, orjson.dumps(self._template(self._scope(event))))

    def _entry(self, event: Event) -> dict[str, Any]:
        scope = self._scope(event)
        data = scope.root("$value") if self._template is None else self._template(scope)
        return {
            "id": event.id,
            "type": scope.root("$type"),
            "timestamp": event.timestamp_ms,
            "data": data,
        }

    def headers(self, message: Message, now_s: int) -> dict[str, str]:
        """Return the headers of an attempt, with its signatures."""
        if self._signer is None:
            own = {"webhook-id": message.id, "webhook-timestamp": str(now_s)}
        else:
            own = self._signer.headers(message.id, now_s, message.body)
        return {**self._fixed, **own}

    def _scope(self, event: Event) -> RecordScope:
        return RecordScope(event, self._webhook.topic, self._type)

    def _id_of(self, event: Event) -> str:
        if self._webhook.id_header:
            given = _header(event, self._webhook.id_header)
            if given and _ID.fullmatch(given):
                return given.decode()
            if given:
                return "msg_" + hashlib.sha256(given).hexdigest()[:40]
        return f"msg_{self._topic_id}-{event.partition}-{event.offset}"


class RecordScope:
    """The names that expressions can use of a record (``expression.Scope``)."""

    def __init__(self, event: Event, topic: str, event_type: tuple[str | int, ...]) -> None:
        self._event = event
        self._topic = topic
        self._type = event_type
        self._json: Any = _MISSING

    def check_json(self) -> None:
        """Check that the value is JSON, or that there is none.

        Raises:
            MessageError: it is something else.
        """
        try:
            self._parsed()
        except orjson.JSONDecodeError as error:
            raise MessageError(f"the value is not JSON: {error}") from None

    def root(self, name: str) -> Any:
        """Return what a name stands for; None if there is nothing."""
        if not name.startswith("$"):
            value = self._parsed()
            return value.get(name) if isinstance(value, dict) else None
        event = self._event
        match name:
            case "$value":
                return self._parsed()
            case "$key":
                return _text(event.key)
            case "$headers":
                return {key: _text(value) for key, value in event.headers}
            case "$type":
                return None if self._type[0] == "$type" else lookup(self, self._type)
        plain = {
            "$topic": self._topic,
            "$partition": event.partition,
            "$offset": event.offset,
            "$timestamp": event.timestamp_ms,
            "$id": event.id,
        }
        return plain.get(name)

    def _parsed(self) -> Any:
        if self._json is _MISSING:
            value = self._event.value
            self._json = None if value is None else orjson.loads(value)
        return self._json


def _stars(types: Sequence[str]) -> list[str]:
    """Return patterns in which only the star is special."""
    return [re.sub(r"[\[?]", lambda found: f"[{found[0]}]", each) for each in types]


def _batch_id(events: Sequence[Event]) -> str:
    digest = hashlib.sha256("\n".join(each.id for each in events).encode()).digest()
    return "batch_" + base64.urlsafe_b64encode(digest[:24]).decode()


def _header(event: Event, name: str) -> bytes | None:
    return next((value for key, value in reversed(event.headers) if key == name), None)


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode(errors="replace")
