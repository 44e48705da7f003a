"""Measures change data capture from SQLite, against a reader of the change log that keeps nothing.

Each turn runs in a process of its own::

    python -m bench.capture CONTENDER BROKERS NAME FILE
"""

from __future__ import annotations

import gc
import itertools
import json
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from confluent_kafka import OFFSET_END, TopicPartition

from bench.report import Aim, Section, Table
from bench.run import Run, percentile
from bench.targets import ROOT, Target
from tidemill.connect.base.clients import Kafka
from tidemill.connect.cdc.definition import parse
from tidemill.connect.cdc.registry import source_class
from tidemill.connect.cdc.worker import Worker

CONTENDERS = ("worker", "change log alone")
UPDATES = 200
AIM_RATIO, AIM_P50_MS = 0.5, 50.0
COLUMNS = ["contender", "changes/s", "µs of processor time a change"]
NOTE = (
    "Inserted rows of five columns. The worker writes envelopes of about 330 B to the topic, "
    "exactly once; the reader of the change log fetches the same rows and throws them away."
)

_names = itertools.count()


def section(run: Run) -> Section:
    """Measure throughput in turns, and the latency from commit to topic."""
    count = max(20_000, run.options.megabytes * 1_000_000 // 500)
    with run.servers() as found, tempfile.TemporaryDirectory(dir=run.options.folder) as folder:
        target = found[0]
        results = run.take_turns(
            {each: _turn(each, target, Path(folder), count) for each in CONTENDERS}
        )
        late = _latencies(target, Path(folder) / "latency.db")
    table = Table("Capture from SQLite", COLUMNS, note=NOTE)
    for name, turns in results.items():
        medians = [statistics.median(each[key] for each in turns) for key in ("rate", "cpu_us")]
        table.rows.append([name, round(medians[0]), round(medians[1], 2)])
    ratio = statistics.median(
        ours["rate"] / alone["rate"]
        for ours, alone in zip(*(results[each] for each in CONTENDERS), strict=True)
    )
    p50, p99 = percentile(late, 50), percentile(late, 99)
    delays = Table("Latency from commit to a read_committed reader", ["p50 ms", "p99 ms"])
    delays.rows.append([round(p50, 1), round(p99, 1)])
    aims = [
        Aim(
            "capture from SQLite: changes/s, to the change log alone",
            round(ratio, 3),
            AIM_RATIO,
            "x",
            False,
        ),
        Aim("capture from SQLite: latency p50", round(p50, 1), AIM_P50_MS, "ms", True),
    ]
    return Section("capture", [table, delays], aims)


def _turn(
    contender: str, target: Target, folder: Path, count: int
) -> Callable[[], dict[str, float]]:
    def run() -> dict[str, float]:
        name = f"capture{next(_names)}"
        file = _database(folder / f"{name}.db")
        with Running(target.bootstrap, name, file):
            pass  # the triggers are there, and the position is stored
        with sqlite3.connect(file) as db:
            db.executemany(
                "INSERT INTO t VALUES (?, ?, ?, ?, ?)",
                ((i, f"name {i}", i / 3, i * 7, f"note {i}") for i in range(count)),
            )
        command = [sys.executable, "-m", "bench.capture", contender, target.bootstrap, name]
        done = subprocess.run(
            [*command, str(file)], stdout=subprocess.PIPE, text=True, cwd=ROOT, check=True
        )
        result: dict[str, float] = json.loads(done.stdout)
        return result

    return run


def _database(file: Path) -> Path:
    db = sqlite3.connect(file)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, name TEXT, share REAL, n INT, note TEXT)")
    db.close()
    return file


class Running:
    """A worker in a thread, from its start to its end. It stops when it has read ``until``."""

    def __init__(self, brokers: str, name: str, file: Path, until: int | None = None) -> None:
        self._definition = parse(
            {
                "name": name,
                "kind": "sqlite",
                "snapshot": "never",
                "database": {"path": str(file)},
            }
        )
        self._until = until
        self._stop = threading.Event()
        self._running = threading.Event()
        self.worker = Worker(
            self._definition, Kafka(brokers), self, source_class(self._definition.kind)
        )
        self.worker.on_running = lambda source: self._running.set()
        self._thread = threading.Thread(target=self.worker.run)

    def should_stop(self) -> bool:
        position = self.worker.state.position
        at = int(position["id"]) if position else 0
        done = self._until is not None and at >= self._until and not self._pending()
        return done or self._stop.is_set()

    def _pending(self) -> bool:
        return self.worker.writer is not None and self.worker.writer.pending > 0

    def snapshots(self, handled: dict[str, str]) -> list[tuple[str, str, str]]:
        return []

    def resnapshot(self, handled: dict[str, str]) -> str | None:
        return None

    def __enter__(self) -> Running:
        self._thread.start()
        if not self._running.wait(60):
            raise RuntimeError("the worker did not start")
        return self

    def join(self) -> None:
        self._thread.join()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def _latencies(target: Target, file: Path) -> list[float]:
    """Return the milliseconds from each commit until a reader has its record."""
    name = "capture-latency"
    _database(file)
    topic = f"{name}.main.t"
    late: list[float] = []
    with Running(target.bootstrap, name, file):
        db = sqlite3.connect(file, isolation_level=None)
        reader = Kafka(target.bootstrap).consumer(
            "bench", isolation_level="read_committed", fetch_wait_max_ms=500
        )
        reader.assign([TopicPartition(topic, 0, OFFSET_END)])
        reader.poll(1.0)
        for number in range(UPDATES):
            db.execute("INSERT INTO t (id) VALUES (?)", (number,))
            began = time.perf_counter()
            wanted = b'{"id":%d}' % number
            while (message := reader.poll(30)) is not None and message.key() != wanted:
                pass
            late.append(1000 * (time.perf_counter() - began))
        reader.close()
        db.close()
    return late


def main() -> None:
    contender, brokers, name, file = sys.argv[1:]
    db = sqlite3.connect(file)
    changes = f"_tidemill_{name}_changes"
    first, last = db.execute(f"SELECT min(id), max(id) FROM {changes}").fetchone()
    began, used = time.perf_counter(), time.process_time()
    if contender == "worker":
        gc.freeze()
        gc.set_threshold(50_000, 20, 50)
        with Running(brokers, name, Path(file), until=last) as running:
            began, used = time.perf_counter(), time.process_time()
            running.join()
    else:
        at = first - 1
        while at < last:
            query = f"SELECT * FROM {changes} WHERE id > ? ORDER BY id LIMIT 5000"
            at = db.execute(query, (at,)).fetchall()[-1][0]
    wall, cpu = time.perf_counter() - began, time.process_time() - used
    count = last - first
    print(json.dumps({"rate": count / wall, "cpu_us": 1e6 * cpu / count}))


if __name__ == "__main__":
    main()
