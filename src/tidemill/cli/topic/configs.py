"""Asks for the configs of a topic, and says where each value comes from. This must not print."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidemill.cli.client import REQUEST_SECONDS, Cluster

if TYPE_CHECKING:
    from confluent_kafka.admin import ConfigEntry

ALL_CONFIGS = "See all configs: tidemill topic describe {} --all"


def topic_configs(cluster: Cluster, name: str) -> list[ConfigEntry]:
    """Return the configs of a topic, sorted by name."""
    from confluent_kafka.admin import ConfigResource, ResourceType

    def call() -> Any:
        resource = ConfigResource(ResourceType.TOPIC, name)
        futures = cluster.admin.describe_configs([resource], request_timeout=REQUEST_SECONDS)
        return futures[resource].result()

    return sorted(cluster.ask(f"topic {name}", call).values(), key=lambda entry: str(entry.name))


def config_source(entry: ConfigEntry) -> str:
    """Return the layer that a config's value comes from, in the words of the output."""
    return {
        1: "topic",
        2: "broker",
        3: "all brokers",
        4: "broker file",
        5: "default",
        6: "group",
    }.get(_number(entry.source), "unknown")


def is_set(entry: ConfigEntry) -> bool:
    """Return whether a config's value was chosen, and is not what every topic has."""
    source = config_source(entry)
    # Brokers set it for all brokers themselves, as Apache Kafka does since 4.1.
    always = (entry.name, entry.value, source) == ("min.insync.replicas", "1", "all brokers")
    return source != "default" and not always


def _number(source: Any) -> int:
    return int(getattr(source, "value", source))
