"""Measures the cost of transactions: the same idempotent producer with and without them.

The client is confluent-kafka. Throughput is a ratio to the producer without transactions in the
same round. The records are read back with read_committed.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from bench import librdkafka, machine
from bench.report import Cell, Section, Table
from bench.run import Run, percentile, ratio
from bench.targets import Target

SIZE = 1024
PLAIN, SMALL, LARGE = 0, 100, 10_000
"""Records in a transaction; 0 for none."""
MOST_TRANSACTIONS = 500
"""Most transactions in a turn, because a small one takes as long as a large one."""
COLUMNS = [
    *("records a transaction", "tidemill records/s", "to plain", "commit p50 ms", "commit p99 ms"),
    *("kafka records/s", "kafka to plain", "kafka commit p50 ms", "kafka commit p99 ms"),
    "tidemill/kafka",
]
NOTE = (
    "confluent-kafka, enable.idempotence, acks all, one partition, 1 KB records; each transaction "
    "begins when the one before is committed. A commit's time begins when its records are "
    "delivered. tidemill answers when decision and markers are on disk; Apache Kafka when the "
    "decision is written, without a sync."
)

_topic_numbers = itertools.count()


@dataclass(frozen=True)
class Took:
    """The times of one turn.

    Attributes:
        seconds_per_record: Mean time of a record.
        commits: Time of each commit in seconds.
    """

    seconds_per_record: float
    commits: list[float]


def section(run: Run) -> Section:
    """Measure no transaction, large ones and small ones."""
    table = Table("Transactions", COLUMNS, note=NOTE)
    with run.servers() as targets:
        for target in targets:
            librdkafka.prepare(target)
            wrote(target, LARGE, _count(run, PLAIN))  # a warm-up
        contenders: dict[str, Callable[[], Took]] = {
            f"{target.name} {each}": partial(wrote, target, each, _count(run, each))
            for target in targets
            for each in (PLAIN, LARGE, SMALL)
        }
        run.say("transactions: none, 10,000 records each, 100 records each")
        took = run.take_turns(contenders)
    for each in (PLAIN, LARGE, SMALL):
        table.rows.append(_row(each, took))
    return Section("transactions", [table])


def _count(run: Run, each: int) -> int:
    """Return the number of records in a turn."""
    count = run.options.megabytes * 1_000_000 // SIZE
    return min(count, each * MOST_TRANSACTIONS) if each else count


def wrote(target: Target, each: int, count: int) -> Took:
    """Write a new topic and read it back."""
    topic = f"transactions-{next(_topic_numbers)}"
    target.create_topic(topic, 1)
    machine.settle()
    wrote = librdkafka.client("transact", target, topic, count=count, size=SIZE, each=each)
    read = librdkafka.client("consume", target, topic, count=count)
    if read["bytes"] != count * SIZE:
        raise RuntimeError(f"{count * SIZE} bytes committed, {read['bytes']} read")
    return Took(wrote["seconds"] / count, wrote["commits"])


def _row(each: int, took: dict[str, list[Took]]) -> list[Cell]:
    row: list[Cell] = [f"{each:,}" if each else "none"]
    for name in ("tidemill", "kafka"):
        turns, plain = took.get(f"{name} {each}"), took.get(f"{name} {PLAIN}")
        if turns is None or plain is None:
            row += [None] * 4
            continue
        seconds = _seconds(turns)
        commits = [commit * 1e3 for turn in turns for commit in turn.commits]
        row += [1 / statistics.median(seconds), ratio(_seconds(plain), seconds)]
        row += [percentile(commits, p) if commits else None for p in (50, 99)]
    kafka = took.get(f"kafka {each}")
    row.append(ratio(_seconds(kafka), _seconds(took[f"tidemill {each}"])) if kafka else None)
    return row


def _seconds(turns: list[Took]) -> list[float]:
    return [turn.seconds_per_record for turn in turns]
