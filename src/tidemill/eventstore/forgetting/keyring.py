"""The keys of a store's subjects, wrapped, in a compacted topic of their own.

The key of a record is the id of a key; its value has the subject's pseudonym and the wrapped key. A
deleted key is a tombstone. The topic is not part of a store's copies: a copy without it holds
nothing personal. Must not know: events.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from confluent_kafka import KafkaError, Message

from tidemill.confluent.clients import Kafka
from tidemill.confluent.reading import messages_to_end
from tidemill.errors import TidemillError, UnreachableError
from tidemill.eventstore.forgetting.cipher import Masters, new_key
from tidemill.eventstore.forgetting.errors import KeyFileError

_CLIENT = "tidemill-keys"
_CONFIGS = {
    "cleanup.policy": "compact",
    # So that the bytes of deleted keys disappear soon.
    "min.cleanable.dirty.ratio": "0.01",
    "segment.ms": "600000",
    "max.compaction.lag.ms": "3600000",
    "delete.retention.ms": "86400000",
}
_FLUSH_S = 30.0


class Key(NamedTuple):
    """A key of a subject.

    Attributes:
        id: random; it is public.
        subject: the pseudonym of the subject.
        secret: the key itself.
    """

    id: str
    subject: str
    secret: bytes


class Keyring:
    """The keys of one store. Threads can share it.

    Args:
        kafka: the cluster, or its ``bootstrap.servers``.
        store: the topic of the store.
        masters: the master keys.

    Raises:
        KeyFileError: a key is wrapped with a master key that is not in the file.
        UnreachableError: the topic can't be read.
    """

    def __init__(self, kafka: Kafka | str, store: str, masters: Masters) -> None:
        kafka = Kafka(kafka) if isinstance(kafka, str) else kafka
        self.topic = f"{store}.keys"
        self._kafka = kafka
        self._store = store
        self._masters = masters
        self._lock = threading.RLock()
        self._keys: dict[str, Key] = {}
        self._by_subject: dict[str, dict[str, Key]] = {}
        self._read = 0
        kafka.create_topics(_CLIENT, {self.topic: (1, _CONFIGS)})
        self._producer = kafka.producer(_CLIENT, acks="all", enable_idempotence=True, linger_ms=0)
        self.refresh()

    def refresh(self) -> None:
        """Read what other processes have written since.

        Raises:
            KeyFileError: a key can't be unwrapped.
            UnreachableError: the topic can't be read to its end.
        """
        with self._lock:
            latest: dict[str, bytes | None] = {}  # earlier records can need old master keys
            read = self._read
            starts = {(self.topic, 0): read}
            for message in messages_to_end(self._kafka, _CLIENT, self.topic, starts=starts):
                latest[(message.key() or b"").decode(errors="replace")] = message.value()
                read = int(message.offset() or 0) + 1
            for key_id, value in latest.items():
                if value is None:
                    self._drop(key_id)
                else:
                    self._add(self._key(key_id, value))
            self._read = read

    def _key(self, key_id: str, value: bytes) -> Key:
        try:
            found = json.loads(value)
            master, subject, wrapped = found["master"], found["subject"], found["wrapped"]
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise KeyFileError(
                f"topic {self.topic} has a record that is not a key: {key_id[:80]!r}"
            ) from error
        return Key(key_id, subject, self._masters.unwrap(wrapped, master, key_id + subject))

    def _add(self, key: Key) -> None:
        self._keys[key.id] = key
        self._by_subject.setdefault(key.subject, {})[key.id] = key

    def _drop(self, key_id: str) -> None:
        key = self._keys.pop(key_id, None)
        if key is not None:
            mine = self._by_subject[key.subject]
            del mine[key_id]
            if not mine:
                del self._by_subject[key.subject]

    def of(self, subject: str) -> Key:
        """Return a key of a subject; a new one is stored first.

        Two processes can make one each: both are valid, and forgotten together.

        Raises:
            UnreachableError: a new key can't be stored.
        """
        pseudonym = self._masters.pseudonym(self._store, subject)
        with self._lock:
            mine = self._by_subject.get(pseudonym)
            if mine:
                return mine[min(mine)]  # the same in all processes
            key = Key(uuid.uuid4().hex, pseudonym, new_key())
            self._write({key.id: self._value(key)})
            self._add(key)
            return key

    def get(self, key_id: str) -> Key | None:
        """Return the key with an id; None if it was deleted, or is not known."""
        with self._lock:
            found = self._keys.get(key_id)
            if found is None:
                self.refresh()
                found = self._keys.get(key_id)
            return found

    def ids_of(self, subject: str) -> list[str]:
        """Return the ids of all keys that a subject has now."""
        with self._lock:
            self.refresh()
            return list(self._by_subject.get(self._masters.pseudonym(self._store, subject), ()))

    def ids(self) -> list[str]:
        """Return the ids of all keys."""
        with self._lock:
            return list(self._keys)

    def delete(self, key_ids: Sequence[str]) -> None:
        """Delete keys, durably.

        Raises:
            UnreachableError: it is not known whether they are deleted. Delete them again.
        """
        with self._lock:
            if key_ids:
                self._write(dict.fromkeys(key_ids))
            for key_id in key_ids:
                self._drop(key_id)

    def rewrap(self) -> int:
        """Wrap all keys with the current master key, and return how many there are."""
        with self._lock:
            self.refresh()
            self._write({key.id: self._value(key) for key in self._keys.values()})
            return len(self._keys)

    def remains_of(self, key_ids: Sequence[str]) -> list[str]:
        """Return which deleted keys still have bytes in the topic, until it is compacted."""
        wanted = {key_id.encode() for key_id in key_ids}
        found: dict[str, None] = {}
        for message in messages_to_end(self._kafka, _CLIENT, self.topic):
            if message.key() in wanted and message.value() is not None:
                found[(message.key() or b"").decode()] = None
        return list(found)

    def _value(self, key: Key) -> bytes:
        wrapped = self._masters.wrap(key.secret, key.id + key.subject)
        value = {"master": self._masters.current, "subject": key.subject, "wrapped": wrapped}
        return json.dumps(value).encode()

    def _write(self, values: Mapping[str, bytes | None]) -> None:
        failures: list[KafkaError] = []

        def report(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                failures.append(error)

        for key_id, value in self._in_slices(values):
            self._producer.produce(self.topic, value, key_id.encode(), 0, on_delivery=report)
        if self._producer.flush(_FLUSH_S):
            raise UnreachableError(f"keys can't be stored in topic {self.topic}: no answer in time")
        if failures:
            found: TidemillError = self._kafka.translate(failures[0], "store keys")
            raise found

    def _in_slices(self, values: Mapping[str, bytes | None]) -> Iterator[tuple[str, bytes | None]]:
        for number, each in enumerate(values.items(), 1):
            yield each
            if number % 10_000 == 0:
                self._producer.flush(_FLUSH_S)
