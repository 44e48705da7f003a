"""Trees of the requests that many tests send, and what is looked for in the answers."""

from __future__ import annotations

from typing import Any

Tree = dict[str, Any]
ALL_TOPICS: Tree = {"topics": None}
SOFTWARE = {"client_software_name": "soft", "client_software_version": "1.2"}


def produce(topic: str, *batches: bytes | bytearray, acks: int = -1) -> Tree:
    """Write a batch to partition 0, and others to those after it."""
    partitions = [{"index": index, "records": bytes(each)} for index, each in enumerate(batches)]
    topics = [{"name": topic, "partition_data": partitions}]
    return {"acks": acks, "timeout": 30_000, "topic_data": topics}


def written(answer: Tree) -> list[tuple[int, int]]:
    """Return error code and first offset of each partition of a Produce answer."""
    return [
        (part["error_code"], part["base_offset"])
        for topic in answer["responses"]
        for part in topic["partition_responses"]
    ]


def fetch(
    topic: str,
    offset: int = 0,
    *,
    partition: int = 0,
    max_wait: int = 0,
    max_bytes: int = 10_000_000,
) -> Tree:
    """Read a partition, without a session."""
    part = {"partition": partition, "fetch_offset": offset, "partition_max_bytes": max_bytes}
    topics = [{"topic": topic, "partitions": [part]}]
    return {"max_wait": max_wait, "min_bytes": 1, "session_epoch": -1, "topics": topics}


def fetched(answer: Tree) -> bytes:
    """Return the records of the only partition of a Fetch answer, which has no error."""
    ((part,),) = (topic["partitions"] for topic in answer["responses"])
    assert part["error_code"] == 0
    return bytes(part["records"] or b"")


def create_topics(*names: str, partitions: int = 1, **configs: str) -> Tree:
    """Create topics; names of configs have _ for a dot."""
    values = [{"name": key.replace("_", "."), "value": configs[key]} for key in configs]
    fields = {"num_partitions": partitions, "replication_factor": 1, "configs": values}
    return {"topics": [{"name": name} | fields for name in names], "timeout": 10_000}


def picked(items: list[Tree], *names: str) -> list[tuple[Any, ...]]:
    """Return these fields of each tree in a list."""
    return [tuple(each[name] for name in names) for each in items]
