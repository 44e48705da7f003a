"""A hook without I/O: what becomes of a request. It is verified, answered directly, or stored.

Must not know: HTTP's bytes, Kafka, the clock.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidemill.gateway.errors import DeliveryIdError
from tidemill.gateway.hooks.cloudevents import read_events
from tidemill.gateway.hooks.mapping import Delivery, Record, encode, selector
from tidemill.gateway.hooks.settings import HookEntry
from tidemill.gateway.hooks.verifiers import make_verifier
from tidemill.tracing import TRACEPARENT

MAX_ID = 512
"""Bytes of a delivery id. It is kept in memory."""
_KEPT = ("content-type", "content-encoding")
"""Headers of a request that its record has too: without them the body can't be read."""


@dataclass(frozen=True)
class Challenge:
    """A text that the sender wants back, before it sends anything else."""

    text: str


class Hook:
    """A declared hook, ready to use.

    Attributes:
        entry: its settings.

    Raises:
        SettingsError: a secret is missing or invalid.
    """

    def __init__(self, entry: HookEntry) -> None:
        self.entry = entry
        self._verifier = make_verifier(entry)
        self._key = selector(entry.key_from) if entry.key_from else None
        self._headers = [(name, selector(text)) for name, text in entry.headers.items()]
        self._mapped = frozenset(entry.headers)
        self._parameters = [each.strip("{}") for each in entry.path.split("/")[1:]]

    def parameters(self, segments: list[str]) -> dict[str, str] | None:
        """Return the parameters of a path behind the name, or None if it does not match."""
        if len(segments) != len(self._parameters) or not all(segments):
            return None
        return dict(zip(self._parameters, segments, strict=True))

    def accept(self, delivery: Delivery, now_s: float) -> list[Record] | Challenge:
        """Return the records of a request, or what it is answered with instead.

        Args:
            now_s: the time in seconds since 1970.

        Raises:
            SignatureError: it is not signed as the sender's are.
            EventError: it is not a valid CloudEvent.
            DeliveryIdError: its id is too long.
        """
        found = self._verifier.verify(delivery, now_s)
        if self.entry.verifier == "slack" and isinstance(delivery.json, dict):
            challenge = delivery.json.get("challenge")
            if delivery.json.get("type") == "url_verification" and isinstance(challenge, str):
                return Challenge(challenge)
        key = None if self._key is None else self._key(delivery)
        mapped = [(name, take(delivery)) for name, take in self._headers]
        headers = tuple((name, encode(text)) for name, text in mapped if text is not None)
        if TRACEPARENT not in self._mapped:
            headers += tuple((name, encode(text)) for name, text in delivery.trace.items())
        if self.entry.format == "cloudevents":
            return [
                Record(
                    _bytes(event.key if self._key is None else key),
                    event.value,
                    (*event.headers, *headers),
                    self._identity(event.id),
                )
                for event in read_events(delivery)
            ]
        given = ((name, delivery.headers.get(name)) for name in _KEPT)
        kept = tuple((name, text.encode("latin-1", "replace")) for name, text in given if text)
        return [Record(_bytes(key), delivery.body, (*kept, *headers), self._identity(found))]

    def _identity(self, found: str | None) -> bytes | None:
        """Return what identifies a delivery among those of all hooks."""
        if not found or not self.entry.dedupe:
            return None
        identity = encode(f"{self.entry.name}:{found}")
        if len(identity) > MAX_ID:
            raise DeliveryIdError(f"the id of the delivery is longer than {MAX_ID} bytes")
        return identity


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else encode(text)
