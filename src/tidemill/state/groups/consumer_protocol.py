"""Reads the topics in a consumer's subscription metadata.

The metadata belongs to the clients. If it can't be read, the topics are unknown, which is not an
error.

Source: Kafka's ConsumerProtocolSubscription: version int16, topics [string], user data bytes, and
since version 1 more fields, which are not needed here.
"""

from __future__ import annotations

from tidemill.log.errors import InvalidRecordError
from tidemill.state.primitives import Reader

CONSUMER_PROTOCOL_TYPE = "consumer"
"""The protocol type of ordinary consumers. Other types (``connect``) have other metadata."""


MAX_TOPICS = 20_000
"""Topics of a subscription. The topics of a larger one count as unknown."""


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """Return the topics of a member's subscription.

    Returns:
        None if the bytes are not a subscription, or if it has more than ``MAX_TOPICS`` topics.
    """
    reader = Reader(metadata)
    try:
        if reader.i16() < 0:
            return None
        count = reader.count(compact=False)
        if not 0 <= count <= MAX_TOPICS:
            return None
        return frozenset(reader.string() for _ in range(count))
    except InvalidRecordError:
        return None
