"""Check whether a topic has a partition. Knows the catalog only."""

from __future__ import annotations

from tidemill.errors import TidemillError, UnknownTopicOrPartitionError
from tidemill.state.catalog.catalog import Catalog


def check_partition(catalog: Catalog, topic: str, partition: int) -> None:
    """Return if the partition exists.

    Raises:
        UnknownTopicOrPartitionError: the topic or the partition does not exist.
    """
    if not 0 <= partition < catalog.topic(topic).partitions:
        raise UnknownTopicOrPartitionError(f"topic {topic!r} has no partition {partition}")


def missing_partition(catalog: Catalog, topic: str, partition: int) -> TidemillError | None:
    """Return an error if the partition does not exist, else None."""
    try:
        check_partition(catalog, topic, partition)
    except UnknownTopicOrPartitionError as error:
        return error.with_traceback(None)  # many are kept until all are answered
    return None
