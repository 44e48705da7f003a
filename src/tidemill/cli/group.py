"""``tidemill group``: list, describe, seek and delete consumer groups."""

from __future__ import annotations

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
    Yes,
)
from tidemill.cli.groups import (
    committed_offsets,
    describe_group,
    describe_groups,
    is_dead,
    member_dict,
    not_found,
    owners,
    refuse_if_alive,
    state_text,
)
from tidemill.cli.seek import seek

app = typer.Typer(
    help="Consumer groups: list, describe (lag), seek (replay), delete.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

GroupName = Annotated[str, typer.Argument(metavar="GROUP", help="Id of the group.")]


@app.command("list")
def list_groups(
    as_json: Json = False,
    servers: Bootstrap = BOOTSTRAP_DEFAULT,
    properties: Property = None,
) -> None:
    """List groups."""
    cluster = Cluster.at(servers, properties)
    listing = cluster.ask(
        "groups",
        lambda: cluster.admin.list_consumer_groups(request_timeout=REQUEST_SECONDS).result(),
    )
    groups = sorted(listing.valid, key=lambda group: group.group_id)
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
    if as_json:
        output.emit_json(rows)
    else:
        output.emit_table(
            ["GROUP", "STATE", "TYPE", "MEMBERS"], [list(row.values()) for row in rows]
        )
    if not rows:
        output.note("There are no groups. One begins when a consumer with a group.id connects.")


@app.command(short_help="Show a group: its lag and its members.")
def describe(
    group: GroupName,
    as_json: Json = False,
    servers: Bootstrap = BOOTSTRAP_DEFAULT,
    properties: Property = None,
) -> None:
    """Show a group: lag in records and in time for each partition, and its members.

    The lag in time is the age of the first record that the group has not read.
    """
    from tidemill.cli.lag import note_held_back, partition_lags

    cluster = Cluster.at(servers, properties)
    description = describe_group(cluster, group)
    owner = owners(description)
    committed = committed_offsets(cluster, group)
    if not committed and is_dead(description):
        raise not_found(group)
    lags = partition_lags(cluster, committed, list(owner))
    known = [lag for lag in lags if lag.lag is not None]
    oldest = max((lag.lag_ms for lag in known if lag.lag_ms is not None), default=None)
    if as_json:
        output.emit_json(
            {
                "group": group,
                "state": state_text(description.state),
                "assignor": description.partition_assignor or None,
                "lag": sum(lag.lag or 0 for lag in known),
                "lag_ms": oldest,
                "partitions": [
                    lag.as_dict() | {"member": getattr(owner.get(lag.key), "member_id", None)}
                    for lag in lags
                ],
                "members": [member_dict(member) for member in description.members],
            }
        )
        return
    output.emit_fields(
        [
            ("group", group),
            ("state", state_text(description.state)),
            ("assignor", description.partition_assignor or None),
            ("members", len(description.members)),
            ("lag", output.plural(sum(lag.lag or 0 for lag in known), "record")),
            ("behind", output.duration_text(oldest)),
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
    note_held_back(sorted({lag.topic for lag in lags if lag.held_back}))
    if description.members:
        print()
        output.emit_table(
            ["MEMBER", "CLIENT", "HOST", "PARTITIONS"],
            [
                [m["member"], m["client"], m["host"], " ".join(m["partitions"])]
                for m in map(member_dict, description.members)
            ],
        )


@app.command()
def delete(
    groups: Annotated[list[str], typer.Argument(metavar="GROUP", help="Ids of the groups.")],
    yes: Yes = False,
    dry_run: DryRun = False,
    as_json: Json = False,
    servers: Bootstrap = BOOTSTRAP_DEFAULT,
    properties: Property = None,
) -> None:
    """Delete groups and their committed offsets."""
    cluster = Cluster.at(servers, properties)
    for group in groups:
        description = describe_group(cluster, group)
        if is_dead(description):
            raise not_found(group)
        refuse_if_alive(description)
    if not dry_run:
        output.confirm(f"Delete the committed offsets of {', '.join(groups)}?", yes=yes)
        futures = cluster.admin.delete_consumer_groups(
            list(groups), request_timeout=REQUEST_SECONDS
        )
        for group, future in futures.items():
            cluster.ask(f"group {group}", future.result)
    if as_json:
        output.emit_json([{"group": group, "deleted": not dry_run} for group in groups])
    else:
        for group in groups:
            print(f"{'would delete' if dry_run else 'deleted'} {group}")


app.command()(seek)
