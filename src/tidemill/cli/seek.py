"""``tidemill group seek``: move a group's committed offsets, to read again or to skip."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

import typer

from tidemill.cli import output
from tidemill.cli.client import (
    BOOTSTRAP_DEFAULT,
    REQUEST_SECONDS,
    Bootstrap,
    Cluster,
    DryRun,
    Json,
    Property,
    TopicPartitionKey,
    Yes,
)
from tidemill.cli.groups import (
    committed_offsets,
    describe_group,
    is_dead,
    not_found,
    refuse_if_alive,
)
from tidemill.cli.positions import HELP, clamp, parse, resolve


def seek(
    group: Annotated[str, typer.Argument(metavar="GROUP", help="Id of the group.")],
    to: Annotated[
        str | None, typer.Option("--to", metavar="POSITION", help=f"Where to: {HELP}")
    ] = None,
    shift: Annotated[
        int | None,
        typer.Option("--shift", metavar="N", help="Forward by N records, or back by -N."),
    ] = None,
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic",
            metavar="TOPIC",
            help="Only this topic; default: all the group has committed on.",
        ),
    ] = None,
    partition: Annotated[
        list[int] | None,
        typer.Option("--partition", metavar="N", min=0, help="Only this partition."),
    ] = None,
    yes: Yes = False,
    dry_run: DryRun = False,
    as_json: Json = False,
    servers: Bootstrap = BOOTSTRAP_DEFAULT,
    properties: Property = None,
) -> None:
    """Move a group, to replay or to skip. The group must have no live members."""
    if (to is None) == (shift is None):
        raise output.UsageError("give either --to or --shift")
    position = parse(to, "--to") if to is not None else None
    if partition and len(topic or ()) != 1:
        raise output.UsageError("--partition needs one --topic")
    cluster = Cluster.at(servers, properties)
    description = describe_group(cluster, group)
    refuse_if_alive(description)
    committed = committed_offsets(cluster, group)
    if not committed and is_dead(description) and not topic:
        error = not_found(group)
        error.hint = (
            "To place a new group, name a --topic. Those that there are: tidemill group list"
        )
        raise error
    keys = _partitions(cluster, committed, topic, partition)
    if position is not None:
        new = resolve(cluster, keys, position)
    else:
        new = _shifted(cluster, keys, committed, shift or 0)
    rows = [(key, committed.get(key), new[key]) for key in keys]
    changes = {key: after for key, before, after in rows if before != after}
    asking = bool(changes) and not (dry_run or yes) and output.can_ask()
    if asking and not as_json:  # nobody says yes to what they have not seen
        _report(group, rows, dry_run=dry_run, as_json=False)
    if changes and not dry_run:
        output.confirm(f"Move {group} on {output.plural(len(changes), 'partition')}?", yes=yes)
        _commit(cluster, group, changes)
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
    """What to move: all partitions of the topics named, or all that the group has committed on."""
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
    """Each committed offset moved by ``shift``, within what the partition holds."""
    missing = [key for key in keys if key not in committed]
    if missing:
        topic, partition = missing[0]
        raise output.UsageError(
            f"--shift: the group has committed nothing on {topic} partition {partition}",
            hint="Set it with --to first.",
        )
    held = cluster.offsets(keys)
    return {key: clamp(committed[key] + shift, held[key].start, held[key].end) for key in keys}


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
