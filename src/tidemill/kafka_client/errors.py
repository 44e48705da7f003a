"""Errors between a client and a broker, before they are worded for the user.

Must not know: Spark, ranges, transactions.
"""

from __future__ import annotations


class ConnectionFailedError(Exception):
    """A connection can't be made or was lost. The same request may succeed a moment later."""


class ConnectionRejectedError(Exception):
    """The credentials or the TLS settings are wrong. A retry can't help."""


class BrokerError(Exception):
    """The broker answered with an error code.

    Args:
        code: The code of the Kafka protocol.
    """

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code

    @property
    def text(self) -> str:
        """The error in words, as librdkafka says it."""
        return text_of(self.code)


def text_of(code: int) -> str:
    """Return an error code in words, as librdkafka says it."""
    from confluent_kafka import KafkaError

    return KafkaError(code).str()
