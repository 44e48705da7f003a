"""Follows the topic in which the broker publishes queues, connections, channels and bindings.

A thread reads while someone looks, and for ``IDLE_S`` after that. The first look creates the topic:
the broker publishes from then on. Must not know: routes, the names of RabbitMQ's objects.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import orjson
import structlog
from confluent_kafka import KafkaException, Message

from tidemill.confluent.clients import Kafka
from tidemill.confluent.reading import Follower, end_offsets
from tidemill.errors import TidemillError, UnreachableError
from tidemill.gateway.errors import HttpError, from_error, from_kafka, unavailable

TOPIC = "tidemill.amqp"
CONFIG: Mapping[str, str] = {
    "cleanup.policy": "compact,delete",
    "retention.ms": "3600000",
    "segment.bytes": "8388608",
    "segment.ms": "600000",
}
IDLE_S = 60.0
"""How long the topic is followed after the last look."""
WAIT_S = 6.0
"""How long the first look waits for what the broker publishes."""
_STALE_MS = 180_000
"""A fact that the broker has not repeated for so long does not exist any more."""
_ROUND_MS = 3000
"""A fact that is older than the last round by this has not changed since."""
_CLIENT = "tidemill-gateway-amqp"
_PLACE = (TOPIC, 0)

log = structlog.get_logger("tidemill.gateway")

COUNTED = ("published", "delivered", "acknowledged", "redelivered", "dead")


@dataclass(slots=True)
class Entry:
    """A fact that the broker has published.

    Attributes:
        at_ms: when it was published.
        fields: its fields.
        rates: for each counter, how much it grew in a second.
    """

    at_ms: int
    fields: dict[str, Any]
    rates: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class View:
    """The facts at one moment, by name.

    Attributes:
        node: the broker itself.
    """

    node: dict[str, Any]
    queues: dict[str, Entry]
    connections: dict[str, Entry]
    channels: dict[str, Entry]
    exchanges: dict[str, Entry]
    bindings: list[dict[str, Any]]

    @cached_property
    def targets(self) -> Mapping[tuple[str, str | None], Collection[str]]:
        """The queues that are bound, by exchange and routing key; with None, those of all keys."""
        found: dict[tuple[str, str | None], dict[str, None]] = {}
        for each in self.bindings:
            if each["destination_type"] == "queue":
                for key in (each["routing_key"], None):
                    found.setdefault((each["source"], key), {})[each["destination"]] = None
        return found

    @property
    def age_s(self) -> float:
        """The age of the facts, by the clocks of broker and gateway."""
        return max(0.0, time.time() - float(self.node["at"]) / 1000)


class AmqpState:
    """The state of AMQP, as one user sees it.

    Args:
        kafka: the user's client.
        own: the gateway's client, which creates the topic.
    """

    def __init__(self, kafka: Kafka, own: Kafka) -> None:
        self._kafka, self._own = kafka, own
        self._entries: dict[str, Entry] = {}
        self._kept: tuple[int, View] | None = None
        """The last view, and the position that it was made at."""
        self._position = 0
        self._looked_at = 0.0
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._is_complete = False
        self._has_round = False
        """Whether a round of the broker was read since the thread began."""
        self._is_closed = False
        self._error: HttpError | None = None

    async def view(self) -> View:
        """Return the facts.

        Raises:
            HttpError: the broker publishes nothing (503), or the user must not read it (403).
        """
        self._looked_at = time.monotonic()
        if self._is_complete:
            return self._made()
        return await asyncio.to_thread(self._first)

    @property
    def latest(self) -> View | None:
        """The facts, if they are followed now; this does not begin it."""
        return self._made() if self._is_complete else None

    def _first(self) -> View:
        with self._lock:
            if self._thread is None and not self._is_closed:
                self._error = None
                self._thread = threading.Thread(target=self._run, name="amqp", daemon=True)
                self._thread.start()
            self._changed.wait_for(lambda: self._is_complete or self._error is not None, WAIT_S)
            if self._error is not None:
                raise self._error
            if not self._is_complete:
                raise unavailable(
                    "the broker publishes nothing about its queues",
                    hint="It does with AMQP switched on: amqp.enabled.",
                )
        return self._made()

    def close(self) -> None:
        """End the thread."""
        self._is_closed = True
        thread = self._thread
        if thread is not None:
            thread.join(2)

    # --- the thread ------------------------------------------------------------------------------

    def _run(self) -> None:
        error: HttpError | None = None
        try:
            self._create_topic()
            follower = Follower.of(
                self._kafka,
                _CLIENT,
                [_PLACE],
                "read_uncommitted",
                starts={_PLACE: self._position},
                fetch_wait_max_ms=500,
                queued_max_messages_kbytes=16_384,
            )
            with contextlib.closing(follower):
                self._follow(follower)
        except KafkaException as failed:
            error = from_kafka(failed.args[0], f"topic {TOPIC}")
        except TidemillError as failed:
            error = _of(failed)
        except Exception as failed:  # a bug: the page says so, and the next look tries again
            log.error("gateway.failed", method="GET", path="/api", error=failed)
            error = HttpError(500, "internal_error", "an internal error: see the log")
        with self._lock:
            self._thread, self._is_complete, self._error = None, False, error
            self._changed.notify_all()

    def _create_topic(self) -> None:
        """Create the topic if it is missing: as the gateway, or as the user.

        Raises:
            HttpError: neither is allowed to (403).
            TidemillError: no broker answers.
        """
        if self._kafka.partitions(_CLIENT, TOPIC):
            return
        for kafka in (self._own, self._kafka):
            try:
                kafka.create_topics(_CLIENT, {TOPIC: (1, CONFIG)})
            except UnreachableError:
                raise
            except TidemillError as error:
                refused = error
            else:
                return
        raise HttpError(
            403,
            "forbidden",
            str(refused),
            hint=f"Let the user read topic {TOPIC}, or the gateway's user create it: "
            "tidemill acl grant --for gateway",
        )

    def _follow(self, follower: Follower) -> None:
        self._has_round = False
        ends = end_offsets(self._kafka, _CLIENT, TOPIC)
        while not self._is_closed and time.monotonic() - self._looked_at < IDLE_S:
            for message in follower.poll(0.5):
                self._apply(message)
            if self._has_round and not self._is_complete and not follower.behind(ends):
                with self._lock:
                    self._is_complete = True
                    self._changed.notify_all()

    def _apply(self, message: Message) -> None:
        self._take(message)
        self._position = int(message.offset() or 0) + 1  # a view of before is not the present one

    def _take(self, message: Message) -> None:
        key, value = (message.key() or b"").decode("utf-8", "replace"), message.value()
        if value is None and key == "node":  # the broker publishes again now that it is followed
            self._has_round = self._is_complete = False
            return
        if value is None:
            self._entries.pop(key, None)
            return
        try:
            fields = orjson.loads(value)
            at_ms = int(fields["at"])
            before = self._entries.get(key)
            self._entries[key] = Entry(at_ms, fields, _rates(before, fields, at_ms))
        except (ValueError, KeyError, TypeError):
            return  # another client has written it
        if key == "node":
            self._has_round = True
            if before is not None and before.fields.get("i") != fields.get("i"):
                self._forget_others(fields.get("i"))

    def _forget_others(self, instance: object) -> None:
        """Forget what an earlier process of the broker has published."""
        self._entries = {
            key: entry for key, entry in self._entries.items() if entry.fields.get("i") == instance
        }

    # --- the view --------------------------------------------------------------------------------

    def _made(self) -> View:
        position, kept = self._position, self._kept
        if kept is not None and kept[0] == position:
            return kept[1]
        view = self._view()
        self._kept = position, view
        return view

    def _view(self) -> View:
        entries = dict(self._entries)
        node = entries["node"]
        kinds: dict[str, dict[str, Entry]] = {}
        bindings: list[dict[str, Any]] = []
        for kind, name, entry in _current(entries, node):
            if kind == "binding":
                bindings.append(entry.fields)
            else:
                kinds.setdefault(kind, {})[name] = entry

        def named(kind: str) -> dict[str, Entry]:
            return dict(sorted(kinds.get(kind, {}).items()))

        return View(
            node.fields,
            queues=named("queue"),
            connections=named("connection"),
            channels=named("channel"),
            exchanges=named("exchange"),
            bindings=bindings,
        )


def _of(failed: TidemillError) -> HttpError:
    """Return the answer for an error, with the status that its cause has."""
    cause = failed.__cause__
    if isinstance(cause, KafkaException) and not isinstance(failed, UnreachableError):
        return from_kafka(cause.args[0], f"topic {TOPIC}")
    return from_error(failed)


def _current(entries: Mapping[str, Entry], node: Entry) -> Iterator[tuple[str, str, Entry]]:
    """Yield kind, name and entry of what exists."""
    instance = node.fields.get("i")
    for key, entry in entries.items():
        kind, slash, name = key.partition("/")
        if slash and entry.fields.get("i") == instance and node.at_ms - entry.at_ms < _STALE_MS:
            if entry.rates and node.at_ms - entry.at_ms > _ROUND_MS:
                entry = Entry(entry.at_ms, entry.fields)
            yield kind, name, entry


def _rates(before: Entry | None, fields: Mapping[str, Any], at_ms: int) -> dict[str, float]:
    """Return the growth of the counters of a queue in a second."""
    if before is None or "published" not in fields or before.fields.get("i") != fields.get("i"):
        return {}
    seconds = (at_ms - before.at_ms) / 1000
    if seconds <= 0:
        return before.rates
    return {
        name: round(max(0.0, fields[name] - before.fields.get(name, 0)) / seconds, 1)
        for name in COUNTED
    }
