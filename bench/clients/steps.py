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
            found = small.load(contender, contender.topic(PARTITIONS), shape, args.seconds)
            broker.terminate()
        noted = json.loads(out.read_text())
        for key, value in machine.describe(folder).items():
            print(f"{key + ':':<13}{value}")
    print_section(Section("produce steps", [_steps(noted["steps"], found), *_seconds(noted, found)]))


def _steps(steps: dict[str, list[float]], found: dict[str, Any]) -> Table:
    table = Table("Steps of a request", ["step", "what", "p50 ms", "p99 ms"], note="All: librdkafka's.")
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


def _seconds(noted: dict[str, Any], found: dict[str, Any]) -> list[Table]:
    columns = ["second", "requests", "runs", "rounds", "round ms", "slowest ms", "sends"]
    table = Table("Each second of the broker", columns)
    seconds: dict[str, dict[str, float]] = noted["seconds"]
    first = min(map(int, seconds), default=0)
    for second, counted in sorted(seconds.items()):
        rounds = counted.get("rounds", 0)
        row: list[Cell] = [int(second) - first, *(counted.get(key, 0) for key in ("requests", "runs"))]
        row += [rounds, counted.get("journal s", 0) / rounds * 1e3 if rounds else None]
        row += [counted.get("slowest round s", 0) * 1e3, counted.get("sends", 0)]
        table.rows.append(row)
    client = Table("Each second of the clients", ["second", "acknowledged", "p50 ms", "p99 ms"])
    for second, (count, p50, p99) in enumerate(found.get("timeline", [])):
        client.rows.append([second, count, p50 * 1e3, p99 * 1e3])
    return [table, client]


if __name__ == "__main__":
    main()
