"""Sizes of partitions on disk: DescribeLogDirs, which librdkafka does not offer.

One request per broker, which every Kafka since 1.0 and tidemill answer (KIP-113). Where the
cluster wants SASL, or does not answer, sizes stay unknown.
"""

from __future__ import annotations

from tidemill.cli import output
from tidemill.cli.client import REQUEST_SECONDS, Cluster
from tidemill.cli.wire import Address, Wire, check
from tidemill.errors import TidemillError

DESCRIBE_LOG_DIRS = 35
VERSIONS = range(1, 5)


def partition_sizes(cluster: Cluster, topic: str) -> dict[int, int]:
    """Bytes on disk by partition (the largest replica's); empty where they can't be known."""
    metadata = cluster.ask("brokers", lambda: cluster.admin.list_topics(timeout=REQUEST_SECONDS))
    partitions = sorted(metadata.topics[topic].partitions) if topic in metadata.topics else []
    sizes: dict[int, int] = {}
    try:
        with Wire(cluster) as wire:
            for broker in wire.brokers().values():
                for partition, size in _ask(wire, broker, topic, partitions).items():
                    sizes[partition] = max(size, sizes.get(partition, 0))
    except TidemillError as error:
        output.note(f"Sizes are not known: {error}.")
        return {}
    return sizes


def _ask(wire: Wire, broker: Address, topic: str, partitions: list[int]) -> dict[int, int]:
    """One broker's sizes.

    Raises:
        TidemillError: it can't be reached, or refuses.
    """
    request = {"topics": [{"topic": topic, "partitions": partitions}]}
    answer = wire.ask(broker, DESCRIBE_LOG_DIRS, VERSIONS, request)
    check(answer.get("error_code", 0), "log dirs")
    sizes: dict[int, int] = {}
    for folder in answer["results"]:
        check(folder["error_code"], f"log dir {folder['log_dir']}")
        for found in folder["topics"]:
            for partition in found["partitions"]:
                if found["name"] == topic and not partition["is_future_key"]:
                    sizes[partition["partition_index"]] = partition["partition_size"]
    return sizes
