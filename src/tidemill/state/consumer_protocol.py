"""The topics inside a consumer's subscription metadata.

Source: Kafka's ConsumerProtocolSubscription: version int16, topics [string], user data bytes, and
from version 1 on more that is not needed here. The bytes are the clients' own business: what can't
be read is "unknown", never an error.
"""

from __future__ import annotations

from tidemill.errors import InvalidRecordError
from tidemill.state.primitives import Reader

CONSUMER_PROTOCOL_TYPE = "consumer"
"""Protocol type of ordinary consumers; others (``connect``) embed other bytes."""


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """Topics of one member's subscription, or None where the bytes are not a subscription."""
    reader = Reader(metadata)
    try:
        if reader.i16() < 0:
            return None
        count = reader.count(compact=False)
        if count < 0:
            return None
        return frozenset(reader.string() for _ in range(count))
    except InvalidRecordError:
        return None
