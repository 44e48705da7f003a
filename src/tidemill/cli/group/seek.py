"""``tidemill group seek``: moves a group's offsets, to read records again or to skip."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

import typer

from tidemill.cli import output
from tidemill.cli.client import REQUEST_SECONDS, Cluster, TopicPartitionKey
from tidemill.cli.group.requests import (
    committed_offsets,
    is_dead,
    not_found,
    refuse_if_alive,
)
from tidemill.cli.group.shares import ShareGroup, find_group, known_starts, move_starts
from tidemill.cli.options import LOCAL, Brokers, DryRun, Json, OnlyPartition, Yes
from tidemill.cli.positions import parse, resolve, within
from tidemill.positions import FORMS

To = Annotated[str | None, typer.Option("--to", metavar="POSITION", help=f"New position: {FORMS}")]
Shift = Annotated[
    int | None,
    typer.Option("--shift", metavar="N", help="Move forward by N records, or back by -N."),
]
OnlyTopic = Annotated[
    list[str] | None,
    typer.Option(
        "--topic",
        metavar="TOPIC",
        help="Only this topic; default: all topics that the group has committed offsets for.",
    ),
]


def seek(
    group: Annotated[str, typer.Argument(metavar="GROUP", help="Id of the group.")],
    to: To = None,
    shift: Shift = None,
    topic: OnlyTopic = None,
    partition: OnlyPartition = None,
    yes: Yes = False,
    dry_run: DryRun = False,
    as_json: Json = False,
    brokers: Brokers = LOCAL,
) -> None:
    """Move a group's committed offsets, to replay or to skip. It must have no live members.

    Of a share group, this moves where it starts, and forgets what it has delivered.
    """
    if (to is None) == (shift is None):
        raise output.UsageError("use either --to or --shift")
    position = parse(to, "--to") if to is not None else None
    if partition and len(topic or ()) != 1:
        raise output.UsageError("--partition needs one --topic")
    cluster = Cluster.at(brokers)
    description = find_group(cluster, group)
    refuse_if_alive(description)
    shared = isinstance(description, ShareGroup)
    committed = (known_starts if shared else committed_offsets)(cluster, group)
    if not committed and is_dead(description) and not topic:
        error = not_found(group)
        error.hint = "To create a group, use --topic. List the groups: tidemill group list"
        raise error
    keys = _partitions(cluster, committed, topic, partition)
    if position is not None:
        new = resolve(cluster, keys, position)
    else:
        new = _shifted(cluster, keys, committed, shift or 0)
    rows = [(key, committed.get(key), new[key]) for key in keys]
    changes = {key: after for key, before, after in rows if before != after}
    asking = bool(changes) and not (dry_run or yes) and output.can_ask()
    if asking and not as_json:  # show the changes before the question
        _report(group, rows, dry_run=dry_run, as_json=False)
    if changes and not dry_run:
        output.confirm(f"Move {group} on {output.plural(len(changes), 'partition')}?", yes=yes)
        (move_starts if shared else _commit)(cluster, group, changes)
    if as_json or not asking:
        _report(group, rows, dry_run=dry_run, as_json=as_json)
    if not as_json:
        output.note("Nothing was changed (--dry-run)." if dry_run else f"Moved {group}.")


def _partitions(
    cluster: Cluster,
    committed: Mapping[TopicPartitionKey, int],
    topics: Sequence[str] | None,
    partitions: Sequence[int] | None,
) -> list[TopicPartitionKey]:
    """Return the partitions to move: those of the topics, or all with a committed offset."""
    if topics:
        return [key for topic in topics for key in cluster.partitions(topic, partitions)]
    there = cluster.topics()
    return sorted(key for key in committed if key[1] < there.get(key[0], 0))


def _shifted(
    cluster: Cluster,
    keys: Sequence[TopicPartitionKey],
    committed: Mapping[TopicPartitionKey, int],
    shift: int,
) -> dict[TopicPartitionKey, int]:
    """Return each committed offset moved by ``shift``, between start and end of its partition."""
    missing = [key for key in keys if key not in committed]
    if missing:
        topic, partition = missing[0]
        raise output.UsageError(
            f"--shift: the group has no committed offset for {topic} partition {partition}",
            hint="Set one with --to first.",
        )
    held = cluster.offsets(keys)
    return within({key: committed[key] + shift for key in keys}, held)


def _commit(cluster: Cluster, group: str, offsets: Mapping[TopicPartitionKey, int]) -> None:
    from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition

    request = ConsumerGroupTopicPartitions(
        group, [TopicPartition(*key, offset) for key, offset in offsets.items()]
    )

    def call() -> None:
        futures = cluster.admin.alter_consumer_group_offsets(
            [request], request_timeout=REQUEST_SECONDS
        )
        for answer in futures[group].result().topic_partitions:
            if answer.error is not None:
                raise KafkaException(answer.error)

    cluster.ask(f"group {group}", call)


def _report(
    group: str,
    rows: Sequence[tuple[TopicPartitionKey, int | None, int]],
    *,
    dry_run: bool,
    as_json: bool,
) -> None:
    if as_json:
        output.emit_json(
            {
                "group": group,
                "dry_run": dry_run,
                "partitions": [
                    {"topic": key[0], "partition": key[1], "before": before, "after": after}
                    for key, before, after in rows
                ],
            }
        )
        return
    output.emit_table(
        ["TOPIC", "PARTITION", "BEFORE", "AFTER", "SHIFT"],
        [
            [*key, before, after, None if before is None else f"{after - before:+d}"]
            for key, before, after in rows
        ],
    )
