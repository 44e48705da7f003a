"""The errors of the sink's producers.

Must not know: sockets, Spark.
"""

from __future__ import annotations

from tidemill.errors import UnreachableError
from tidemill.kafka_client.producing.failures import TOO_LARGE
from tidemill.spark.errors import DeliveryError

ALL_OR_NONE = (
    "Readers of committed records see all rows of the task or none. A restart writes what is "
    "missing."
)
"""The hint of an error of a transaction."""


class NotAnsweredError(UnreachableError):
    """The brokers did not answer in time."""


class SinkFailures:
    """The errors of one sink (``ErrorFactory``)."""

    def not_accepted(self, records: int, topic: str, cause: str, code: int = 0) -> DeliveryError:
        """Return the error if records were rejected, or not acknowledged in time."""
        if code == TOO_LARGE and records > 1:
            cause += f" (a batch of {records} records: lower kafka.batch.size)"
        return DeliveryError(
            f"at least {records} records were not accepted, the first for topic {topic}: {cause}",
            hint="The batch is incomplete in the topic. A restart writes it again.",
        )

    def unsendable(self, topic: str, cause: str) -> DeliveryError:
        """Return the error if a row can't become a record of its topic."""
        return DeliveryError(f"can't send a record to topic {topic}: {cause}")

    def too_large(self, topic: str, size: int, cause: str) -> DeliveryError:
        """Return the error of a record of so many bytes, which the producer does not send."""
        return self.unsendable(topic, cause)

    def rejected(self, servers: str, cause: str) -> UnreachableError:
        """Return the error if waiting can't help: wrong credentials, or TLS does not match."""
        return UnreachableError(
            f"the brokers at {servers} rejected the connection: {cause}",
            hint="Check the options kafka.security.protocol, kafka.sasl.* and kafka.ssl.*.",
        )

    def refused(self, what: str, cause: str, code: int) -> DeliveryError:
        """Return the error if a broker answers with a permanent error."""
        return DeliveryError(f"could not {what}: {cause}", hint=ALL_OR_NONE)

    def not_answered(self, what: str, cause: str) -> NotAnsweredError:
        """Return the error if the brokers did not answer in time."""
        return NotAnsweredError(f"the brokers did not answer in time to {what}: {cause}")


SINK = SinkFailures()
