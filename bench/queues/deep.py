"""Measures a queue with ten million waiting messages beside one with ten, without RabbitMQ.

The messages are written with the Kafka protocol, which is quick; the rates are those of one client
of AMQP (py-amqp), so they are the client's. The broker's processor time per message and its memory
are what must not depend on the depth.
"""

from __future__ import annotations

import time

import amqp
from tests.support.broker_process import BrokerProcess

from bench import cpu, machine
from bench.load import program
from bench.report import Aim, Section, Table
from bench.run import Run
from bench.targets import Target

WAITING = 10_000_000
MEASURED = 20_000
"""Messages that are published, and then consumed."""
BATCH = 100
KINDS: dict[str, dict[str, object]] = {
    "none": {},
    "x-message-ttl": {"x-message-ttl": 86_400_000},
    "x-max-length": {"x-max-length": 1 << 40},
    "x-max-length-bytes": {"x-max-length-bytes": 1 << 50},
    "x-max-priority=4": {"x-max-priority": 4},
}


def section(run: Run) -> Section:
    """Measure all kinds of queues; with --quick one without arguments and one with priorities."""
    table = Table(
        "Queues: ten million messages that wait",
        ["arguments", "waiting", "memory MB", "publish CPU µs", "consume CPU µs", "first ms"],
        note="12 B, one queue. CPU is the broker's per message. First: from basic.consume to the "
        "first message.",
    )
    kinds = ("none", "x-max-priority=4") if run.options.quick else tuple(KINDS)
    ratios = []
    with BrokerProcess(run.options.folder / "deep", fresh=True) as broker:
        target = Target("tidemill", broker.bootstrap, broker.pid)
        target.prepare()
        for kind in kinds:
            costs = []
            for waiting in (10, WAITING):
                run.say(f"queues: {kind}, {waiting:,} messages wait")
                queue = f"{kind.replace('=', '-')}-{waiting}"
                _declare(broker, queue, KINDS[kind])
                program("bulk", target, queue, count=waiting, size=12)
                published = _publish(broker, queue)
                consumed, first_ms = _consume(broker, queue)
                memory = machine.resident_mb(broker.pid)
                table.rows.append([kind, waiting, memory, published, consumed, first_ms])
                costs.append(published + consumed)
            ratios.append(costs[1] / costs[0])
    aim = Aim("queues: CPU per message, 10,000,000 waiting to 10", max(ratios), 1.2, "", True)
    return Section("queues-deep", [table], [aim])


def _connect(broker: BrokerProcess) -> amqp.Connection:
    connection = amqp.Connection(f"127.0.0.1:{broker.amqp_port}", heartbeat=0)
    connection.connect()
    return connection


def _declare(broker: BrokerProcess, queue: str, arguments: dict[str, object]) -> None:
    with _connect(broker) as connection:
        connection.channel().queue_declare(
            queue, durable=True, auto_delete=False, arguments=arguments
        )


def _publish(broker: BrokerProcess, queue: str) -> float:
    """Publish with confirms; return the broker's processor time per message in microseconds."""
    confirmed = 0

    def note(tag: int, multiple: bool) -> None:
        nonlocal confirmed
        confirmed = tag

    with _connect(broker) as connection:
        channel = connection.channel()
        channel.confirm_select()
        channel.events["basic_ack"].add(note)
        before = cpu.seconds(broker.pid)
        for number in range(MEASURED):
            message = amqp.Message(bytes(12), priority=number % 5)
            channel._basic_publish(message, routing_key=queue)  # does not wait for the confirm
            while number - confirmed > 4 * BATCH:
                connection.drain_events(timeout=60)
        while confirmed < MEASURED:
            connection.drain_events(timeout=60)
        return (cpu.seconds(broker.pid) - before) / MEASURED * 1e6


def _consume(broker: BrokerProcess, queue: str) -> tuple[float, float]:
    """Consume; return the broker's processor time per message in microseconds, and ``first``."""
    got = 0
    first_ms = 0.0

    def take(message: amqp.Message) -> None:
        nonlocal got, first_ms
        got += 1
        if got == 1:
            first_ms = (time.perf_counter() - began) * 1000
        if got % BATCH == 0:
            message.channel.basic_ack(message.delivery_tag, multiple=True)

    count = MEASURED // BATCH * BATCH
    with _connect(broker) as connection:
        channel = connection.channel()
        channel.basic_qos(0, 2 * BATCH, False)
        before, began = cpu.seconds(broker.pid), time.perf_counter()
        channel.basic_consume(queue, callback=take)
        while got < count:
            connection.drain_events(timeout=60)
        return (cpu.seconds(broker.pid) - before) / count * 1e6, first_ms
