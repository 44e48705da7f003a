"""Prints how long produce requests are in each step from the socket to the answer, in the broker::

    python -m bench.clients.steps --producers 50 --rate 20 --seconds 10

A second table has a row for each second: what the broker did, and what the clients saw.
Must not know: the broker's inside; ``traced`` does.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.broker_process import BrokerProcess

from bench import machine
from bench.clients import small
from bench.clients.contenders import Contender
from bench.clients.small import PARTITIONS, Shape
from bench.clients.traced import OUT
from bench.report import Cell, Section, Table, print_section
from bench.run import percentile
from bench.targets import Target

MEANING = {
    "append": "decode the request, check it, and write it to the log",
    "turn": "until the next turn of the event loop, in which requests are collected",
    "journal free": "wait for the round of the journal that is under way, and start the next one",
    "journal": "the journal's write and sync, and the report to the event loop",
    "release": "raise the high watermarks, make the answers",
    "answer": "until the next turn, and send the answers",
}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--producers", type=int, default=50)
    parser.add_argument("--rate", type=float, default=20, help="records/s of each producer")
    parser.add_argument("--seconds", type=float, default=10.0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tidemill-steps-") as name:
        folder = Path(name)
        out = folder / "steps.json"
        broker = BrokerProcess(
            folder / "broker",
            env={OUT: str(out)},
            command=(sys.executable, "-m", "bench.clients.traced"),
        )
        with broker:
            contender = Contender("tidemill", Target("tidemill", broker.bootstrap, broker.pid))
            shape = Shape("", args.producers, args.rate, "all")
            topic = contender.topic(PARTITIONS)
            with _scheduled(broker.pid) as scheduled:
                found = small.load(contender, topic, shape, args.seconds)
            broker.terminate()
        noted = json.loads(out.read_text())
        for key, value in machine.describe(folder).items():
            print(f"{key + ':':<13}{value}")
    tables = [_steps(noted["steps"], found), _seconds(noted["seconds"], scheduled)]
    print_section(Section("produce steps", [*tables, _clients(found)]))


@contextmanager
def _scheduled(pid: int) -> Iterator[dict[int, tuple[float, float]]]:
    """Note how the thread of the event loop was scheduled: second -> ran, waited for a processor.

    Both are seconds, which Linux counts (``/proc/PID/schedstat``).
    """
    found: dict[int, tuple[float, float]] = {}
    is_over = threading.Event()

    def sample() -> None:
        before = _schedstat(pid)
        while not is_over.wait(1 - time.time() % 1):
            now = _schedstat(pid)
            found[int(time.time()) - 1] = now[0] - before[0], now[1] - before[1]
            before = now

    sampler = threading.Thread(target=sample)
    sampler.start()
    try:
        yield found
    finally:
        is_over.set()
        sampler.join()


def _schedstat(pid: int) -> tuple[float, float]:
    ran, waited, _ = Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()
    return int(ran) / 1e9, int(waited) / 1e9


def _steps(steps: dict[str, list[float]], found: dict[str, Any]) -> Table:
    table = Table(
        "Steps of a request", ["step", "what", "p50 ms", "p99 ms"], note="All: librdkafka's."
    )
    for step, times in steps.items():
        row = [percentile([each * 1e3 for each in times], percent) for percent in (50, 99)]
        table.rows.append([step, MEANING[step], *row])
    whole = [sum(each) * 1e3 for each in zip(*steps.values(), strict=False)]
    table.rows.append(
        ["broker", "all of them", *(percentile(whole, percent) for percent in (50, 99))]
    )
    table.rows.append(
        ["all", "from the call to the acknowledgement", found["p50"] * 1e3, found["p99"] * 1e3]
    )
    return table


def _seconds(
    noted: dict[str, dict[str, float]], scheduled: dict[int, tuple[float, float]]
) -> Table:
    columns = ["second", "requests", "runs", "rounds", "round ms", "slowest ms", "sends"]
    columns += ["loop ran s", "loop waited s"]
    note = (
        "Runs: requests of one connection that were handled together. Rounds: of the journal. "
        "Waited: the thread of the event loop had work, and no processor."
    )
    table = Table("Each second of the broker", columns, note=note)
    first = min(map(int, noted), default=0)
    for second, counted in sorted(noted.items()):
        rounds = counted.get("rounds", 0)
        row: list[Cell] = [int(second) - first]
        row += [counted.get(key, 0) for key in ("requests", "runs", "rounds")]
        row += [counted.get("journal s", 0) / rounds * 1e3 if rounds else None]
        row += [counted.get("slowest round s", 0) * 1e3, counted.get("sends", 0)]
        table.rows.append([*row, *scheduled.get(int(second), (None, None))])
    return table


def _clients(found: dict[str, Any]) -> Table:
    table = Table("Each second of the clients", ["second", "acknowledged", "p50 ms", "p99 ms"])
    for second, (count, p50, p99) in enumerate(found.get("timeline", [])):
        table.rows.append([second, count, p50 * 1e3, p99 * 1e3])
    return table


if __name__ == "__main__":
    main()
