"""``tidemill group``: list, describe and delete groups. ``seek`` has its own module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from tidemill.cli import output
from tidemill.cli.client import REQUEST_SECONDS, Cluster, TopicPartitionKey
from tidemill.cli.group.epochs import group_epochs
from tidemill.cli.group.forget import forget, read_partitions
from tidemill.cli.group.lag import PartitionLag, note_held_back, partition_lags
from tidemill.cli.group.requests import (
    Epochs,
    committed_offsets,
    describe_groups,
    is_consumer_group,
    is_dead,
    member_dict,
    not_found,
    owners,
    refuse_if_alive,
    state_text,
)
from tidemill.cli.group.seek import seek
from tidemill.cli.group.shares import (
    ShareGroup,
    find_group,
    held_offsets,
    list_share_groups,
    share_starts,
)
from tidemill.cli.options import LOCAL, Brokers, DryRun, Json, Yes, command_group
from tidemill.errors import TidemillError
from tidemill.kafka_client.admin.share_groups import ShareStart

app = command_group("List, describe (lag), seek (replay) and delete consumer groups.")

GroupName = Annotated[str, typer.Argument(metavar="GROUP", help="Id of the group.")]


@app.command("list")
def list_groups(as_json: Json = False, brokers: Brokers = LOCAL) -> None:
    """List groups."""
    cluster = Cluster.at(brokers)
    groups = cluster.ask("groups", lambda: _listed(cluster))
    shared = {group.group_id: group for group in list_share_groups(cluster)}
    groups = [group for group in groups if group.group_id not in shared]
    descriptions = describe_groups(cluster, [group.group_id for group in groups])
    rows = [
        {
            "group": group.group_id,
            "state": state_text(group.state),
            "type": group.type.name.lower() if group.type else "classic",
            "members": len(descriptions[group.group_id].members),
        }
        for group in groups
    ]
    rows += [
        {
            "group": group.group_id,
            "state": group.state,
            "type": "share",
            "members": len(group.members),
        }
        for group in shared.values()
    ]
    rows.sort(key=lambda row: str(row["group"]))
    columns = output.titled("group", "state", "type", "members")
    output.emit_columns(columns, rows, as_json=as_json)
    if not rows:
        output.note("There are no groups. A consumer with a group.id creates one.")


def _listed(cluster: Cluster) -> Sequence[Any]:
    """Return all groups.

    Raises:
        KafkaException: a broker did not answer. Its groups would be missing.
    """
    from confluent_kafka import KafkaException

    listing = cluster.admin.list_consumer_groups(request_timeout=REQUEST_SECONDS).result()
    if listing.errors:
        raise KafkaException(listing.errors[0])
    return list(listing.valid)


@app.command(short_help="Show a group: its lag and its members.")
def describe(group: GroupName, as_json: Json = False, brokers: Brokers = LOCAL) -> None:
    """Show a group: its members, and for each partition the lag in records and in time.

    The lag in time is the age of the first record that the group has not read. Of a share group:
    where it starts in each partition, and how many records it has not finished.
    """
    cluster = Cluster.at(brokers)
    description = find_group(cluster, group)
    if isinstance(description, ShareGroup):
        _show_share_group(cluster, description, as_json=as_json)
        return
    owner = owners(description)
    committed = committed_offsets(cluster, group)
    if not committed and is_dead(description):
        raise not_found(group)
    lags = partition_lags(cluster, committed, list(owner))
    epochs = group_epochs(cluster, description)
    summary = _summary(description, lags, owner, epochs)
    if as_json:
        output.emit_json(summary)
        return
    _emit_description(summary, lags, owner)
    note_held_back(sorted({lag.topic for lag in lags if lag.held_back}))
    if summary["members"]:
        print()
        output.emit_table(
            ["MEMBER", "CLIENT", "HOST", *(["PROTOCOL", "EPOCH"] if epochs else []), "PARTITIONS"],
            [_member_row(member, epochs) for member in summary["members"]],
        )


def _member_row(member: Mapping[str, Any], epochs: Epochs | None) -> list[Any]:
    """Return a member's row. Partitions that it is to get have a plus, and to give back a minus."""
    has = set(member["partitions"])
    target = has if member["target"] is None else set(member["target"])
    marks = dict.fromkeys(target - has, "+") | dict.fromkeys(has - target, "-")
    marked = [marks.get(each, "") + each for each in sorted(has | target)]
    about = [member["protocol"], member["epoch"]] if epochs else []
    return [member["member"], member["client"], member["host"], *about, " ".join(marked)]


def _summary(
    description: Any,
    lags: Sequence[PartitionLag],
    owner: Mapping[TopicPartitionKey, Any],
    epochs: Epochs | None,
) -> dict[str, Any]:
    """Return the description of a group for JSON."""
    known = [lag for lag in lags if lag.lag is not None]
    return {
        "group": description.group_id,
        "type": "consumer" if is_consumer_group(description) else "classic",
        "state": state_text(description.state),
        "epoch": epochs.group if epochs else None,
        "assignment_epoch": epochs.assignment if epochs else None,
        "assignor": description.partition_assignor or None,
        "lag": sum(lag.lag or 0 for lag in known),
        "lag_ms": max((lag.lag_ms for lag in known if lag.lag_ms is not None), default=None),
        "partitions": [
            lag.as_dict() | {"member": getattr(owner.get(lag.key), "member_id", None)}
            for lag in lags
        ],
        "members": [member_dict(member, epochs) for member in description.members],
    }


def _epoch_fields(summary: Mapping[str, Any]) -> list[tuple[str, Any]]:
    if summary["epoch"] is None:
        return []
    return [("epoch", summary["epoch"]), ("assigned", summary["assignment_epoch"])]


def _emit_description(
    summary: Mapping[str, Any],
    lags: Sequence[PartitionLag],
    owner: Mapping[TopicPartitionKey, Any],
) -> None:
    """Print a group's fields, its partitions and notes about lost records."""
    output.emit_fields(
        [
            ("group", summary["group"]),
            ("type", summary["type"]),
            ("state", summary["state"]),
            *_epoch_fields(summary),
            ("assignor", summary["assignor"]),
            ("members", len(summary["members"])),
            ("lag", output.plural(summary["lag"], "record")),
            ("behind", output.duration_text(summary["lag_ms"])),
        ]
    )
    print()
    output.emit_table(
        ["TOPIC", "PARTITION", "COMMITTED", "END", "LAG", "BEHIND", "CLIENT"],
        [
            [
                lag.topic,
                lag.partition,
                lag.committed,
                lag.end,
                lag.lag,
                output.duration_text(lag.lag_ms),
                getattr(owner.get(lag.key), "client_id", None),
            ]
            for lag in lags
        ],
    )
    for lag in lags:
        if lag.lost:
            output.note(
                f"{lag.topic}-{lag.partition}: {output.plural(lag.lost, 'record')} "
                "were deleted before the group read them."
            )


def _show_share_group(cluster: Cluster, group: ShareGroup, *, as_json: bool) -> None:
    """Print a share group: its members, and for each partition its start offset and its lag."""
    summary = _share_summary(cluster, group)
    if as_json:
        output.emit_json(summary)
        return
    output.emit_fields(
        [
            ("group", summary["group"]),
            ("type", summary["type"]),
            ("state", summary["state"]),
            ("epoch", summary["epoch"]),
            ("assigned", summary["assignment_epoch"]),
            ("assignor", summary["assignor"]),
            ("members", len(group.members)),
            ("lag", output.plural(summary["lag"], "record")),
        ]
    )
    print()
    output.emit_table(
        ["TOPIC", "PARTITION", "START", "END", "LAG"],
        [
            [each[name] for name in ("topic", "partition", "share_start", "end", "lag")]
            for each in summary["partitions"]
        ],
    )
    if group.members:
        print()
        output.emit_table(
            ["MEMBER", "CLIENT", "HOST", "EPOCH", "PARTITIONS"],
            [
                [each.member_id, each.client_id, each.host, each.epoch, " ".join(each.partitions)]
                for each in group.members
            ],
        )


def _share_summary(cluster: Cluster, group: ShareGroup) -> dict[str, Any]:
    """Return the description for JSON."""
    starts = share_starts(cluster, group.group_id)
    for member in group.members:
        for name in member.partitions:
            topic, _, partition = name.rpartition("-")
            starts.setdefault((topic, int(partition)), ShareStart())
    held = held_offsets(cluster, starts)
    return {
        "group": group.group_id,
        "type": "share",
        "state": group.state,
        "epoch": group.epoch,
        "assignment_epoch": group.assignment_epoch,
        "assignor": group.partition_assignor or None,
        "lag": sum(each.lag or 0 for each in starts.values()),
        "partitions": [
            {
                "topic": key[0],
                "partition": key[1],
                "share_start": starts[key].start,
                "start": held[key].start if key in held else None,
                "end": held[key].end if key in held else None,
                "lag": starts[key].lag,
            }
            for key in sorted(starts)
        ],
        "members": [member.as_dict() for member in group.members],
    }


@app.command()
def delete(
    groups: Annotated[list[str], typer.Argument(metavar="GROUP", help="Ids of the groups.")],
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic", metavar="TOPIC", help="Forget only this topic, and keep the group."
        ),
    ] = None,
    yes: Yes = False,
    dry_run: DryRun = False,
    as_json: Json = False,
    brokers: Brokers = LOCAL,
) -> None:
    """Delete groups, or with --topic only their offsets of topics.

    A group that reads such a topic again begins where a new one does.
    """
    cluster = Cluster.at(brokers)
    deleted = list(dict.fromkeys(groups))
    for group in deleted:
        description = find_group(cluster, group)
        if not topic and is_dead(description):
            raise not_found(group)
        refuse_if_alive(description)
    failures = (
        _forget(cluster, deleted, list(dict.fromkeys(topic)), yes=yes, dry_run=dry_run)
        if topic
        else _delete(cluster, deleted, yes=yes, dry_run=dry_run)
    )
    topics = {"topics": topic} if topic else {}
    about = f" of {', '.join(topic)}" if topic else ""
    if as_json:
        output.emit_json([{"group": each, **topics, "deleted": not dry_run} for each in deleted])
    else:
        what = f"the offsets{about} from " if topic else ""
        for group in deleted:
            print(f"{'would delete' if dry_run else 'deleted'} {what}{group}")
    output.raise_all(failures)


def _delete(
    cluster: Cluster, groups: list[str], *, yes: bool, dry_run: bool
) -> list[TidemillError]:
    """Delete groups; remove those that failed from the list, and return their errors."""
    failures: list[TidemillError] = []
    if not dry_run:
        output.confirm(f"Delete the offsets of {', '.join(groups)}?", yes=yes)
        futures = cluster.admin.delete_consumer_groups(
            list(groups), request_timeout=REQUEST_SECONDS
        )
        for group, future in futures.items():
            try:
                cluster.ask(f"group {group}", future.result)
            except TidemillError as error:  # the others are deleted all the same
                failures.append(error)
                groups.remove(group)
    return failures


def _forget(
    cluster: Cluster, groups: list[str], topics: list[str], *, yes: bool, dry_run: bool
) -> list[TidemillError]:
    """Delete what groups have read of topics; as ``_delete``."""
    read = {group: read_partitions(cluster, group, topics) for group in groups}
    failures: list[TidemillError] = []
    if not dry_run:
        what = f"{', '.join(groups)} in {', '.join(topics)}"
        output.confirm(f"Delete the offsets of {what}?", yes=yes)
        for group, keys in read.items():
            try:
                forget(cluster, group, keys)
            except TidemillError as error:
                failures.append(error)
                groups.remove(group)
    return failures


app.command()(seek)
