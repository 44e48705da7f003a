"""``tidemill transaction find``: finds the open transactions that hold readers back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from tidemill.cli import output
from tidemill.cli.broker_requests import requests_to
from tidemill.cli.client import Cluster, TopicPartitionKey, is_internal
from tidemill.cli.group.lag import stable_offsets
from tidemill.cli.options import LOCAL, Brokers, Json, OnlyPartition
from tidemill.kafka_client.admin.open_writes import open_writes


def find(
    topics: Annotated[
        list[str] | None,
        typer.Argument(metavar="TOPIC", help="Topics to look at; default: all but internal ones."),
    ] = None,
    partition: OnlyPartition = None,
    as_json: Json = False,
    brokers: Brokers = LOCAL,
) -> None:
    """Find the open transactions that hold readers of topics back.

    Readers with read_committed can read up to STABLE, the first offset of the oldest open
    transaction. A transaction that no coordinator knows is hanging, and ends only with
    "transaction abort".
    """
    if partition and len(topics or ()) != 1:
        raise output.UsageError("--partition needs one TOPIC")
    cluster = Cluster.at(brokers)
    with requests_to(cluster) as requests:
        found = open_writes(requests, _partitions(cluster, topics, partition))
    keys = sorted({each.key for each in found})
    stable = stable_offsets(cluster, keys)
    held = cluster.offsets(keys)
    rows = [
        {
            "topic": each.topic,
            "partition": each.partition,
            "stable_offset": stable[each.key],
            "end_offset": held[each.key].end,
            "transactional_id": each.owner.transactional_id if each.owner else None,
            "state": each.owner.state if each.owner else "hanging",
            "producer_id": each.producer_id,
            "producer_epoch": each.producer_epoch,
            "first_offset": each.first_offset,
            "last_write_ms": each.last_write_ms,
            "idle_ms": each.idle_ms,
        }
        for each in found
    ]
    if as_json:
        output.emit_json(rows)
    else:
        _emit_found(rows)
    if not rows:
        output.note("No transaction is open: readers with read_committed can read to the end.")


def _emit_found(rows: Sequence[dict[str, Any]]) -> None:
    headers = ["TOPIC", "PARTITION", "STABLE", "END", "TRANSACTION", "STATE", "PRODUCER", "FIRST"]
    names = ("topic", "partition", "stable_offset", "end_offset", "transactional_id", "state")
    output.emit_table(
        [*headers, "IDLE"],
        [
            [
                *(row[name] for name in (*names, "producer_id", "first_offset")),
                output.duration_text(row["idle_ms"]),
            ]
            for row in rows
        ],
    )
    hanging = next((row for row in rows if row["state"] == "hanging"), None)
    if hanging:
        output.note(
            f"End a hanging one: tidemill transaction abort --topic {hanging['topic']} "
            f"--partition {hanging['partition']} --producer-id {hanging['producer_id']}"
        )


def _partitions(
    cluster: Cluster, topics: Sequence[str] | None, partitions: Sequence[int] | None
) -> list[TopicPartitionKey]:
    if topics:
        return [key for topic in topics for key in cluster.partitions(topic, partitions)]
    there = cluster.topics().items()
    return [(name, p) for name, count in there if not is_internal(name) for p in range(count)]
