"""``Idempotency-Key``: a record that a client posts twice is stored once.

The key is a header of the stored record. The keys of a topic are read back from it when the first
request with a key comes, and again after a write whose outcome is not known.
Must not know: HTTP's bytes. Source: draft-ietf-httpapi-idempotency-key-header.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from tidemill.clock import SteadyClock, SystemClock
from tidemill.confluent.clients import Kafka
from tidemill.gateway.dedup import Once, Stored, Window, rebuild
from tidemill.gateway.errors import HttpError, invalid
from tidemill.gateway.settings import GatewaySettings
from tidemill.gateway.topics import Topic
from tidemill.gateway.writing import Writer
from tidemill.record_json import InputRecord

HEADER = "idempotency-key"
"""The name of the header, of requests and of records."""
_TOPICS = 64
"""The most topics whose keys are in memory. They are read back when they are needed again."""
_READERS = 2
_SLICE = 1000
"""Keys that are taken over before other requests have their turn."""
_VALID = re.compile(r"[!-~]{1,200}")


def parse_key(given: Sequence[str]) -> str | None:
    """Return the key of a request, without the quotes of the standard.

    Args:
        given: the values of the header.

    Raises:
        HttpError: it is malformed, or there are several (400).
    """
    if not given:
        return None
    if len(given) > 1:
        raise invalid("a request has one Idempotency-Key at most")
    text = given[0]
    key = text[1:-1] if len(text) > 1 and text[0] == text[-1] == '"' else text
    if not _VALID.fullmatch(key):
        raise invalid(
            "invalid Idempotency-Key", hint="Use 1 to 200 visible ASCII characters, e.g. a UUID."
        )
    return key


@dataclass
class _Known:
    """The keys of a topic. One that was created again has none of the earlier one's.

    Attributes:
        doubts: writes so far that are possibly in the log.
        read: how many there were when the log was read last.
    """

    id: str
    once: Once
    doubts: int = 0
    read: int = -1
    reading: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def is_read(self) -> bool:
        """Whether all keys in the log are known."""
        return self.read == self.doubts


class Keys:
    """Stores records with a key once. It belongs to one event loop."""

    def __init__(self, kafka: Kafka, writer: Writer, settings: GatewaySettings) -> None:
        self._kafka = kafka
        self._writer = writer
        self._most = settings.idempotency_keys
        self._age_ms = settings.idempotency_seconds * 1000
        self._now_ms = SteadyClock(SystemClock()).now_ms
        self._topics: OrderedDict[str, _Known] = OrderedDict()
        self._readers = asyncio.Semaphore(_READERS)

    async def store(self, topic: Topic, key: str, record: InputRecord) -> tuple[Stored, bool]:
        """Store a record unless the topic has one with its key. The caller holds its memory.

        Returns:
            The place of the record, and whether this call has stored it.

        Raises:
            HttpError: the key was used for another record (422), or the write failed.
        """
        known = await self._ready(topic)
        id_, digest = key.encode(), _digest(record.key, record.value)
        keyed = replace(record, headers=[*record.headers, (HEADER, id_)])

        async def write() -> Stored:
            if not known.is_read:  # an earlier write of this key is possibly in the log
                await self._read(topic.name, known)
                found = known.once.window.find(id_, self._now_ms())
                if found is not None:
                    return found
            sending = self._writer.send(topic.name, keyed, is_taken=True)
            try:
                stored = await sending
            except HttpError as error:
                if error.status == 503:  # it is possibly in the log
                    known.doubts += 1
                raise
            return replace(stored, digest=digest)

        stored, is_new = await known.once.store(id_, write)
        if stored.digest != digest:
            raise HttpError(
                422,
                "idempotency_key_reused",
                f"the Idempotency-Key {key} was used for another record",
                hint="Use a new key for each record, and the same key for retries only.",
            )
        return stored, is_new

    async def _ready(self, topic: Topic) -> _Known:
        """Return the keys of a topic after they were read back."""
        known = self._topics.get(topic.name)
        if known is None or known.id != topic.id:
            once = Once(Window(self._most, self._age_ms), self._now_ms)
            known = self._topics[topic.name] = _Known(topic.id, once)
            self._forget_one()
        self._topics.move_to_end(topic.name)
        await self._read(topic.name, known)
        return known

    async def _read(self, name: str, known: _Known) -> None:
        """Read the keys in a topic, which other requests write to meanwhile."""
        while not known.is_read:
            async with known.reading, self._readers:
                if known.is_read:
                    return
                doubts = known.doubts
                found = await asyncio.to_thread(self._in_log, name)
                for number, (id_, stored) in enumerate(found.items(), 1):
                    known.once.window.add(id_, stored, self._now_ms())
                    if number % _SLICE == 0:
                        await asyncio.sleep(0)
                known.read = doubts

    def _in_log(self, name: str) -> Window:
        # What a transaction writes has no key of the gateway: one that is open must not delay it.
        window = Window(self._most, self._age_ms)
        rebuild(
            window,
            self._kafka,
            name,
            HEADER,
            now_ms=self._now_ms(),
            committed=False,
            digest=lambda message: _digest(message.key(), message.value()),
        )
        return window

    def _forget_one(self) -> None:
        if len(self._topics) > _TOPICS:
            for name, topic in self._topics.items():
                if topic.once.is_idle and not topic.reading.locked():
                    del self._topics[name]
                    return


def _digest(key: bytes | None, value: bytes | None) -> bytes:
    """Return what tells two records apart."""
    found = hashlib.blake2b(digest_size=8)
    for part in (key, value):
        found.update(b"-" if part is None else b"%d:" % len(part) + part)
    return found.digest()
