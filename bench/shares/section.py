"""Measures share groups beside Apache Kafka's: records that members accept one by one.

The client is Kafka's own, in Java. Must not know: how a broker stores acknowledgements.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import statistics
import subprocess
import sys
from collections.abc import Callable
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
from bench.report import Aim, Cell, Section, Table
from bench.run import Run, ratio
from bench.targets import Target
from bench.wire import Load

PROGRAM = Path(__file__).with_name("ShareLoad.java")
TIMEOUT_S = 300
WARM_UP = 0.25
"""Records of the warm-up, which is not measured, to those that are."""
LOCK_MS = 60_000
"""How long a member can keep a record: the longest time that Apache Kafka allows by default."""

_groups = itertools.count()

Turn = Callable[[], "Outcome | None"]


@dataclass(frozen=True)
class Case:
    """A load: bytes of a record, partitions, members."""

    size: int
    partitions: int
    members: int


@dataclass(frozen=True)
class Outcome:
    """Records that are acknowledged in a second, the broker's time, and the fairness.

    Attributes:
        cpu_us: microseconds of the broker's processors per record.
        share: records of the member with the fewest to those of the member with the most.
    """

    rate: float
    cpu_us: float
    share: float


def section(run: Run) -> Section:
    """Measure all cases. Without Java or Kafka's jars, nothing is measured."""
    table = Table(
        "Share groups: records that members accept one by one",
        ["record", "partitions", "members", "who", "records/s", "CPU µs/record", "share", "ratio"],
        note="Kafka's Java client, explicit acknowledgements, in batches as the client sends them, "
        "after a warm-up in the same process. A record counts when the broker has answered its "
        "acknowledgement. tidemill answers when it is on disk, Apache Kafka when it is in the page "
        "cache. CPU is the broker's. Share: records of the slowest member to those of the fastest.",
    )
    try:
        classpath = find_classpath()
        java = find_java()
    except KafkaNotFoundError as error:
        print(f"note: no Java client, so shares are left out: {error}", file=sys.stderr)
        return Section("shares", [table])
    command = [java, "-Xmx512m", "-cp", classpath, str(PROGRAM)]
    ratios = []
    with run.servers() as targets:
        for case in _cases(run):
            about = f"{case.size} B, {case.partitions} partition(s), {case.members} member(s)"
            run.say(f"shares: {about}")
            ratios += _measure(run, targets, case, command, table)
    aims = []
    if ratios:
        aims.append(Aim("shares: records/s, worst case, to Kafka", min(ratios), 1.0, "", False))
    return Section("shares", [table], aims)


def _cases(run: Run) -> list[Case]:
    cases = [Case(100, 1, 1), Case(100, 1, 4), Case(1000, 1, 4), Case(100, 4, 4)]
    return cases[:2] if run.options.quick else cases


def _measure(
    run: Run, targets: list[Target], case: Case, command: list[str], table: Table
) -> list[float]:
    """Add a row for each broker; return our rate to Apache Kafka's, if it took part."""
    count = 100_000 if run.options.quick else 400_000
    topics = {each.name: _filled(each, case, int(count * (1 + WARM_UP))) for each in targets}
    turns: dict[str, Turn] = {
        each.name: partial(_turn, run, each, case, topics[each.name], count, command)
        for each in targets
    }
    results = {
        who: [each for each in found if each is not None]
        for who, found in run.take_turns(turns).items()
    }
    ours, theirs = ([each.rate for each in results.get(who, [])] for who in ("tidemill", "kafka"))
    to_kafka = ratio(ours, theirs) if ours and len(ours) == len(theirs) else None
    for who, found in results.items():
        cells: list[Cell] = [None] * 3
        if found:
            cells = [
                statistics.median(each.rate for each in found),
                statistics.median(each.cpu_us for each in found),
                statistics.median(each.share for each in found),
            ]
        last = to_kafka if who == "tidemill" else None
        table.rows.append([f"{case.size} B", case.partitions, case.members, who, *cells, last])
    return [] if to_kafka is None else [to_kafka]


def _filled(target: Target, case: Case, count: int) -> str:
    """Return a new topic with at least so many records."""
    topic = f"shares-{next(_groups)}"
    target.create_topic(topic, case.partitions)
    load = Load(case.size, case.partitions, 2 * count * case.size, batch_bytes=16_384)
    batch = wire.make_batch(load)
    target.write_first(topic, case.partitions, batch)
    frames = [wire.produce_frame(topic, each, batch, -1) for each in range(case.partitions)]
    batches = -(-count // load.records_per_batch)
    with contextlib.closing(wire.connect(target.address)) as sock:
        wire.pipelined(sock, frames, batches + case.partitions, load.window)
    return topic


def _turn(
    run: Run, target: Target, case: Case, topic: str, count: int, command: list[str]
) -> Outcome | None:
    """Let a new group accept the records of a topic; return None if it failed."""
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
        run.say(f"note: a turn of {target.name} has failed: {done.stderr[-1000:]}")
        return None
    return read_outcome(done.stdout, spent, skipped + count)


def read_outcome(printed: str, spent: float, records: int) -> Outcome:
    """Return the figures of what the program has printed.

    Args:
        spent: processor seconds of the broker.
        records: those of the warm-up, too.
    """
    found = json.loads(printed.splitlines()[-1])
    share = found["least"] / found["most"] if found["most"] else 0.0
    return Outcome(float(found["rate"]), spent / records * 1e6, share)


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
