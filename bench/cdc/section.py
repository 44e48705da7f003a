"""Measures change data capture: changes/s, latency from commit to topic, and snapshots.

Each is compared in the same run with the database alone: a client that reads the same changes and
throws them away, and COPY (or a plain export) into a file.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import Consumer, KafkaException, TopicPartition
from tests.support.processes import ServerProcess

from bench.cdc.databases import Database, postgresql, sqlite
from bench.cdc.mariadb import mariadb_database
from bench.report import Aim, Section, Table
from bench.run import Run, percentile
from bench.targets import Target

THROUGHPUT = ["database", "who", "changes/s", "to the client"]
LATENCY = ["database", "who", "p50 ms", "p99 ms"]
SNAPSHOT = ["database", "who", "rows/s", "to the export"]
CHANGES_NOTE = (
    "Inserts, 100 in a transaction, that are already in the database's log. The client reads the "
    "same stream and throws it away, without decoding it. In MariaDB each row has a statement of "
    "its own. The worker is a process of its own, on the machine of the "
    "broker, the database and this program. Debezium's engine (where DEBEZIUM_PYTHON has it) "
    "counts its records and writes nothing to Kafka. One Kafka transaction holds many changes, "
    "acks=all."
)
_TIMEOUT_S = 600.0
RATIO, RATE, LATENCY_MS, EXPORT = 0.5, 40_000.0, 50.0, 0.2


@dataclass
class Figures:
    """The figures of one database."""

    client: list[float] = field(default_factory=list)
    debezium: list[float] = field(default_factory=list)
    worker: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    client_seconds: list[float] = field(default_factory=list)
    export: float = 0.0
    snapshot: float = 0.0


def section(run: Run) -> Section:
    """Measure SQLite, and PostgreSQL and MariaDB if they are installed."""
    tables = [
        Table("Changes from the database into the topic", THROUGHPUT, note=CHANGES_NOTE),
        Table("Latency from the commit to a reader of the topic", LATENCY),
        Table("Snapshot of a table", SNAPSHOT),
    ]
    result = Section("cdc", tables)
    run.kafka_wanted = False
    makers: list[Callable[[Path], contextlib.AbstractContextManager[Database | None]]] = [
        sqlite,
        postgresql,
        mariadb_database,
    ]
    with run.servers() as targets:
        for number, make in enumerate(makers):
            with make(run.options.folder / f"cdc-{number}") as database:
                if database is None:
                    run.say(f"cdc: {make.__name__}: not installed, so it is not measured")
                    continue
                figures = measure(run, targets[0], database)
                add(result, database.name, figures)
    return result


def add(result: Section, name: str, found: Figures) -> None:
    """Add the rows and aims of one database."""
    changes, latency, snapshot = result.tables
    pairs = list(zip(found.worker, found.client, strict=True))
    ratio = sorted(a / b for a, b in pairs)[len(pairs) // 2]
    rate = sorted(found.worker)[len(pairs) // 2]
    changes.rows.append([name, "client", sorted(found.client)[len(pairs) // 2], 1.0])
    changes.rows.append([name, "worker", rate, ratio])
    if found.debezium:
        engine = sorted(found.debezium)[len(found.debezium) // 2]
        against = sorted(a / b for a, b in zip(found.debezium, found.client, strict=True))
        changes.rows.append([name, "Debezium's engine", engine, against[len(against) // 2]])
    for who, seconds in (("client", found.client_seconds), ("worker", found.seconds)):
        if seconds:
            p50, p99 = percentile(seconds, 50) * 1e3, percentile(seconds, 99) * 1e3
            latency.rows.append([name, who, p50, p99])
    snapshot.rows.append([name, "export", found.export, 1.0])
    snapshot.rows.append([name, "worker", found.snapshot, found.snapshot / found.export])
    result.aims += [
        Aim(f"{name}: changes/s of the worker to a client's", ratio, RATIO, "", at_most=False),
        Aim(f"{name}: latency p50", percentile(found.seconds, 50) * 1e3, LATENCY_MS, "ms", True),
        Aim(f"{name}: snapshot to export", found.snapshot / found.export, EXPORT, "", False),
    ]
    if name == "postgresql":
        result.aims.append(Aim(f"{name}: changes/s", rate, RATE, "", at_most=False))


def measure(run: Run, target: Target, database: Database) -> Figures:
    """Run all cases with one database."""
    found = Figures()
    # The worker writes up to 100,000 changes in one transaction: there must be several.
    changes = 500_000 if run.options.quick else 2_000_000
    rows = 100_000 if run.options.quick else 1_000_000
    topic = create(run, target, database, "changes", "changes", "never")
    for number in range(run.options.rounds):
        run.say(f"cdc: {database.name}, {changes} changes, round {number + 1}")
        with worker(run, target, "changes"):
            warm_up(target, database, topic)
        database.mark()
        if database.debezium is not None:
            database.debezium.mark()
        database.insert(changes)
        if database.debezium is not None:
            found.debezium.append(database.debezium.rate(changes))
            database.debezium.drop()
        found.client.append(changes / database.read_away(changes))
        with worker(run, target, "changes"):
            found.worker.append(rate_of(target, topic, changes))
    run.say(f"cdc: {database.name}, latency")
    with worker(run, target, "changes"):
        warm_up(target, database, topic)
        found.seconds = latencies(target, database, topic, 100 if run.options.quick else 300)
    found.client_seconds = database.latencies(100 if run.options.quick else 300)
    run.say(f"cdc: {database.name}, snapshot of {rows} rows")
    database.fill(rows)
    found.export = rows / database.export(run.options.folder / "export")
    topic = create(run, target, database, "rows", "rows", "initial")
    with worker(run, target, "rows"):
        found.snapshot = rate_of(target, topic, rows)
    return found


def create(
    run: Run, target: Target, database: Database, name: str, table: str, snapshot: str
) -> str:
    """Create a source for a table, and return the table's topic."""
    source = f"{database.name}-{name}"
    path = run.options.folder / f"{source}.toml"
    path.write_text(
        f'name = "{source}"\nkind = "{database.kind}"\ntables = ["{table}"]\nmanaged = false\n'
        f'snapshot = "{snapshot}"\n[database]\n{database.definition}\n'
    )
    command = [sys.executable, "-m", "tidemill", "source", "create", str(path)]
    subprocess.run(
        [*command, "--bootstrap-servers", target.bootstrap], check=True, stdout=subprocess.DEVNULL
    )
    database.source = source
    return f"{source}.{database.schema}.{table}"


@contextlib.contextmanager
def worker(run: Run, target: Target, name: str) -> Iterator[None]:
    """Run ``tidemill source run`` for the database's latest source."""
    sources = sorted(run.options.folder.glob(f"*-{name}.toml"), key=lambda p: p.stat().st_mtime)
    command = [sys.executable, "-m", "tidemill", "source", "run", sources[-1].stem]
    log = run.options.folder / "worker.log"
    with ServerProcess("worker", [*command, "--bootstrap-servers", target.bootstrap], log) as made:
        yield
        made.terminate(60)


def warm_up(target: Target, database: Database, topic: str) -> None:
    """Commit rows until one of them is in the topic: then the worker runs, and is idle soon."""
    deadline = time.monotonic() + _TIMEOUT_S
    start = end_of(target, topic)
    while end_of(target, topic) <= start:
        if time.monotonic() > deadline:
            raise TimeoutError(f"nothing arrives in {topic}")
        database.insert(1)
        time.sleep(0.2)
    settled = -1
    while settled != (settled := end_of(target, topic)):
        time.sleep(0.5)


def rate_of(target: Target, topic: str, count: int) -> float:
    """Return records/s from the first transaction to the last of ``count`` new records.

    The end of the topic also counts the marker of each transaction, one for many records.
    """
    deadline = time.monotonic() + _TIMEOUT_S
    with reader(target) as consumer:
        start = end_of(target, topic)
        first, began = start, 0.0
        while time.monotonic() < deadline:
            end = _end(consumer, topic)
            now = time.perf_counter()
            if end > start and not began:
                first, began = end, now
            if end >= start + count:
                if end == first:
                    raise RuntimeError(f"all {count} records of {topic} came in one transaction")
                return (end - first) / (now - began)
            time.sleep(0.005)
    raise TimeoutError(f"{topic} has not got {count} records")


def latencies(target: Target, database: Database, topic: str, count: int) -> list[float]:
    """Commit rows one after the other, and return the seconds until a reader has each."""
    seconds = []
    with reader(target) as consumer:
        consumer.assign([TopicPartition(topic, 0, _end(consumer, topic))])
        consumer.poll(0.5)
        for number in range(count):
            began = time.perf_counter()
            database.insert(1)
            while (message := consumer.poll(10)) is None or message.error():
                pass
            seconds.append(time.perf_counter() - began)
            time.sleep(0.002 + number % 17 / 1000)
    return seconds


@contextlib.contextmanager
def reader(target: Target) -> Iterator[Consumer]:
    """Make a consumer with read_committed."""
    config = {
        "bootstrap.servers": target.bootstrap,
        "group.id": "bench",
        "isolation.level": "read_committed",
        "enable.auto.commit": False,
        "fetch.wait.max.ms": 500,
        "log_level": 0,
    }
    consumer = Consumer(config)
    try:
        yield consumer
    finally:
        consumer.close()


def end_of(target: Target, topic: str) -> int:
    """Return the end of a topic, 0 if it does not exist."""
    with reader(target) as consumer:
        return _end(consumer, topic)


def _end(consumer: Consumer, topic: str) -> int:
    try:
        return int(consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=10)[1])
    except KafkaException:
        return 0
