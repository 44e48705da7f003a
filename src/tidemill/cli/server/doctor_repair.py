"""``tidemill doctor --repair``: repairs the data folder of a stopped broker.

Without ``--yes`` it shows what it would do. The folder is locked meanwhile, so that no broker
starts. This module must not decide what is repaired, or how.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidemill.cli import output
from tidemill.cli.output import NotFoundError, UsageError
from tidemill.cli.server.doctor_partition import RepairOptions, repair_partition

if TYPE_CHECKING:
    from tidemill.engine.topics.catalog_repair import CatalogPlan
    from tidemill.log.disk.files import FileSystem
    from tidemill.state.catalog.rebuild import RebuiltTopic

CATALOG = "catalog"
JOURNAL = "journal"


def repair(data_dir: Path, options: RepairOptions) -> None:
    """Repair the catalog, the journal or a partition.

    Raises:
        UsageError: the options contradict each other.
        NotFoundError: there is no such folder.
        DataDirLockedError: a broker uses the folder.
        FormatVersionError: the folder is not a data folder of this version.
        StorageError: a file operation failed.
    """
    if options.what in (CATALOG, JOURNAL):
        if options.at is not None:
            raise UsageError(f"--at is for a partition, not for the {options.what}")
        with _locked(data_dir) as fs:
            work = _repair_catalog if options.what == CATALOG else _repair_journal
            work(fs, data_dir, options)
        return
    from tidemill.log.names import folder_name, parse_folder_name

    tp = parse_folder_name(options.what)
    if tp is None or folder_name(tp) != options.what:
        raise UsageError(
            f"invalid value {options.what!r} for --repair: use catalog, journal, or a "
            "partition like flights-0"
        )
    if options.yes and options.at is None:
        raise UsageError(
            "--yes needs --at OFFSET", hint="Without both, the damaged places are listed."
        )
    with _locked(data_dir) as fs:
        repair_partition(fs, data_dir, tp, options)


@contextlib.contextmanager
def _locked(data_dir: Path) -> Iterator[FileSystem]:
    """Lock the folder against brokers and other repairs."""
    from tidemill.log.disk.files import RealFileSystem
    from tidemill.log.errors import FormatVersionError
    from tidemill.log.store import LOCK_FILE
    from tidemill.log.versions import FORMAT_FILE, check_format

    if not data_dir.is_dir():
        raise NotFoundError(f"there is no data folder {data_dir}", hint="Use --data-dir DIR.")
    if not (data_dir / FORMAT_FILE).is_file():
        raise FormatVersionError(
            f"{data_dir} has no {FORMAT_FILE}: it is not a tidemill data folder",
            hint="Use --data-dir DIR.",
        )
    fs = RealFileSystem()
    lock = fs.lock(f"{data_dir}/{LOCK_FILE}")
    try:
        check_format(fs, str(data_dir))
        yield fs
    finally:
        lock.close()


# --- the journal ---------------------------------------------------------------------------------


def _repair_journal(fs: FileSystem, data_dir: Path, options: RepairOptions) -> None:
    from tidemill.log.journal.reading import accept_damage
    from tidemill.log.recovery.inspect import journal_damage

    unproven = journal_damage(fs, str(data_dir))
    do = options.yes and bool(unproven)
    if do:
        accept_damage(fs, str(data_dir))
    if options.as_json:
        output.emit_json({"done": do, "damage": unproven})
        return
    if not unproven:
        print(f"The journal of {data_dir} is whole, or not needed: there is nothing to repair.")
        return
    for place in unproven:
        print(f"damage: {place}")
    print(
        "\nThe journal has what was acknowledged in the last seconds before the broker ended. The "
        "start restores what is left of it. If the machine lost its power, records that only the "
        "lost part had are missing at the end of partitions, and new records get their offsets: "
        "consumers and sinks that have seen the lost ones can take the new ones for them. If only "
        "the process ended, the partitions have all records.\n"
    )
    if do:
        print("The next start accepts that. Start the broker, and read its log.")
    else:
        print(options.next_step())


# --- the catalog ---------------------------------------------------------------------------------


def _repair_catalog(fs: FileSystem, data_dir: Path, options: RepairOptions) -> None:
    from tidemill.engine.topics import catalog_repair

    folder = str(data_dir)
    catalog_repair.check_folder(fs, folder)
    plan = catalog_repair.plan(fs, folder)
    unknown = _unknown(plan)
    if plan.is_whole and not options.as_json:
        print(f"The catalog of {data_dir} is whole: there is nothing to repair.")
        return
    if not options.as_json:
        _print_catalog(plan, unknown)
    do = options.yes and not plan.is_whole
    moved = catalog_repair.apply(fs, plan, int(time.time() * 1000)) if do else []
    if options.as_json:
        output.emit_json(_catalog_json(plan, unknown, moved, done=do))
        return
    for path in moved:
        print(f"set aside: {path}")
    if options.yes:
        print("The catalog is rebuilt. Start the broker, and compare: tidemill topic list")
    else:
        print(options.next_step())


def _print_catalog(plan: CatalogPlan, unknown: list[str]) -> None:
    state = "damaged or incomplete" if plan.found else "missing"
    print(f"The catalog of {plan.data_dir} is {state}. It can be rebuilt like this:\n")
    rows = [
        (each.topic.name, each.topic.partitions, _SOURCES[each.source], _configs(each))
        for each in plan.catalog.topics
    ]
    output.emit_table(("TOPIC", "PARTITIONS", "KNOWN FROM", "CONFIGS"), rows)
    for name, value in sorted(plan.catalog.broker_configs.items()):
        print(f"broker config {name}={value}")
    for place in plan.damage:
        print(f"\ndamage in the old catalog: {place}")
    for why in plan.catalog.unreadable:
        print(f"\nunreadable record: {why}")
    for found, why in plan.catalog.aside:
        print(f"\nfolder {found.tp} will be set aside: {why}")
    for name in plan.catalog.deleted.values():
        print(f"\ntopic {name} was being deleted: the broker will delete its folders")
    print("\nWhat can't be known:")
    for line in unknown:
        print(f"- {line}")
    print()


_SOURCES = {"catalog": "catalog", "note": "notes in its folders", "folders": "names of its folders"}


def _configs(each: RebuiltTopic) -> str:
    return ", ".join(f"{key}={value}" for key, value in sorted(each.topic.configs.items())) or "-"


def _unknown(plan: CatalogPlan) -> list[str]:
    """Return sentences about what the rebuilt catalog perhaps lacks."""
    from tidemill.state.internal_topics import is_internal

    catalog = plan.catalog
    lines = []
    guessed = [
        each.topic.name
        for each in catalog.topics
        if each.source == "folders" and not is_internal(each.topic.name)
    ]
    if guessed:
        lines.append(
            f"The configs of {', '.join(guessed)}: an older version of tidemill wrote the folders. "
            "They get configs with which nothing is deleted; set the right ones with "
            "tidemill topic alter. Partitions above the highest folder are unknown, too."
        )
    lines += [
        f"Partition {number} of {each.topic.name} has no folder. It will be offline."
        for each in catalog.topics
        for number in each.missing
    ]
    if plan.cluster_id is None:
        lines.append("The cluster id. The folder gets a new one.")
    lines += [
        "Changes of topics in the last seconds before the crash, and a topic whose deletion the "
        "crash interrupted: it can be back. Topics of which no folder is left.",
        "Broker configs that clients have set, if they are not listed above: set them again.",
        f"Which producer ids were given out. New ones begin at {catalog.next_producer_id}, far "
        "above all that were seen, so none is given out twice.",
    ]
    return lines


def _catalog_json(
    plan: CatalogPlan, unknown: list[str], moved: list[str], *, done: bool
) -> dict[str, Any]:
    return {
        "done": done,
        "is_whole": plan.is_whole,
        "topics": [
            {
                "name": each.topic.name,
                "topic_id": str(each.topic.topic_id),
                "partitions": each.topic.partitions,
                "configs": dict(each.topic.configs),
                "source": each.source,
                "missing_folders": list(each.missing),
            }
            for each in plan.catalog.topics
        ],
        "broker_configs": plan.catalog.broker_configs,
        "damage": plan.damage + plan.catalog.unreadable,
        "set_aside": [{"folder": str(f.tp), "why": why} for f, why in plan.catalog.aside],
        "moved": moved,
        "next_producer_id": plan.catalog.next_producer_id,
        "unknown": unknown,
    }
