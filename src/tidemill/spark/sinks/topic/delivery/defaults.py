"""The settings of producers. Must not know: clients, Spark, shares."""

from __future__ import annotations

from collections.abc import Mapping

DEFAULT_SETTINGS: Mapping[str, str] = {
    "acks": "all",
    "enable.idempotence": "true",
    # Larger batches while rows arrive. The flush at the end of a task does not wait for it.
    "linger.ms": "50",
    # The Java client's partitioner: a key is in the same partition for all clients.
    "partitioner": "murmur2_random",
    # A record without acknowledgement after this time fails its task, as with the Java client.
    "message.timeout.ms": "120000",
}
"""Settings of librdkafka that the user can override."""
_ALIASES = {
    "request.required.acks": "acks",
    "delivery.timeout.ms": "message.timeout.ms",
    "queue.buffering.max.ms": "linger.ms",
}


def producer_settings(kafka: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of a producer: the user's, then the defaults.

    Settings of ``acks`` other than all switch idempotence off.

    Args:
        kafka: The user's settings of librdkafka.
    """
    given = {_ALIASES.get(key, key): value for key, value in kafka.items()}
    if given.get("acks", "all") not in ("all", "-1"):
        given.setdefault("enable.idempotence", "false")
    return {**DEFAULT_SETTINGS, **given}
