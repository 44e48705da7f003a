"""A broker that works for hours needs no more memory, files or threads than at first."""

from __future__ import annotations

import json
import os
import signal
import statistics
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

pytest.importorskip("confluent_kafka", minversion="2.16", reason="the load has ShareConsumers")

from tests.soak import inspected
from tests.soak.load import Load
from tests.support import effort
from tests.support.broker_process import BrokerProcess
from tests.support.processes import poll_until

ROOT = Path(__file__).parents[2]
MINUTES = effort.rounds("SOAK_MINUTES", normal=2, nightly=120)
EVERY_S = 5.0
MOST_GROWTH = {"rss": 8.0, "files": 40, "threads": 4}
"""After the first third of the time: in MB, descriptors and threads. Memory that is free and not
returned to the system grows for a while, until the largest burst has come."""
SETTINGS = {
    # What is kept for days by default is kept for a minute: so it has to be constant, too.
    "groups.offsets_retention_minutes": "1",
    "transactions.id_expiration_ms": "60000",
    "log.producer_id_expiration_ms": "60000",
    "log.retention_check_ms": "5000",
    "log.cleaner_backoff_ms": "2000",
}


@dataclass(frozen=True)
class Sample:
    """What a process has at a time."""

    minutes: float
    rss: float
    """In MB."""
    files: int
    threads: int


def take(pid: int, began: float) -> Sample:
    status = dict(
        line.split(":\t", 1)
        for line in Path(f"/proc/{pid}/status").read_text().splitlines()
        if ":\t" in line
    )
    return Sample(
        (time.monotonic() - began) / 60,
        int(status["VmRSS"].split()[0]) / 1024,
        len(os.listdir(f"/proc/{pid}/fd")),
        int(status["Threads"]),
    )


def files_of(pid: int) -> dict[str, int]:
    """Return how many descriptors there are of each kind: socket, .log, .index..."""
    kinds: Counter[str] = Counter()
    for each in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = os.readlink(each)
        except OSError:
            continue
        kinds[target.partition(":")[0] if ":" in target else Path(target).suffix or target] += 1
    return dict(kinds.most_common())


class Inspected:
    """A broker under load whose memory is looked into."""

    def __init__(self, broker: BrokerProcess, report: Path) -> None:
        self.broker = broker
        self._report = report
        self.began = time.monotonic()

    def sample(self) -> Sample:
        return take(self.broker.pid, self.began)

    def report(self) -> dict[str, object]:
        """Return what is in the broker's memory, and which files it has open."""
        self._report.unlink(missing_ok=True)
        os.kill(self.broker.pid, signal.SIGUSR1)
        poll_until(self._report.exists, 60, "the report")
        return {**json.loads(self._report.read_text()), "files": files_of(self.broker.pid)}


def grown(before: dict[str, object], after: dict[str, object]) -> str:
    """Return what there is more of, the most first."""
    lines = []
    for key in (
        "garbage",
        "types",
        "elements",
        "files",
        "lines",
        "malloc",
        "mapped",
        "pymalloc",
        "threads",
    ):
        old, new = before.get(key, {}), after.get(key, {})
        assert isinstance(old, dict)
        assert isinstance(new, dict)

        def count(values: dict[str, object], name: str) -> int:
            value = values.get(name, 0)
            return value[0] if isinstance(value, list) else value  # type: ignore[return-value]

        more = Counter({name: count(new, name) - count(old, name) for name in {*old, *new}})
        lines += [f"{key}: {name}: {n:+}" for name, n in more.most_common(25) if n > 0]
    return "\n".join(lines)


def middle(samples: list[Sample], name: str) -> float:
    """Return the median of a part of the samples: one of them can be in the middle of a burst."""
    return float(statistics.median(getattr(each, name) for each in samples))


@pytest.mark.nightly
@pytest.mark.timeout(0)
def test_memory_files_and_threads_stay_the_same_for_hours(tmp_path: Path) -> None:
    report, series = tmp_path / "report.json", tmp_path / "series.csv"
    env = {inspected.REPORT: str(report), "PYTHONPATH": str(ROOT)}
    command = (sys.executable, "-m", "tests.soak.inspected")
    with BrokerProcess(tmp_path, settings=SETTINGS, env=env, command=command, fresh=True) as broker:
        load, seen = Load(broker.bootstrap, broker.amqp_port), Inspected(broker, report)
        load.start()
        samples: list[Sample] = []
        before: dict[str, object] = {}
        while (now := seen.sample()).minutes < MINUTES:
            samples.append(now)
            with series.open("a") as file:
                print(f"{now.minutes:.2f},{now.rss:.1f},{now.files},{now.threads}", file=file)
            load.check()
            if not before and now.minutes > MINUTES / 3:
                before = seen.report()
            time.sleep(EVERY_S)  # between two samples
        after = seen.report()
        load.stop()
        assert all(load.done.values()), load.done
        print(load.done)
        warm = [each for each in samples if each.minutes > MINUTES / 3]
        part = max(len(warm) // 8, 1)
        for name, bound in MOST_GROWTH.items():
            first, last = middle(warm[:part], name), middle(warm[-part:], name)
            print(f"{name}: {first:.1f}, then {last:.1f}")
            assert last - first < bound, f"{name}\n{grown(before, after)}"
        assert "Traceback" not in broker.log(10_000_000)
