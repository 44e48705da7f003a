"""``tidemill doctor --repair PARTITION``: shows and repairs the damaged places of a partition.

This module must not decide what is repaired, or how.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

from tidemill.cli import output
from tidemill.cli.output import NotFoundError, UsageError

if TYPE_CHECKING:
    from tidemill.engine.groups.stored_offsets import GroupPosition
    from tidemill.log.disk.files import FileSystem
    from tidemill.log.names import TopicPartition
    from tidemill.log.recovery.survey import Damage, Survey


@dataclass(frozen=True)
class RepairOptions:
    """The repair that the command line asks for."""

    what: str
    at: int | None
    yes: bool
    as_json: bool

    def next_step(self) -> str:
        """Return what a user does after a dry run."""
        return "Nothing was changed. Copy the data folder first, then repeat this with --yes."


def repair_partition(
    fs: FileSystem, data_dir: Path, tp: TopicPartition, options: RepairOptions
) -> None:
    """List the damaged places of a partition, or show or do the repair of one of them."""
    from tidemill.engine.groups.stored_offsets import committed_offsets
    from tidemill.engine.internal_topics import CATALOG
    from tidemill.log.recovery.repair import PartitionRepair

    folder = data_dir / str(tp)
    if tp == CATALOG:
        raise UsageError(f"{tp} is the catalog", hint="Use: tidemill doctor --repair catalog")
    topic_id = None if folder.is_dir() else _id_in_catalog(fs, data_dir, tp)
    work = PartitionRepair(fs, str(data_dir), tp)
    found = work.survey()
    groups = committed_offsets(fs, str(data_dir), tp)
    damage = _chosen(found, tp, options.at)
    if not options.as_json:
        _print_survey(found, tp)
    if damage is not None and not options.as_json:
        _print_loss(found, damage, groups)
    kept = None
    if damage is not None and options.yes:
        kept = work.apply(found, damage, topic_id)
    if options.as_json:
        output.emit_json(_json(found, tp, damage, groups, kept))
    elif kept is not None:
        print(f"Repaired. What was cut is in {kept}")
        rest = [each.offset for each in found.damage if each != damage]
        if rest:
            print(f"Other damage: repeat this with --at {rest[0]}")
        else:
            print("Start the broker. It reads the partition and builds its indexes again.")
    elif damage is not None:
        print(options.next_step())


def _id_in_catalog(fs: FileSystem, data_dir: Path, tp: TopicPartition) -> UUID:
    """Return the topic id of a partition that has no folder."""
    from tidemill.engine.topics import catalog_repair

    for each in catalog_repair.plan(fs, str(data_dir)).catalog.topics:
        if each.topic.name == tp.topic and tp.partition in each.missing:
            return each.topic.topic_id
    raise NotFoundError(
        f"there is no folder {data_dir / str(tp)}, and no topic that should have it"
    )


def _chosen(found: Survey, tp: TopicPartition, at: int | None) -> Damage | None:
    if at is None:
        return None
    for damage in found.damage:
        if damage.offset == at:
            return damage
    places = ", ".join(str(each.offset) for each in found.damage)
    raise NotFoundError(
        f"{tp} has no damage at offset {at}",
        hint=f"It is damaged at offset {places}." if places else "It has no damage at all.",
    )


def _print_survey(found: Survey, tp: TopicPartition) -> None:
    text = output.plural(found.batches, "batch").replace("batchs", "batches")
    times = f", {_time(found.first_ms)} to {_time(found.last_ms)}" if found.batches else ""
    print(f"{tp}: offsets {found.start} to {found.end - 1}, {text} can be read{times}\n")
    if not found.damage:
        print("No damage was found.")
        return
    for damage in found.damage:
        print(f"damage at offset {damage.offset}: {_place(found, damage)}: {damage.why}")
    if len(found.damage) == 1:
        print(f"\nTo see what its repair loses: --at {found.damage[0].offset}\n")


def _time(timestamp_ms: int) -> str:
    """Return a time in ISO 8601, or what is known instead."""
    if timestamp_ms < 0:
        return "an unknown time"
    try:
        moment = datetime.fromtimestamp(timestamp_ms / 1000, tz=UTC)
    except (OverflowError, ValueError, OSError):
        return f"{timestamp_ms} ms since 1970"
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _place(found: Survey, damage: Damage) -> str:
    if damage.base < 0:
        return found.folder
    return f"{found.path(damage.base)}, byte {damage.position}"


def _print_loss(found: Survey, damage: Damage, groups: list[GroupPosition]) -> None:
    count = damage.resume - damage.offset
    if count:
        print(
            f"The repair gives up the offsets {damage.offset} to {damage.resume - 1} "
            f"({count:,}; compaction perhaps removed some before), written between "
            f"{_time(damage.before_ms)} and {_time(damage.after_ms)}."
        )
    else:
        print("The repair gives up no offset: the damaged bytes are between two batches.")
    size = damage.end - damage.position
    if size:
        print(f"It keeps the damaged {output.size_text(size)} in a folder beside.")
    if damage.base < 0:
        print(f"The log will begin at offset {damage.resume}.")
    print(
        "All other records stay, with their offsets. New records come behind offset "
        f"{found.end - 1}."
    )
    for line in _consequences(found, damage, groups):
        print(f"- {line}")
    print()


def _consequences(found: Survey, damage: Damage, groups: list[GroupPosition]) -> list[str]:
    from tidemill.log.recovery.survey import open_transactions

    lines = [
        f"group {each.group_id} is at offset {each.offset} and has not read all of the lost records"
        for each in groups
        if each.offset < damage.resume
    ]
    lines += [
        f"group {each.group_id} is at offset {each.offset}, beyond the end of the log: its "
        "consumers will do what their auto.offset.reset says"
        for each in groups
        if each.offset > found.end
    ]
    lines += [
        f"the transaction of producer {producer_id} from offset {first} has no end in what can be "
        "read: if the coordinator does not know it any more, the broker aborts it"
        for producer_id, first in open_transactions(found)
        if first < damage.resume
    ]
    return lines


def _json(
    found: Survey,
    tp: TopicPartition,
    damage: Damage | None,
    groups: list[GroupPosition],
    kept: str | None,
) -> dict[str, Any]:
    return {
        "partition": str(tp),
        "start": found.start,
        "end": found.end,
        "damage": [
            {
                "offset": each.offset,
                "resume": each.resume,
                "file": None if each.base < 0 else found.path(each.base),
                "position": each.position,
                "bytes": each.end - each.position,
                "why": each.why,
                "before_ms": each.before_ms,
                "after_ms": each.after_ms,
            }
            for each in found.damage
        ],
        "consequences": [] if damage is None else _consequences(found, damage, groups),
        "done": kept is not None,
        "kept": kept,
    }
