"""Says what the errors of librdkafka mean. Must not know: how a user reads them."""

from __future__ import annotations

from typing import cast

from confluent_kafka import KafkaError, KafkaException

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
"""Codes of temporary errors: the same request may succeed a moment later."""

_PERMANENT = frozenset(
    {
        KafkaError._AUTHENTICATION,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.UNSUPPORTED_SASL_MECHANISM,
        KafkaError._SSL,
    }
)

# After a fatal error a client raises a bare KafkaError, which can be caught but does not derive
# from Exception. If the error occurs in a callback, it raises a SystemError.
RAISED = cast("tuple[type[BaseException], ...]", (KafkaException, KafkaError, SystemError))
"""Types that a call to librdkafka may raise."""
FAILURES: tuple[type[BaseException], ...] = (Exception, *RAISED)
"""Types that a thread catches whose end would be noticed by no caller."""


class LastError:
    """Keeps the last error of a client, so that a timeout can name its cause.

    librdkafka retries forever and reports errors only to this callback.
    """

    def __init__(self) -> None:
        self.error: KafkaError | None = None

    def __call__(self, error: KafkaError) -> None:
        self.error = error

    @property
    def text(self) -> str:
        """The last error as the end of a sentence, or an empty string."""
        return "" if self.error is None else f": {self.error.str()}"

    @property
    def is_permanent(self) -> bool:
        """Whether waiting can't help: the credentials are wrong, or TLS does not match."""
        return self.error is not None and self.error.code() in _PERMANENT


def error_in(raised: BaseException | KafkaError) -> KafkaError | None:
    """Return librdkafka's error in what a call has raised; None if there is none."""
    if isinstance(raised, KafkaError):
        return raised
    found = raised.args[0] if raised.args else None
    return found if isinstance(found, KafkaError) else None
