"""Asks brokers for the sizes of partitions on disk: DescribeLogDirs, which librdkafka lacks.

It sends one request per broker. tidemill and each Kafka since 1.0 answer it (KIP-113). If a
cluster needs Kerberos or does not answer, the sizes are unknown.
"""

from __future__ import annotations

from tidemill.cli import output
from tidemill.cli.broker_requests import BrokerRequests, check_error_code
from tidemill.cli.client import REQUEST_SECONDS, Cluster
from tidemill.errors import TidemillError
from tidemill.kafka_client.settings import Address

DESCRIBE_LOG_DIRS = 35
VERSIONS = range(1, 5)


def partition_sizes(cluster: Cluster, topic: str) -> dict[int, int]:
    """Return the bytes on disk by partition (of the largest replica); empty if unknown."""
    metadata = cluster.ask("brokers", lambda: cluster.admin.list_topics(timeout=REQUEST_SECONDS))
    partitions = sorted(metadata.topics[topic].partitions) if topic in metadata.topics else []
    sizes: dict[int, int] = {}
    try:
        with BrokerRequests(cluster) as requests:
            for broker in requests.brokers().values():
                for partition, size in _ask(requests, broker, topic, partitions).items():
                    sizes[partition] = max(size, sizes.get(partition, 0))
    except TidemillError as error:
        output.note(f"The sizes are unknown: {error}.")
        return {}
    return sizes


def _ask(
    requests: BrokerRequests, broker: Address, topic: str, partitions: list[int]
) -> dict[int, int]:
    """Return the sizes on one broker."""
    request = {"topics": [{"topic": topic, "partitions": partitions}]}
    answer = requests.ask(broker, DESCRIBE_LOG_DIRS, VERSIONS, request)
    check_error_code(answer.get("error_code", 0), "log dirs")
    sizes: dict[int, int] = {}
    for folder in answer["results"]:
        check_error_code(folder["error_code"], f"log dir {folder['log_dir']}")
        for found in folder["topics"]:
            for partition in found["partitions"]:
                if found["name"] == topic and not partition["is_future_key"]:
                    sizes[partition["partition_index"]] = partition["partition_size"]
    return sizes
