"""Measures share groups beside Apache Kafka's: records that members accept one by one.

The client is Kafka's own, in Java. Must not know: how a broker stores acknowledgements.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from tests.support.apache_kafka import KafkaNotFoundError, find_classpath, find_java

from bench import cpu, wire
from bench.compare import Comparison, Figures, ratio_of
from bench.report import Aim, Section
from bench.run import Run
from bench.targets import Target
from bench.wire import Load

PROGRAM = Path(__file__).with_name("ShareLoad.java")
TIMEOUT_S = 300
WARM_UP = 0.25
"""Records of the warm-up, which is not measured, to those that are."""
LOCK_MS = 60_000
"""How long a member can keep a record: the longest time that Apache Kafka allows by default."""

_groups = itertools.count()


@dataclass(frozen=True)
class Case:
    """A load: bytes of a record, partitions, members."""

    size: int
    partitions: int
    members: int


def section(run: Run) -> Section:
    """Measure all cases. Without Java or Kafka's jars, nothing is measured."""
    compared = Comparison(
        run,
        "Share groups: records that members accept one by one",
        ["records/s", "CPU µs/record", "client share"],
        about=("record", "partitions", "members"),
        base="kafka",
        by=["records/s"],
        note="Kafka's Java client, explicit acknowledgements, in batches as the client sends them, "
        "after a warm-up in the same process. A record counts when the broker has answered its "
        "acknowledgement. tidemill answers when it is on disk, Apache Kafka when it is in the page "
        "cache. CPU is the broker's. Share: records of the slowest member to those of the fastest.",
    )
    try:
        command = [find_java(), "-Xmx512m", "-cp", find_classpath(), str(PROGRAM)]
    except KafkaNotFoundError as error:
        print(f"note: no Java client, so shares are left out: {error}", file=sys.stderr)
        return Section("shares", [compared.table()])
    count, ratios = 100_000 if run.options.quick else 400_000, []
    with run.servers() as targets:
        for case in _cases(run):
            about = f"{case.size} B, {case.partitions} partition(s), {case.members} member(s)"
            run.say(f"shares: {about}")
            turns = {}
            for each in targets:
                topic = _filled(each, case, int(count * (1 + WARM_UP)))
                turns[each.name] = partial(_turn, each, case, topic, count, command)
            found = compared.measure([f"{case.size} B", case.partitions, case.members], turns)
            ratios.append(ratio_of(found["tidemill"], found.get("kafka", ()), "records/s"))
    known = [each for each in ratios if each is not None]
    result = Section("shares", [compared.table()])
    if known:
        what = "shares: records/s, worst case, to Kafka"
        result.aims.append(Aim(what, min(known), 1.0, "", at_most=False))
    return result


def _cases(run: Run) -> list[Case]:
    cases = [Case(100, 1, 1), Case(100, 1, 4), Case(1000, 1, 4), Case(100, 4, 4)]
    return cases[:2] if run.options.quick else cases


def _filled(target: Target, case: Case, count: int) -> str:
    """Return a new topic with at least so many records."""
    load = Load(case.size, case.partitions, 2 * count * case.size, batch_bytes=16_384)
    topic = target.topic(case.partitions, load.batch())
    wire.write(target.address, topic, load, load.batch(), -1)
    return topic


def _turn(target: Target, case: Case, topic: str, count: int, command: list[str]) -> Figures:
    """Let a new group accept the records of a topic.

    Raises:
        RuntimeError: The program failed.
    """
    group = f"group-{next(_groups)}"
    _configure(target, group)
    skipped = int(count * WARM_UP)
    arguments = [target.bootstrap, topic, group, str(case.members), str(skipped), str(count)]
    before = cpu.seconds(target.pid)
    done = subprocess.run(
        [*command, *arguments], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    spent = cpu.seconds(target.pid) - before
    if done.returncode:
        raise RuntimeError(done.stderr[-1000:])
    return read_outcome(done.stdout, spent, skipped + count)


def read_outcome(printed: str, spent: float, records: int) -> Figures:
    """Return the figures of what the program has printed.

    Args:
        spent: processor seconds of the broker.
        records: those of the warm-up, too.
    """
    found = json.loads(printed.splitlines()[-1])
    share = found["least"] / found["most"] if found["most"] else 0.0
    rate = float(found["rate"])
    return {"records/s": rate, "CPU µs/record": spent / records * 1e6, "client share": share}


def _configure(target: Target, group: str) -> None:
    """Let a group begin at the first record, and keep records for long."""
    admin = AdminClient({"bootstrap.servers": target.bootstrap})
    wanted = {
        "share.auto.offset.reset": "earliest",
        "share.record.lock.duration.ms": str(LOCK_MS),
    }
    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        for name, value in wanted.items()
    ]
    resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=entries)
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(60)
