"""Asks brokers for the sizes of partitions on disk, which librdkafka can't ask.

tidemill and each Kafka since 1.0 answer it (KIP-113). If a cluster needs Kerberos or does not
answer, the sizes are unknown.
"""

from __future__ import annotations

from tidemill.cli import output
from tidemill.cli.broker_requests import requests_to
from tidemill.cli.client import Cluster
from tidemill.errors import TidemillError
from tidemill.kafka_client.admin.partitions import sizes_on_disk
from tidemill.kafka_client.admin.requests import addresses_in


def partition_sizes(cluster: Cluster, topic: str) -> dict[int, int]:
    """Return the bytes on disk by partition (of the largest replica); empty if unknown."""
    sizes: dict[int, int] = {}
    try:
        with requests_to(cluster) as requests:
            metadata = requests.metadata([topic])
            parts = [each for about in metadata.topics for each in about.partitions]
            places = [(topic, each.partition_index) for each in parts]
            for broker in addresses_in(metadata).values():
                found = sizes_on_disk(requests, broker, places)
                for (_, partition), size in found.items():
                    sizes[partition] = max(size, sizes.get(partition, 0))
    except TidemillError as error:
        output.note(f"The sizes are unknown: {error}.")
        return {}
    return sizes
