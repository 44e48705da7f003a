"""Measures queues beside RabbitMQ: throughput with confirms and acks, memory, backlogs."""

from __future__ import annotations

import itertools
import subprocess
import sys
from functools import partial

from bench import cpu
from bench.compare import Comparison, Figures, ratio_of
from bench.connector import ConnectorNotFoundError
from bench.queues import perf_test
from bench.queues.brokers import AmqpBroker, contenders
from bench.report import Aim, Cell, Section, Table
from bench.run import Run

CONFIRMS = 200
"""Messages of a producer that are not confirmed yet."""


def section(run: Run) -> Section:
    """Measure all of it. Without PerfTest or RabbitMQ, that part is left out with a note."""
    try:
        perf_test.jars()
    except (ConnectorNotFoundError, RuntimeError) as error:
        print(f"note: no PerfTest, so queues are left out: {error}", file=sys.stderr)
        return Section("queues")
    with contenders(run) as found:
        idle = {each.name: each.memory_mb() for each in found}
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


def _turn(broker: AmqpBroker, seconds: int, *arguments: str) -> Figures:
    """Return the rates, and the broker's processor time for each message."""
    before = cpu.seconds(broker.pid)
    rates = perf_test.run(broker.url, *arguments, seconds=seconds)
    spent = cpu.seconds(broker.pid) - before
    moved = rates.received * seconds
    return {
        "msg/s": rates.received,
        "sent/s": rates.sent,
        "CPU µs/msg": spent / moved * 1e6 if moved else 0.0,
    }


def _throughput(run: Run, found: list[AmqpBroker]) -> tuple[Table, list[float]]:
    compared = Comparison(
        run,
        "Queues: publish with confirms and consume with acks at the same time",
        ["msg/s", "CPU µs/msg"],
        about=("message", "queues", "prefetch"),
        base="rabbitmq classic",
        by=["msg/s"],
        note=f"RabbitMQ's PerfTest, persistent messages, {CONFIRMS} unconfirmed per producer; a "
        "producer and a consumer for each queue. CPU is the broker's.",
    )
    ratios: list[float] = []
    seconds = 6 if run.options.quick else 15
    for size, queues, prefetch in itertools.product((12, 1000), (1, 10), (1, 200)):
        run.say(f"queues: {size} B, {queues} queue(s), prefetch {prefetch}")
        load = ["--size", str(size), "--qos", str(prefetch), "--confirm", str(CONFIRMS)]
        load += ["--producers", str(queues), "--consumers", str(queues)]
        turns = {
            each.name: partial(_turn, each, seconds, *load, *each.queue_arguments(queues))
            for each in found
        }
        results = compared.measure([f"{size} B", queues, prefetch], turns)
        theirs = results.get("rabbitmq classic", ())
        if (ratio := ratio_of(results["tidemill"], theirs, "msg/s")) is not None:
            ratios.append(ratio)
    return compared.table(), ratios


def _backlog(run: Run, found: list[AmqpBroker], idle: dict[str, float]) -> Table:
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
            try:
                cells = _waiting(each, waiting)
            except (RuntimeError, subprocess.SubprocessError) as error:
                run.say(f"note: {each.name} has failed: {error}")
                cells = [None] * 3
            table.rows.append([each.name, waiting, *cells])
    return table


def _waiting(broker: AmqpBroker, waiting: int) -> list[Cell]:
    """Return memory with so many messages waiting, and the rates to and from the queue."""
    queue = broker.queue_arguments(1)
    fill = ["--size", "12", "--confirm", "1000", "--consumers", "0", "--pmessages", str(waiting)]
    _turn(broker, max(30, waiting // 10_000), *fill, *queue)
    memory = broker.memory_mb()
    more = ["--size", "12", "--confirm", str(CONFIRMS), "--consumers", "0"]
    published = _turn(broker, 5, *more, *queue)
    less = ["--producers", "0", "--consumers", "1", "--qos", "200"]
    return [memory, published["sent/s"], _turn(broker, 5, *less, *queue)["msg/s"]]
