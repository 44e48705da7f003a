"""Asks leaders for offsets of many partitions, and brokers for sizes on disk.

Sources: KIP-79 (offsets by time), KIP-113 (sizes).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from tidemill.kafka_client.admin.requests import (
    BrokerRequests,
    Place,
    Report,
    by_topic,
    check_error_code,
    raise_refusal,
)
from tidemill.kafka_client.settings import Address
from tidemill.kafka_codec.declared import LIST_OFFSETS

LATEST, EARLIEST = -1, -2
DESCRIBE_LOG_DIRS = 35


def offsets(
    requests: BrokerRequests,
    leader: Address,
    places: Iterable[Place],
    time: int,
    *,
    committed: bool = False,
    report: Report = raise_refusal,
) -> dict[Place, int]:
    """Return an offset of each partition that a broker leads.

    Args:
        time: ``LATEST``, ``EARLIEST``, or milliseconds since the epoch.
        committed: Whether the latest one is the last stable offset.
        report: Gets the errors of partitions, which are left out.
    """
    topics = [
        {
            "name": name,
            "partitions": [{"partition_index": each, "timestamp": time} for each in numbers],
        }
        for name, numbers in by_topic(places).items()
    ]
    if not topics:
        return {}
    tree = {"replica_id": -1, "isolation_level": int(committed), "topics": topics}
    found: dict[Place, int] = {}
    for topic in requests.ask(leader, LIST_OFFSETS, (2, 3), tree).topics:
        for each in topic.partitions:
            subject = f"{topic.name} partition {each.partition_index}"
            if check_error_code(each.error_code, subject, report=report):
                found[topic.name, each.partition_index] = each.offset
    return found


def sizes_on_disk(
    requests: BrokerRequests,
    broker: Address,
    places: Collection[Place] | None = None,
    *,
    report: Report = raise_refusal,
) -> dict[Place, int]:
    """Return the bytes of partitions on a broker's disks.

    Args:
        places: The partitions; None for all.
        report: Gets the errors of log folders, which are left out.
    """
    wanted = None if places is None else by_topic(places)
    topics = wanted and [{"topic": name, "partitions": each} for name, each in wanted.items()]
    answer = requests.ask(broker, DESCRIBE_LOG_DIRS, (1, 4), {"topics": topics})
    check_error_code(getattr(answer, "error_code", 0), "log dirs", report=report)
    found: dict[Place, int] = {}
    for folder in answer.results:
        check_error_code(folder.error_code, f"log dir {folder.log_dir}", report=report)
        for topic in folder.topics:
            for each in topic.partitions:
                if not each.is_future_key:
                    place = topic.name, each.partition_index
                    found[place] = max(found.get(place, 0), each.partition_size)
    return found
