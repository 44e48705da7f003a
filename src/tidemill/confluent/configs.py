"""Says where the value of a config comes from. Must not know: how configs are asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from confluent_kafka.admin import ConfigEntry

_SOURCES = {
    1: "topic",
    2: "broker",
    3: "all brokers",
    4: "broker file",
    5: "default",
    6: "group",
}
"""Source: KIP-226."""


def config_source(entry: ConfigEntry) -> str:
    """Return the layer that a config's value comes from, in the words of the output."""
    source: Any = entry.source  # a number or an Enum, by confluent-kafka's version
    return _SOURCES.get(int(getattr(source, "value", source)), "unknown")


def is_set(entry: ConfigEntry) -> bool:
    """Return whether a config's value was chosen, and is not what every topic has."""
    source = config_source(entry)
    # Brokers set it for all brokers themselves, as Apache Kafka does since 4.1.
    always = (entry.name, entry.value, source) == ("min.insync.replicas", "1", "all brokers")
    return source != "default" and not always
