"""Prints how long requests or messages are in each step inside of the broker::

    python -m bench.steps request --producers 50 --rate 20 --seconds 10
    python -m bench.steps message --rate 1000

A request is a produce request, from the socket to the answer. A second table has a row for each
second: what the broker did, and what the clients saw. A message goes from publish to consumer.
Must not know: the broker's inside; ``traced`` does.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.support.broker_process import BrokerProcess

from bench import load, machine
from bench.load import Case
from bench.queues import latency
from bench.report import Cell, Section, Table, print_section
from bench.run import percentile
from bench.targets import Target
from bench.traced import OUT, WHAT

REQUEST = {
    "append": "decode the request, check it, and write it to the log",
    "turn": "until the next turn of the event loop, in which requests are collected",
    "journal free": "wait for the round of the journal that is under way, and start the next one",
    "journal": "the journal's write and sync, and the report to the event loop",
    "release": "raise the high watermarks, make the answers",
    "answer": "until the next turn, and send the answers",
}
MESSAGE = REQUEST | {
    "append": "encode the batch and write it to the log",
    "turn": "until the next turn of the event loop, in which messages are collected",
    "confirm": "raise the high watermark, send the confirms",
    "dispatch": "until the next turn, choose the consumer",
    "deliver": "note the delivery in the log of acknowledgements, send the message",
}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["request", "message"])
    parser.add_argument("--producers", type=int, default=50, help="of requests")
    parser.add_argument("--rate", type=float, help="messages/s (1000), or those of a producer (20)")
    parser.add_argument("--seconds", type=float, default=10.0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tidemill-steps-") as name:
        folder = Path(name)
        out = folder / "steps.json"
        broker = BrokerProcess(
            folder / "broker",
            env={OUT: str(out), WHAT: args.what},
            command=(sys.executable, "-m", "bench.traced"),
        )
        clients = None
        with broker:
            with _scheduled(broker) as scheduled:
                if args.what == "message":
                    url = f"amqp://guest:guest@127.0.0.1:{broker.amqp_port}/%2F"
                    about = {"rate": args.rate or 1000, "seconds": args.seconds}
                    found = latency.measure(url, "classic", "steps", size=latency.SIZE, **about)
                    whole = [each / 1e3 for each in found.delivered]
                else:
                    rate = args.rate or 20
                    whole, clients = _requests(broker, args.producers, rate, args.seconds)
            broker.terminate()
        noted = json.loads(out.read_text())
        for key, value in machine.describe(folder).items():
            print(f"{key + ':':<13}{value}")
    tables = [_steps(MESSAGE if args.what == "message" else REQUEST, noted["steps"], whole)]
    if clients is not None:
        tables += [_seconds(noted["seconds"], scheduled), clients]
    print_section(Section("steps", tables))


def _requests(
    broker: BrokerProcess, producers: int, rate: float, seconds: float
) -> tuple[list[float], Table]:
    """Send produce requests; return the seconds of each, and what clients saw in each second."""
    target = Target("tidemill", broker.bootstrap, broker.pid)
    case = Case("librdkafka", "rate", 100, 12, connections=producers, rate=rate)
    found = load.at_a_rate(case, target, target.topic(case.partitions), seconds)
    acknowledged = [
        each for client in found for each in zip(client["at"], client["each"], strict=True)
    ]
    return [took for _, took in acknowledged], timeline(acknowledged)


@contextmanager
def _scheduled(broker: BrokerProcess) -> Iterator[dict[int, tuple[float, float]]]:
    """Note how the thread of the event loop was scheduled: second -> ran, waited for a processor.

    Both are seconds, which Linux counts (``/proc/PID/schedstat``).
    """
    found: dict[int, tuple[float, float]] = {}
    pid = broker.pid
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


def _steps(
    meaning: Mapping[str, str], steps: Mapping[str, list[float]], whole: Sequence[float]
) -> Table:
    table = Table("Steps", ["step", "what", "p50 ms", "p99 ms"], note="All: as the client sees it.")

    def add(step: str, what: str, times: Sequence[float]) -> None:
        table.rows.append([step, what, *(percentile(times, at) * 1e3 for at in (50, 99))])

    for step, times in steps.items():
        add(step, meaning[step], times)
    add("broker", "all of them", [sum(each) for each in zip(*steps.values(), strict=False)])
    add("all", "from the call to the acknowledgement, or from publish to consumer", whole)
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


def timeline(acknowledged: Sequence[tuple[float, float]]) -> Table:
    """Return for each second the acknowledged records, and p50 and p99 of their latencies.

    Args:
        acknowledged: When each was acknowledged, in seconds, and its latency.
    """
    table = Table("Each second of the clients", ["second", "acknowledged", "p50 ms", "p99 ms"])
    seconds: dict[int, list[float]] = defaultdict(list)
    for when, took in acknowledged:
        seconds[int(when)].append(took * 1e3)
    for second in range(max(seconds, default=-1) + 1):
        of = seconds[second]
        table.rows.append(
            [second, len(of), *(percentile(of, at) if of else 0.0 for at in (50, 99))]
        )
    return table


if __name__ == "__main__":
    main()
