"""Measures latencies of queues beside RabbitMQ, with one process that publishes and consumes.

PerfTest's own latencies contain the start of its Java: in the first second a message takes up to
100 ms, with any broker. This client needs no compiler, allocates little, and looks at its sockets
between two messages.
"""

from __future__ import annotations

import gc
import itertools
import select
import socket
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

from bench import cpu
from bench.compare import Comparison, Figures
from bench.queues.brokers import AmqpBroker, contenders
from bench.report import Section
from bench.run import Run, percentile
from tidemill.amqp_client.connection import CHANNEL, AmqpClient
from tidemill.errors import TidemillError
from tidemill.protocols.amqp.codec import methods

RATES = (1_000, 5_000)
"""Messages a second."""
SIZE = 1000
DECLARED = 100
"""Queues that are declared, bound and deleted."""
PREFETCH = 200
WARM_UP_S = 1.0
DEADLINE_S = 60.0
RECEIVED_BYTES = 1 << 16

_FRAME = struct.Struct(">BHI")
_CONTENT = struct.Struct(">HHQH")
_TIME = struct.Struct(">d")
_METHOD, _BODY = 1, 3
_ACK = bytes((0, 60, 0, 80))
_PERSISTENT = 1 << 12
_names = itertools.count()


@dataclass
class Latencies:
    """Latencies in milliseconds: from publish to the consumer, and to the confirm."""

    delivered: list[float] = field(default_factory=list)
    confirmed: list[float] = field(default_factory=list)

    def figures(self) -> Figures:
        """Return p50, p99 and p99.9 of the deliveries, and p50 and p99 of the confirms."""
        return {
            **{f"p{at} ms": percentile(self.delivered, at) for at in (50, 99, 99.9)},
            **{f"confirm p{at}": percentile(self.confirmed, at) for at in (50, 99)},
        }


def section(run: Run) -> Section:
    """Measure all brokers at all rates."""
    compared = Comparison(
        run,
        "Queues: latency from publish to consumer",
        ["p50 ms", "p99 ms", "p99.9 ms", "confirm p50", "confirm p99"],
        about=("messages/s",),
        note=f"{SIZE} B, persistent, one queue, prefetch {PREFETCH}; one process publishes with "
        f"confirms and consumes with acks, after a warm-up of {WARM_UP_S:.0f} s.",
    )
    declared = Comparison(
        run,
        "Queues: declare, bind and delete durable queues, one after the other",
        ["declare ms", "bind ms", "delete ms", "CPU ms/queue"],
        about=(),
        note=f"{DECLARED} queues, one connection; means. CPU is the broker's for all three.",
    )
    seconds = 8.0 if run.options.quick else 20.0
    with contenders(run) as found:
        for rate in RATES:
            run.say(f"queues: latency at {rate:,} messages a second")
            compared.measure(
                [rate], {each.name: partial(_at, each, rate, seconds) for each in found}
            )
        run.say("queues: declarations")
        declared.measure((), {each.name: partial(_declare, each) for each in found})
    return Section("queues-latency", [compared.table(), declared.table()])


def _declare(broker: AmqpBroker) -> Figures:
    """Measure how long a client waits for declarations."""
    names = [f"declared-{next(_names)}" for _ in range(DECLARED)]
    before = cpu.seconds(broker.pid)
    took = {}
    with AmqpClient(broker.url) as client:
        arguments = {"x-queue-type": broker.kind}
        for method, named in (
            ("declare", {"durable": True, "arguments": arguments}),
            ("bind", {"exchange": "amq.topic", "routing_key": "key"}),
            ("delete", {}),
        ):
            began = time.perf_counter()
            for name in names:
                client.call(f"queue.{method}", queue=name, **named)
            took[f"{method} ms"] = (time.perf_counter() - began) / DECLARED * 1000
    return {**took, "CPU ms/queue": (cpu.seconds(broker.pid) - before) / DECLARED * 1000}


def _at(broker: AmqpBroker, rate: float, seconds: float) -> Figures:
    queue = f"latency-{next(_names)}"
    try:
        found = measure(broker.url, broker.kind, queue, rate=rate, seconds=seconds, size=SIZE)
    except TidemillError as error:
        raise RuntimeError(str(error)) from error
    return found.figures()


class _Frames:
    """The frames that arrive on a socket."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._data = bytearray()

    def read(self) -> Iterator[tuple[int, bytes]]:
        """Receive once; yield (type, payload) of each complete frame.

        Raises:
            ConnectionError: the broker closed the connection.
        """
        received = self.sock.recv(RECEIVED_BYTES)
        if not received:
            raise ConnectionError("the broker closed the connection")
        self._data += received
        at, end = 0, len(self._data)
        while end - at >= _FRAME.size + 1:
            kind, _, size = _FRAME.unpack_from(self._data, at)
            if end - at < _FRAME.size + size + 1:
                break
            yield kind, bytes(self._data[at + _FRAME.size : at + _FRAME.size + size])
            at += _FRAME.size + size + 1
        del self._data[:at]


def measure(
    url: str, kind: str, queue: str, *, rate: float, seconds: float, size: int
) -> Latencies:
    """Publish persistent messages at a rate to a new queue, and consume them.

    Args:
        kind: x-queue-type.
        rate: messages a second.
        size: bytes of a message.

    Raises:
        TimeoutError: messages did not arrive in time.
    """
    with AmqpClient(url) as publisher, AmqpClient(url) as consumer:
        arguments = {"x-queue-type": kind}
        consumer.call("queue.declare", queue=queue, durable=True, arguments=arguments)
        publisher.call("confirm.select")
        consumer.consume(queue, prefetch=PREFETCH)
        for client in (publisher, consumer):
            client._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        gc.disable()
        try:
            found = _Turn(publisher._sock, consumer._sock, queue, rate, size).run(seconds)
        finally:
            gc.enable()
    with AmqpClient(url) as client:
        client.call("queue.delete", queue=queue)
    return found


class _Turn:
    """One measurement."""

    def __init__(
        self, publisher: socket.socket, consumer: socket.socket, queue: str, rate: float, size: int
    ) -> None:
        self._publisher = _Frames(publisher)
        self._consumer = _Frames(consumer)
        self._interval = 1 / rate
        self._filler = bytes(size - _TIME.size)
        head = methods.encode(CHANNEL, "basic.publish", exchange="", routing_key=queue)
        header = _CONTENT.pack(60, 0, size, _PERSISTENT) + b"\x02"
        self._head = head + _frame(2, header)
        self._sent: list[float] = []
        self._confirmed = 0
        self._got = 0
        self._measured_from = 0.0
        self._found = Latencies()

    def run(self, seconds: float) -> Latencies:
        """Publish for the warm-up and for so many seconds."""
        began = time.perf_counter()
        self._measured_from = began + WARM_UP_S
        end = self._measured_from + seconds
        due = began
        while (now := time.perf_counter()) < end or self._got < len(self._sent):
            if now > end + DEADLINE_S:
                raise TimeoutError(f"{len(self._sent) - self._got} messages did not arrive")
            while due <= now < end:
                self._publish()
                due += self._interval
            self._look(max(0.0, due - time.perf_counter()) if now < end else 0.1)
        while self._confirmed < len(self._sent):
            self._look(DEADLINE_S)
        return self._found

    def _publish(self) -> None:
        now = time.perf_counter()
        self._sent.append(now)
        body = _frame(_BODY, _TIME.pack(now) + self._filler)
        self._publisher.sock.sendall(self._head + body)

    def _look(self, timeout_s: float) -> None:
        """Take what has arrived, or arrives within a time."""
        publisher, consumer = self._publisher, self._consumer
        readable, _, _ = select.select([publisher.sock, consumer.sock], [], [], timeout_s)
        now = time.perf_counter()
        if consumer.sock in readable:
            before = self._got
            for kind, payload in consumer.read():
                if kind == _BODY:
                    self._got += 1
                    self._note(self._found.delivered, _TIME.unpack_from(payload)[0], now)
            if self._got > before:
                ack = {"delivery_tag": self._got, "multiple": True}
                consumer.sock.sendall(methods.encode(CHANNEL, "basic.ack", **ack))
        if publisher.sock in readable:
            for kind, payload in publisher.read():
                if kind == _METHOD and payload.startswith(_ACK):
                    self._confirm(int.from_bytes(payload[4:12], "big"), payload[12] & 1 > 0, now)

    def _confirm(self, tag: int, multiple: bool, now: float) -> None:
        """Note a confirm. Brokers confirm the messages of one queue in order."""
        first = self._confirmed if multiple else tag - 1
        for number in range(first, tag):
            self._note(self._found.confirmed, self._sent[number], now)
        self._confirmed += tag - first

    def _note(self, latencies: list[float], sent: float, now: float) -> None:
        if sent >= self._measured_from:
            latencies.append((now - sent) * 1000)


def _frame(kind: int, payload: bytes) -> bytes:
    return _FRAME.pack(kind, CHANNEL, len(payload)) + payload + b"\xce"
