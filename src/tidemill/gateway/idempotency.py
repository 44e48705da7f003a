"""``Idempotency-Key``: a record that a client posts twice is stored once.

The key is a header of the stored record. The keys of a topic are read back from it when the first
request with a key comes, and again after a write whose outcome is not known.
Must not know: HTTP's bytes. Source: draft-ietf-httpapi-idempotency-key-header.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import time
from collections import OrderedDict
from dataclasses import dataclass, field, replace

from tidemill.confluent.clients import Kafka
from tidemill.gateway.dedup import Once, Stored, Window, rebuild
from tidemill.gateway.errors import HttpError, invalid
from tidemill.gateway.settings import GatewaySettings
from tidemill.gateway.writing import Writer
from tidemill.record_json import InputRecord

HEADER = "idempotency-key"
"""The name of the header, of requests and of records."""
_TOPICS = 64
"""The most topics whose keys are in memory. They are read back when they are needed again."""
_READERS = 2
_VALID = re.compile(r"[!-~]{1,200}")


def parse_key(text: str | None) -> str | None:
    """Return the key of a request, without the quotes of the standard.

    Raises:
        HttpError: it is malformed (400).
    """
    if text is None:
        return None
    key = text[1:-1] if len(text) > 1 and text[0] == text[-1] == '"' else text
    if not _VALID.fullmatch(key):
        raise invalid(
            "invalid Idempotency-Key", hint="Use 1 to 200 visible ASCII characters, e.g. a UUID."
        )
    return key


@dataclass
class _Topic:
    once: Once
    is_read: bool = False
    reading: asyncio.Lock = field(default_factory=asyncio.Lock)


class Keys:
    """Stores records with a key once. It belongs to one event loop."""

    def __init__(self, kafka: Kafka, writer: Writer, settings: GatewaySettings) -> None:
        self._kafka = kafka
        self._writer = writer
        self._most = settings.idempotency_keys
        self._age_ms = settings.idempotency_seconds * 1000
        self._topics: OrderedDict[str, _Topic] = OrderedDict()
        self._readers = asyncio.Semaphore(_READERS)

    async def store(self, topic: str, key: str, record: InputRecord) -> tuple[Stored, bool]:
        """Store a record unless the topic has one with its key.

        Returns:
            The place of the record, and whether this call has stored it.

        Raises:
            HttpError: the key was used for another record (422), or the write failed.
        """
        known = await self._ready(topic)
        digest = _digest(record.key, record.value)
        keyed = replace(record, headers=[*record.headers, (HEADER, key.encode())])

        async def write() -> Stored:
            try:
                stored = await self._writer.send(topic, keyed)
            except HttpError as error:
                if error.status == 503:  # it is possibly in the log
                    known.is_read = False
                raise
            return replace(stored, digest=digest)

        stored, is_new = await known.once.store(key.encode(), write)
        if stored.digest != digest:
            raise HttpError(
                422,
                "idempotency_key_reused",
                f"the Idempotency-Key {key} was used for another record",
                hint="Use a new key for each record, and the same key for retries only.",
            )
        return stored, is_new

    async def _ready(self, name: str) -> _Topic:
        """Return the keys of a topic after they were read back."""
        topic = self._topics.get(name)
        if topic is None:
            once = Once(Window(self._most, self._age_ms), _now_ms)
            topic = self._topics[name] = _Topic(once)
            self._forget_one()
        self._topics.move_to_end(name)
        if not topic.is_read:
            async with topic.reading, self._readers:
                if not topic.is_read:
                    await asyncio.to_thread(self._read, name, topic.once.window)
                    topic.is_read = True
        return topic

    def _read(self, name: str, window: Window) -> None:
        # What a transaction writes has no key of the gateway: one that is open must not delay it.
        rebuild(
            window,
            self._kafka,
            name,
            HEADER,
            now_ms=_now_ms(),
            committed=False,
            digest=lambda message: _digest(message.key(), message.value()),
        )

    def _forget_one(self) -> None:
        if len(self._topics) > _TOPICS:
            for name, topic in self._topics.items():
                if topic.once.is_idle and not topic.reading.locked():
                    del self._topics[name]
                    return


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _digest(key: bytes | None, value: bytes | None) -> bytes:
    """Return what tells two records apart."""
    found = hashlib.blake2b(digest_size=8)
    for part in (key, value):
        found.update(b"-" if part is None else b"%d:" % len(part) + part)
    return found.digest()
