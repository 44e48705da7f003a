"""librdkafka as the source and the sink use it: settings, errors, and a pool per process.

Must not know: Spark, Arrow, options' names.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar, cast

from confluent_kafka import KafkaError, KafkaException

from tidemill.errors import OptionError, UnreachableError
from tidemill.spark.options import noted

log = logging.getLogger("tidemill.spark")

RETRIABLE = frozenset(
    {
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.REPLICA_NOT_AVAILABLE,
        KafkaError.KAFKA_STORAGE_ERROR,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.NETWORK_EXCEPTION,
        KafkaError._NOENT,  # no leader known for a partition
        KafkaError._TRANSPORT,
        KafkaError._TIMED_OUT,
        KafkaError._ALL_BROKERS_DOWN,
    }
)
"""Codes after which the same question may be answered a moment later."""

_HOPELESS = frozenset(
    {
        KafkaError._AUTHENTICATION,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.UNSUPPORTED_SASL_MECHANISM,
        KafkaError._SSL,
    }
)

# A client whose error is fatal raises a bare KafkaError, which is no Exception but can be caught,
# or a SystemError, where its callbacks meet one.
RAISED = cast("tuple[type[BaseException], ...]", (KafkaException, KafkaError, SystemError))
"""What a call to librdkafka may raise."""

Client = TypeVar("Client")


class LastError:
    """Remembers what librdkafka last complained of, to be named when a wait ends in vain.

    librdkafka goes on trying for ever and tells of it only through this callback.
    """

    def __init__(self) -> None:
        self.error: KafkaError | None = None

    def __call__(self, error: KafkaError) -> None:
        self.error = error

    @property
    def text(self) -> str:
        """What went wrong last, or an empty string."""
        return "" if self.error is None else f": {self.error.str()}"

    def raise_if_hopeless(self, servers: str) -> None:
        """Raise where waiting can't help: wrong credentials, no common TLS.

        Raises:
            UnreachableError: such an error was the last one.
        """
        if self.error is not None and self.error.code() in _HOPELESS:
            raise noted(
                UnreachableError(
                    f"the brokers at {servers} refuse the connection{self.text}",
                    hint="Check the options kafka.security.protocol, kafka.sasl.* and kafka.ssl.*.",
                )
            )


def make_client(
    factory: Callable[[dict[str, Any]], Client], settings: Mapping[str, Any], last: LastError
) -> Client:
    """Make a librdkafka client; complaints go to ``last`` instead of stderr.

    Raises:
        OptionError: librdkafka does not know a setting or its value.
    """
    # librdkafka prints a line for each failed connection attempt, 20 a second. What matters comes
    # through error_cb, and reaches the user in an exception.
    config: dict[str, Any] = {"log_level": "2", **settings, "error_cb": last}
    try:
        return factory(config)
    except KafkaException as error:
        reason = error.args[0].str() if error.args else str(error)
        raise noted(
            OptionError(
                f"librdkafka refuses an option: {reason}",
                hint="Options kafka.* are librdkafka's settings (its CONFIGURATION.md).",
            )
        ) from error


def unreachable(settings: Mapping[str, Any], what: str, last: LastError) -> UnreachableError:
    """The error for an answer that did not come."""
    servers = settings.get("bootstrap.servers", "")
    error = UnreachableError(
        f"no answer from the brokers at {servers} to {what}{last.text}",
        hint="Check kafka.bootstrap.servers, and that the broker runs.",
    )
    noted(error)
    return error


class ClientPool(Generic[Client]):
    """Idle clients of one process, by their settings.

    Spark keeps its Python workers between tasks. A client that is kept with them spares each task
    the connections and the look-up of leaders: more than the reading, in small micro-batches. Not
    thread-safe: a worker runs one task at a time.
    """

    def __init__(self, close: Callable[[Client], None], *, limit: int = 4) -> None:
        self._close = close
        self._limit = limit
        self._idle: dict[tuple[tuple[str, str], ...], Client] = {}
        self._pid = os.getpid()

    def take(self, settings: Mapping[str, str], make: Callable[[], Client]) -> Client:
        """An idle client of these settings, or a new one. It is the caller's until ``give``."""
        if self._pid != os.getpid():  # librdkafka's threads do not survive a fork
            self._idle, self._pid = {}, os.getpid()
        return self._idle.pop(_key(settings), None) or make()

    def give(self, settings: Mapping[str, str], client: Client) -> None:
        """Return a client that is fit for further use."""
        key = _key(settings)
        if key in self._idle:
            self._close(client)
            return
        self._idle[key] = client
        while len(self._idle) > self._limit:
            self._close(self._idle.pop(next(iter(self._idle))))

    def drop(self, client: Client) -> None:
        """End a client that may be in an odd state."""
        with contextlib.suppress(*RAISED, RuntimeError):
            self._close(client)

    def clear(self) -> None:
        """Close all idle clients."""
        while self._idle:
            self._close(self._idle.popitem()[1])


def _key(settings: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(settings.items()))
