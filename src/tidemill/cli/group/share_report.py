"""Shows a share group, for ``group describe``. ``shares`` asks the broker."""

from __future__ import annotations

from typing import Any

from tidemill.cli import output
from tidemill.cli.client import Cluster
from tidemill.cli.group.shares import ShareGroup, ShareStart, held_offsets, share_starts


def show_share_group(cluster: Cluster, group: ShareGroup, *, as_json: bool) -> None:
    """Print a share group: its members, and for each partition its start offset and its lag."""
    summary = _summary(cluster, group)
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


def _summary(cluster: Cluster, group: ShareGroup) -> dict[str, Any]:
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
