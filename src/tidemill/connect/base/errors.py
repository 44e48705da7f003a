"""Errors of the Kafka side of connectors."""

from __future__ import annotations

from tidemill.errors import TidemillError


class DeliveryError(TidemillError):
    """A Kafka transaction failed and was aborted. The connector starts again from its position."""


class ProducerFencedError(TidemillError):
    """Another producer with the same transactional id has started. This one must stop."""


class RecordTooLargeError(TidemillError):
    """A record is larger than the topic or the producer allows."""
