"""Lets librdkafka's clients begin without its pauses of half a second.

A new client asks for a producer id, or for the offset of the beginning or the end, before it is
connected. It asks again only after 500 ms, whatever its settings. A client that has had an answer
is connected, and does not wait. Knows confluent-kafka only.
"""

from __future__ import annotations

from typing import TypeVar

from confluent_kafka import Consumer, Producer

TIMEOUT_S = 90.0
AT_END_SOON = {"fetch.wait.max.ms": 10}
"""Settings of a consumer that waits for the end of a partition: the broker holds the answer to a
fetch at the end back for this long, 500 ms by default."""

Client = TypeVar("Client", Consumer, Producer)


def connected(client: Client) -> Client:
    """Return a client that asks for offsets without a pause."""
    client.list_topics(timeout=TIMEOUT_S)
    return client


def ready_for_id(producer: Producer) -> Producer:
    """Return an idempotent or transactional producer that asks for its id without a pause.

    The first answer comes over a connection to the bootstrap address, which librdkafka then closes.
    The second one comes over a connection to the broker itself.
    """
    return connected(connected(producer))
