"""Measures change data capture: changes/s, latency from commit to topic, and snapshots.

Each is compared in the same run with the database alone: a client that reads the same changes and
throws them away, and COPY (or a plain export) into a file.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

from confluent_kafka import Consumer, KafkaException, TopicPartition
from tests.support.processes import ServerProcess

from bench.cdc.databases import PER_TRANSACTION, Database, postgresql, sqlite
from bench.cdc.debezium import DebeziumEngine
from bench.cdc.mariadb import mariadb_database
from bench.compare import Comparison, Figures, ratio_of, typical
from bench.programs import environment_of
from bench.report import Aim, Section
from bench.run import Run, percentile
from bench.targets import Target

CHANGES_NOTE = (
    "Inserts, 100 in a transaction, that are already in the database's log. The client reads the "
    "same stream and throws it away, without decoding it. In MariaDB each row has a statement of "
    "its own. The worker is a process of its own, on the machine of the "
    "broker, the database and this program. Debezium's engine (where DEBEZIUM_PYTHON has it) "
    "counts its records and writes nothing to Kafka. One Kafka transaction holds many changes, "
    "acks=all."
)
_TIMEOUT_S = 600.0
_CHANGES, _ROWS, _LATENCIES = "changes/s", "rows/s", ("p50 ms", "p99 ms")
RATIO, RATE, LATENCY_MS, EXPORT = 0.5, 40_000.0, 50.0, 0.2
_sources = itertools.count()


class Worker:
    """A source of one table, whose worker of one version writes to a broker.

    Args:
        run: The run.
        target: The broker.
        checkout: The version; None for this one.
        database: The database.
        table: The table.
        snapshot: ``never`` or ``initial``.
    """

    def __init__(
        self,
        run: Run,
        target: Target,
        checkout: Path | None,
        database: Database,
        table: str,
        snapshot: str,
    ) -> None:
        self.target = target
        self._env = environment_of(checkout)
        self._name = f"{database.name}-{next(_sources)}"
        self._log = run.options.folder / "worker.log"
        self.topic = f"{self._name}.{database.schema}.{table}"
        path = run.options.folder / f"{self._name}.toml"
        path.write_text(
            f'name = "{self._name}"\nkind = "{database.kind}"\ntables = ["{table}"]\n'
            f'managed = false\nsnapshot = "{snapshot}"\n[database]\n{database.definition}\n'
        )
        subprocess.run(
            self._command("create", str(path)),
            check=True,
            stdout=subprocess.DEVNULL,
            env={**os.environ, **self._env},
        )
        database.source = self._name

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Run ``tidemill source run``."""
        command = self._command("run", self._name)
        with ServerProcess("worker", command, self._log, env=self._env) as made:
            yield
            made.terminate(60)

    def _command(self, verb: str, what: str) -> list[str]:
        command = [sys.executable, "-m", "tidemill", "source", verb, what]
        return [*command, "--bootstrap-servers", self.target.bootstrap]

    def catch_up(self, database: Database) -> None:
        """Deliver what the table has, and stop."""
        with self.running():
            warm_up(self.target, database, self.topic)

    def rate(self, count: int) -> float:
        """Return the records/s of the worker, for ``count`` new records."""
        with self.running():
            return rate_of(self.target, self.topic, count)

    def latencies(self, database: Database, count: int) -> list[float]:
        """Return the seconds from commits to a reader of the topic."""
        with self.running():
            warm_up(self.target, database, self.topic)
            return latencies(self.target, database, self.topic, count)


def section(run: Run) -> Section:
    """Measure SQLite, and PostgreSQL and MariaDB if they are installed."""
    about = ("database",)
    changes = Comparison(
        run,
        "Changes from the database into the topic",
        [_CHANGES],
        about=about,
        base="client",
        by=[_CHANGES],
        note=CHANGES_NOTE,
    )
    latency = Comparison(
        run, "Latency from the commit to a reader of the topic", _LATENCIES, about=about
    )
    snapshot = Comparison(
        run, "Snapshot of a table", [_ROWS], about=about, base="export", by=[_ROWS]
    )
    result = Section("cdc")
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
                result.aims += _measure(run, targets, database, changes, latency, snapshot)
    for compared in (changes, latency, snapshot):
        result.tables.append(compared.table())
        result.aims += compared.regressions()
    return result


def _measure(
    run: Run,
    targets: list[Target],
    database: Database,
    changes: Comparison,
    latency: Comparison,
    snapshot: Comparison,
) -> list[Aim]:
    """Run all cases with one database."""
    # The worker writes up to 100,000 changes in one transaction: there must be several.
    count = 500_000 if run.options.quick else 2_000_000
    few, rows = (100, 100_000) if run.options.quick else (300, 1_000_000)

    def workers(table: str, kind: str) -> dict[str, Worker]:
        return {
            who if run.options.against else "worker": Worker(
                run, target, checkout, database, table, kind
            )
            for target, (who, checkout) in zip(targets, run.versions.items(), strict=True)
        }

    every, engine = workers("changes", "never"), database.debezium

    def prepare() -> None:
        run.say(f"cdc: {database.name}, {count} changes")
        for each in every.values():
            each.catch_up(database)
        database.mark()
        if engine is not None:
            engine.mark()
        insert(database, count)

    turns: dict[str, Callable[[], Figures]] = {
        "client": lambda: {_CHANGES: count / database.read_away(count)},
        **{who: partial(_rate, _CHANGES, each, count) for who, each in every.items()},
    }
    if engine is not None:
        turns["Debezium's engine"] = partial(_engine_rate, engine, count)
    found = changes.measure([database.name], before_each_round(prepare, turns))
    run.say(f"cdc: {database.name}, latency")
    delays: dict[str, Callable[[], Figures]] = {
        who: lambda each=each: _percentiles(each.latencies(database, few))  # type: ignore[misc]
        for who, each in every.items()
    }
    if alone := database.latencies(few):
        delays["client"] = partial(_percentiles, alone)
    waited = latency.measure([database.name], delays, rounds=1)
    run.say(f"cdc: {database.name}, snapshot of {rows} rows")
    database.fill(rows)
    shots: dict[str, Callable[[], Figures]] = {
        "export": lambda: {_ROWS: rows / database.export(run.options.folder / "export")},
        **{
            who: partial(_rate, _ROWS, each, rows)
            for who, each in workers("rows", "initial").items()
        },
    }
    shown = snapshot.measure([database.name], shots, rounds=1)
    return _aims(database.name, found, waited, shown) if "worker" in every else []


def _aims(name: str, *found: Mapping[str, list[Figures]]) -> list[Aim]:
    changes, latency, snapshot = found
    worker, rate = changes["worker"], typical(changes["worker"], _CHANGES)
    ratio = ratio_of(worker, changes["client"], _CHANGES)
    export = ratio_of(snapshot["worker"], snapshot["export"], _ROWS)
    assert rate is not None
    assert ratio is not None
    assert export is not None
    aims = [
        Aim(f"{name}: changes/s of the worker to a client's", ratio, RATIO, "", at_most=False),
        Aim(f"{name}: latency p50", latency["worker"][0]["p50 ms"], LATENCY_MS, "ms", True),
        Aim(f"{name}: snapshot to export", export, EXPORT, "", at_most=False),
    ]
    if name == "postgresql":
        aims.append(Aim(f"{name}: changes/s", rate, RATE, "", at_most=False))
    return aims


def before_each_round(
    prepare: Callable[[], None], turns: Mapping[str, Callable[[], Figures]]
) -> dict[str, Callable[[], Figures]]:
    """Return turns, of which the first of each round prepares what all of them read."""
    left: set[str] = set()

    def run(who: str) -> Figures:
        if who not in left:
            prepare()
            left.update(turns)
        left.discard(who)
        return turns[who]()

    return {who: partial(run, who) for who in turns}


def _rate(figure: str, worker: Worker, count: int) -> Figures:
    return {figure: worker.rate(count)}


def _engine_rate(engine: DebeziumEngine, count: int) -> Figures:
    rate = engine.rate(count)
    engine.drop()
    return {_CHANGES: rate}


def _percentiles(seconds: list[float]) -> Figures:
    return {"p50 ms": percentile(seconds, 50) * 1e3, "p99 ms": percentile(seconds, 99) * 1e3}


def insert(database: Database, count: int) -> None:
    """Insert rows into ``changes``, many in a transaction."""
    while count > 0:
        database.insert(min(count, PER_TRANSACTION))
        count -= PER_TRANSACTION


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
