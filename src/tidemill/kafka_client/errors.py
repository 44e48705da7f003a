"""Errors between a client and a broker, before they are worded for the user.

Must not know: Spark, ranges, transactions.
"""

from __future__ import annotations

from tidemill.errors import SettingsError, TidemillError
from tidemill.kafka_codec.declared import api_name


class ConnectionFailedError(Exception):
    """A connection can't be made or was lost. The same request may succeed a moment later."""


class ConnectionRejectedError(Exception):
    """The credentials or the TLS settings are wrong. A retry can't help."""


class TlsRejectedError(ConnectionRejectedError):
    """The TLS handshake failed, for example because the certificate is not valid here."""


class VersionNotSupportedError(ConnectionFailedError):
    """The broker is too old, or too new, for a request."""

    def __init__(self, broker: str, api: int, least: int, most: int) -> None:
        super().__init__(
            f"{broker}: the broker's {api_name(api)} versions {least} to {most} are not supported"
        )
        self.broker = broker
        self.api = api


class RequestNotSupportedError(TidemillError):
    """The broker does not have a request, or has it in other versions only."""


class RefusedError(TidemillError):
    """The broker answers a request with an error code.

    Attributes:
        code: Kafka's number. Commands make an exit code of it, and the gateway a status.
        reason: The broker's words, or the name of the code, without what it is about.
    """

    def __init__(self, code: int, subject: str, reason: str, *, hint: str | None = None) -> None:
        super().__init__(f"{subject}: {reason}", hint=hint)
        self.code = code
        self.reason = reason


class UnsupportedSettingError(SettingsError):
    """librdkafka knows this setting, and our client does not. The user takes another one."""


class BrokerError(Exception):
    """The broker answered with an error code."""

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
