"""Asks for the configs of a topic. This must not print."""

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
