"""Prints how long messages are in each step from publish to consumer, inside of the broker::

    python -m bench.queues.steps --rate 1000 --seconds 10

Must not know: the engine; ``traced`` does.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from tests.support.broker_process import BrokerProcess

from bench import machine
from bench.queues import latency
from bench.queues.traced import OUT
from bench.report import Section, Table, print_section
from bench.run import percentile

MEANING = {
    "turn": "until the next turn of the event loop, in which messages are collected",
    "append": "encode the batch and write it to the log",
    "journal free": "wait for the round of the journal that is under way, and start the next one",
    "journal": "the journal's write and sync, and the report to the event loop",
    "confirm": "raise the high watermark, send the confirms",
    "dispatch": "until the next turn, choose the consumer",
    "deliver": "note the delivery in the log of acknowledgements, send the message",
}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rate", type=int, default=1000, help="messages/s")
    parser.add_argument("--seconds", type=float, default=10.0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tidemill-steps-") as name:
        folder = Path(name)
        out = folder / "steps.json"
        broker = BrokerProcess(
            folder / "broker",
            env={OUT: str(out)},
            command=(sys.executable, "-m", "bench.queues.traced"),
        )
        with broker:
            url = f"amqp://guest:guest@127.0.0.1:{broker.amqp_port}/%2F"
            found = latency.measure(
                url, "classic", "steps", rate=args.rate, seconds=args.seconds, size=latency.SIZE
            )
            broker.terminate()
        steps = json.loads(out.read_text())
        for key, value in machine.describe(folder).items():
            print(f"{key + ':':<13}{value}")
    table = Table(
        f"Steps of a message, at {args.rate:,} messages a second",
        ["step", "what", "p50 ms", "p99 ms"],
        note="All: as the client measures it.",
    )
    for step, times in steps.items():
        row = [percentile([each * 1000 for each in times], percent) for percent in (50, 99)]
        table.rows.append([step, MEANING[step], *row])
    table.rows.append(["all", "from publish to consumer", *found.row()[:2]])
    print_section(Section("queue steps", [table]))


if __name__ == "__main__":
    main()
