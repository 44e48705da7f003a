"""Measures queues beside RabbitMQ: throughput with confirms and acks, memory, backlogs."""

from __future__ import annotations

import contextlib
import itertools
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from bench import cpu
from bench.connector import ConnectorNotFoundError
from bench.queues import brokers, perf_test
from bench.queues.brokers import AmqpBroker
from bench.queues.perf_test import Rates
from bench.report import Aim, Cell, Section, Table
from bench.run import Run

CONFIRMS = 200
"""Messages of a producer that are not confirmed yet."""
_names = itertools.count()

Turn = Callable[[], "tuple[Rates, float] | None"]


@dataclass(frozen=True)
class Contender:
    """A broker with one kind of queue."""

    name: str
    broker: AmqpBroker
    kind: str

    def queue_arguments(self, queues: int) -> list[str]:
        """Return PerfTest's arguments for new durable queues."""
        number = next(_names)
        named = ["--auto-delete", "false", "--flag", "persistent", "--queue-args"]
        named.append(f"x-queue-type={self.kind}")
        if queues == 1:
            return [*named, "--queue", f"bench-{number}"]
        pattern = ["--queue-pattern", f"bench-{number}-%d", "--queue-pattern-from", "1"]
        return [*named, *pattern, "--queue-pattern-to", str(queues)]


def section(run: Run) -> Section:
    """Measure all of it. Without PerfTest or RabbitMQ, that part is left out with a note."""
    try:
        perf_test.jars()
    except (ConnectorNotFoundError, RuntimeError) as error:
        print(f"note: no PerfTest, so queues are left out: {error}", file=sys.stderr)
        return Section("queues")
    with contenders(run) as found:
        idle = {each.name: each.broker.memory_mb() for each in found}
        throughput, ratios = _throughput(run, found)
        backlog = _backlog(run, found, idle)
    aims = []
    if ratios:
        worst = min(ratios)
        aims.append(Aim("queues: messages/s, worst case, to RabbitMQ", worst, 1.0, "", False))
    if "rabbitmq classic" in idle:
        share = idle["tidemill"] / idle["rabbitmq classic"]
        aims.append(Aim("queues: memory when idle, to RabbitMQ", share, 0.5, "", True))
    return Section("queues", [throughput, backlog], aims)


@contextlib.contextmanager
def contenders(run: Run) -> Iterator[list[Contender]]:
    """Start the brokers."""
    folder = run.options.folder
    with brokers.tidemill(folder) as ours, brokers.rabbitmq(folder) as theirs:
        found = [Contender("tidemill", ours, "classic")]
        if theirs is None:
            run.say("note: rabbitmq-server is not installed, so there is nothing to compare with")
        else:
            found.append(Contender("rabbitmq classic", theirs, "classic"))
            found.append(Contender("rabbitmq quorum", theirs, "quorum"))
        yield found


def _turn(
    run: Run, contender: Contender, seconds: int, *arguments: str
) -> tuple[Rates, float] | None:
    """Return the rates and the broker's processor time, or None if PerfTest failed."""
    before = cpu.seconds(contender.broker.pid)
    try:
        rates = perf_test.run(contender.broker.url, *arguments, seconds=seconds)
    except (RuntimeError, subprocess.SubprocessError) as error:
        run.say(f"note: a turn of {contender.name} has failed: {error}")
        return None
    return rates, cpu.seconds(contender.broker.pid) - before


def _throughput(run: Run, found: list[Contender]) -> tuple[Table, list[float]]:
    table = Table(
        "Queues: publish with confirms and consume with acks at the same time",
        ["message", "queues", "prefetch", "who", "msg/s", "CPU µs/msg", "to rabbitmq classic"],
        note=f"RabbitMQ's PerfTest, persistent messages, {CONFIRMS} unconfirmed per producer; a "
        "producer and a consumer for each queue. CPU is the broker's.",
    )
    ratios: list[float] = []
    seconds = 6 if run.options.quick else 15
    sizes = (12, 1000)
    for size, queues, prefetch in itertools.product(sizes, (1, 10), (1, 200)):
        run.say(f"queues: {size} B, {queues} queue(s), prefetch {prefetch}")
        load = ["--size", str(size), "--qos", str(prefetch), "--confirm", str(CONFIRMS)]
        load += ["--producers", str(queues), "--consumers", str(queues)]
        turns: dict[str, Turn] = {
            each.name: partial(_turn, run, each, seconds, *load, *each.queue_arguments(queues))
            for each in found
        }
        results = {
            who: [each for each in turn if each is not None]
            for who, turn in run.take_turns(turns).items()
        }
        typical = {
            who: statistics.median(rates.received for rates, _ in each)
            for who, each in results.items()
            if each
        }
        base = typical.get("rabbitmq classic")
        for who, each in results.items():
            ratio = typical[who] / base if base and who in typical else None
            if who == "tidemill" and ratio is not None:
                ratios.append(ratio)
            table.rows.append([f"{size} B", queues, prefetch, who, *_cells(each, seconds), ratio])
    return table, ratios


def _cells(found: list[tuple[Rates, float]], seconds: int) -> list[Cell]:
    if not found:
        return [None, None]
    return [
        statistics.median(rates.received for rates, _ in found),
        statistics.median(
            spent / (rates.received * seconds) * 1e6 if rates.received else 0.0
            for rates, spent in found
        ),
    ]


def _backlog(run: Run, found: list[Contender], idle: dict[str, float]) -> Table:
    count = 1_000_000 if run.options.quick else 10_000_000
    table = Table(
        "Queues: messages that wait",
        ["who", "waiting", "memory MB", "publish msg/s", "consume msg/s"],
        note="12 B, persistent, one queue. Memory is the broker's when they wait; 0 is after the "
        "start. The rates are with so many messages waiting, for a few seconds.",
    )
    for each in found:
        table.rows.append([each.name, 0, idle[each.name], None, None])
        for waiting in (10, count):
            run.say(f"queues: {each.name}, {waiting:,} messages wait")
            table.rows.append([each.name, waiting, *_waiting(run, each, waiting)])
    return table


def _waiting(run: Run, contender: Contender, waiting: int) -> list[Cell]:
    """Return memory with so many messages waiting, and the rates to and from the queue."""
    queue = contender.queue_arguments(1)
    fill = ["--size", "12", "--confirm", "1000", "--consumers", "0", "--pmessages", str(waiting)]
    filled = _turn(run, contender, max(30, waiting // 10_000), *fill, *queue)
    memory = contender.broker.memory_mb()
    more = ["--size", "12", "--confirm", str(CONFIRMS), "--consumers", "0"]
    published = _turn(run, contender, 5, *more, *queue)
    less = ["--producers", "0", "--consumers", "1", "--qos", "200"]
    consumed = _turn(run, contender, 5, *less, *queue)
    return [
        memory if filled else None,
        published[0].sent if published else None,
        consumed[0].received if consumed else None,
    ]
