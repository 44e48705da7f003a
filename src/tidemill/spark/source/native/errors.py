"""Errors between the client and a broker, before they are worded for the user.

Must not know: Spark, ranges, plans.
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
        from confluent_kafka import KafkaError

        return KafkaError(self.code).str()


class OldFormatError(Exception):
    """The log contains message format v0 or v1, which this edition does not decode.

    Args:
        position: The offset from which it does.
    """

    def __init__(self, position: int) -> None:
        super().__init__(position)
        self.position = position


class DamagedRecordsError(Exception):
    """The stored records are damaged. The text names the batch and the position in it."""
