"""Creates and pools librdkafka clients for sources, sinks and readers, and translates their errors.

Must not know: Spark, Arrow, options' names.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from confluent_kafka import KafkaException

from tidemill.confluent.errors import RAISED, LastError
from tidemill.errors import OptionError, UnreachableError
from tidemill.kafka_client.who_answers import explain

_UNUSED_S = 60.0
"""A client that was idle for so long makes space for another one."""

Client = TypeVar("Client")


def raise_if_permanent(last: LastError, servers: str) -> None:
    """Raise an error if waiting can't help: wrong credentials, or TLS does not match."""
    if last.is_permanent:
        raise UnreachableError(
            f"the brokers at {servers} rejected the connection{last.text}",
            hint="Check the options kafka.security.protocol, kafka.sasl.* and kafka.ssl.*.",
        )


def make_client(
    factory: Callable[[dict[str, Any]], Client], settings: Mapping[str, Any], last: LastError
) -> Client:
    """Create a librdkafka client that reports errors to ``last`` instead of stderr.

    Raises:
        OptionError: librdkafka does not know a setting or its value.
    """
    # librdkafka prints a line for each failed connection attempt, 20 per second. Errors come
    # through error_cb as well, and reach the user in an exception.
    config: dict[str, Any] = {"log_level": "2", **settings, "error_cb": last}
    try:
        return factory(config)
    except (KafkaException, TypeError, ValueError) as error:  # also a text instead of a function
        is_own = isinstance(error, KafkaException) and error.args
        reason = error.args[0].str() if is_own else str(error)
        raise OptionError(
            f"librdkafka rejects an option: {reason}",
            hint="Options kafka.* are librdkafka's settings (its CONFIGURATION.md).",
        ) from error


def unreachable(settings: Mapping[str, Any], what: str, last: LastError) -> UnreachableError:
    """Return the error for a request without a response."""
    servers = settings.get("bootstrap.servers", "")
    found = explain(str(servers), {k: str(v) for k, v in settings.items()}, "kafka.")
    if found is not None:
        text, hint = found
        return UnreachableError(f"can't {what}: {text}", hint=hint)
    return UnreachableError(
        f"no answer from the brokers at {servers} to {what}{last.text}",
        hint="Check kafka.bootstrap.servers, and that the broker runs.",
    )


class ClientPool(Generic[Client]):
    """The idle clients of this process, by their settings.

    Spark keeps its Python workers between tasks. A pooled client saves each task the connections
    and the look-up of leaders, which in small micro-batches take longer than reading. Threads may
    share the pool: a client that was taken belongs to one of them.

    A full pool keeps the clients that it has: tasks come in turn, so if the oldest one made space,
    each would be closed just before it is needed. A client makes space when it was idle for long.

    Args:
        limit: Most idle clients to keep.
    """

    def __init__(
        self,
        close: Callable[[Client], None],
        *,
        limit: int = 4,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._close = close
        self._limit = limit
        self._clock = clock
        self._idle: dict[tuple[tuple[str, str], ...], tuple[Client, float]] = {}
        self._pid = os.getpid()
        self._lock = threading.RLock()

    def take(self, settings: Mapping[str, str], make: Callable[[], Client]) -> Client:
        """Return an idle client with these settings, or a new one. Return it with ``give``."""
        if self._pid != os.getpid():  # librdkafka's threads do not survive a fork
            self._idle, self._pid, self._lock = {}, os.getpid(), threading.RLock()
        with self._lock:
            pooled = self._idle.pop(_key(settings), None)
        return make() if pooled is None else pooled[0]

    def give(self, settings: Mapping[str, str], client: Client) -> None:
        """Take back a client that can be used again."""
        key, now = _key(settings), self._clock()
        unwanted = []
        with self._lock:
            if len(self._idle) >= self._limit:
                oldest = next(iter(self._idle))
                if now - self._idle[oldest][1] > _UNUSED_S:
                    unwanted.append(self._idle.pop(oldest)[0])
            if key in self._idle or len(self._idle) >= self._limit:
                unwanted.append(client)
            else:
                self._idle[key] = client, now
        for each in unwanted:
            self.drop(each)

    def drop(self, client: Client) -> None:
        """Close a client that may be in an invalid state."""
        with contextlib.suppress(*RAISED, RuntimeError):
            self._close(client)

    def clear(self) -> None:
        """Close all idle clients."""
        with self._lock:
            idle, self._idle = self._idle, {}
        for client, _ in idle.values():
            self._close(client)


def _key(settings: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(settings.items()))
