"""Measures webhooks that go out: deliveries/s, and the time from an event to its webhook.

Beside it, in turns, runs the loop that a program would write: aiohttp posts the same values to the
same receiver, with as many connections, unsigned and without retries, records or positions.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from confluent_kafka import Producer
from tests.support.ports import reserve_port
from tests.support.processes import ServerProcess, poll_until

from bench import cpu, programs
from bench.compare import Comparison, Figures, ratio_of, typical
from bench.report import Aim, Section
from bench.run import Run, percentile
from bench.targets import Target, tidemill

CONNECTIONS = 16
RATIO, LATENCY_MS = 0.6, 20.0
_SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
_RATE, _CPU = "posts/s", "CPU µs/post"
_POLL_S = 0.1
_numbers = itertools.count()
NOTE = (
    f"{CONNECTIONS} connections, records of 200 bytes with 1,000 keys, one partition. The receiver "
    "does nothing, in a process of its own. Ours are signed, in order per key, recorded and "
    "committed. CPU is that of the process that sends."
)


class _Receiver:
    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}/"

    def seen(self) -> tuple[int, float]:
        """Return the number of posts, and when the last one came."""
        with urllib.request.urlopen(f"{self.url}count") as answer:
            count, at = json.load(answer)
        return count, at

    def times(self) -> dict[str, float]:
        """Return when the last thousand posts came, by the start of their body."""
        with urllib.request.urlopen(f"{self.url}times") as answer:
            return {text: at for at, text in json.load(answer)}


def section(run: Run) -> Section:
    """Measure all of it."""
    compared = Comparison(
        run,
        "Webhooks out: deliveries",
        [_RATE, _CPU],
        about=("records",),
        base="aiohttp alone",
        by=[_RATE, _CPU],
        note=NOTE,
    )
    latency = Comparison(
        run, "Webhooks out: from an event to its webhook", ["p50 ms", "p99 ms"], about=("load",)
    )
    count = 20_000 if run.options.quick else 60_000
    with tidemill(run.options.folder) as target, _receiver(run) as receiver:
        topic = _fill(target, count)
        run.say(f"http: {count} deliveries")
        found = compared.measure(
            [count],
            {
                "aiohttp alone": partial(_bare, target, topic, receiver),
                "tidemill": partial(_deliver, run, target, topic, receiver, count),
            },
        )
        waited = latency.measure(
            ["one at a time"],
            {"tidemill": partial(_latency, run, target, receiver, 200)},
            rounds=1,
        )
    ratio = ratio_of(found["tidemill"], found["aiohttp alone"], _RATE)
    p50 = typical(waited["tidemill"], "p50 ms")
    assert ratio is not None
    assert p50 is not None
    aims = [
        Aim("webhooks out: deliveries/s to aiohttp alone", ratio, RATIO, "", at_most=False),
        Aim("webhooks out: event to webhook, p50", p50, LATENCY_MS, "ms", at_most=True),
    ]
    return Section("http-deliveries", [compared.table(), latency.table()], aims)


@contextmanager
def _receiver(run: Run) -> Iterator[_Receiver]:
    port = reserve_port()
    process = programs.start("bench.http.receiver", port)
    assert process.stdout is not None
    process.stdout.readline()
    try:
        yield _Receiver(port)
    finally:
        process.kill()
        process.wait()


def _fill(target: Target, count: int) -> str:
    topic = f"deliveries-{next(_numbers)}"
    target.create_topic(topic, 1)
    producer = Producer({"bootstrap.servers": target.bootstrap, "linger.ms": 5})
    for number in range(count):
        value = b'{"type":"order.paid","number":%d,"text":"%s"}' % (number, b"x" * 150)
        producer.produce(topic, value, b"k%d" % (number % 1000))
        if number % 1000 == 0:
            producer.poll(0)
    producer.flush()
    return topic


def _bare(target: Target, topic: str, receiver: _Receiver) -> Figures:
    ((rate, cpu_us),) = programs.lines(
        "bench.http.bare", target.bootstrap, topic, receiver.url, CONNECTIONS
    )
    return {_RATE: rate, _CPU: cpu_us}


@contextmanager
def _worker(run: Run, target: Target, topic: str, receiver: _Receiver) -> Iterator[ServerProcess]:
    name = f"bench{next(_numbers)}"
    path = run.options.folder / f"{name}.toml"
    path.write_text(
        f'name = "{name}"\ntopic = "{topic}"\nurl = "{receiver.url}"\nmanaged = false\n'
        'secrets = ["${env:BENCH_WEBHOOK_SECRET}"]\nstart_at = "beginning"\n'
        f"allow_private = true\nconcurrency = {CONNECTIONS}\n"
    )
    env = {**os.environ, "BENCH_WEBHOOK_SECRET": _SECRET}
    tidemill_webhook = [sys.executable, "-m", "tidemill", "webhook"]
    create = [*tidemill_webhook, "create", str(path), "-b", target.bootstrap]
    subprocess.run(create, check=True, stdout=subprocess.DEVNULL)
    command = [*tidemill_webhook, "run", name, "-b", target.bootstrap]
    with ServerProcess("worker", command, run.options.folder / "worker.log", env=env) as made:
        yield made
        made.terminate(60)


def _deliver(run: Run, target: Target, topic: str, receiver: _Receiver, count: int) -> Figures:
    before, _ = receiver.seen()
    with _worker(run, target, topic, receiver) as worker:
        poll_until(lambda: receiver.seen()[0] > before, 60, "the first post")
        (first, began), spent = receiver.seen(), cpu.seconds(worker.pid)
        # Seldom: what asks takes processor time from what is measured.
        poll_until(lambda: receiver.seen()[0] >= before + count, 600, "all posts", _POLL_S)
        seen, ended = receiver.seen()
        left = seen - first
        return {
            _RATE: left / (ended - began),
            _CPU: (cpu.seconds(worker.pid) - spent) / left * 1e6,
        }


def _latency(run: Run, target: Target, receiver: _Receiver, count: int) -> Figures:
    topic = f"latency-{next(_numbers)}"
    target.create_topic(topic, 1)
    producer = Producer({"bootstrap.servers": target.bootstrap, "linger.ms": 0})
    sent: dict[str, float] = {}

    def send(number: int) -> None:
        text = json.dumps({"event": number})
        sent[text] = time.monotonic()
        producer.produce(topic, text.encode())
        producer.flush()

    with _worker(run, target, topic, receiver):
        send(-1)
        poll_until(lambda: '{"event": -1}' in receiver.times(), 60, "the first post")
        for number in range(count):
            send(number)
            time.sleep(0.01)  # one at a time: the load that is measured
        last = json.dumps({"event": count - 1})
        poll_until(lambda: last in receiver.times(), 60, "the last post")
        times = receiver.times()
    delays = [times[text] - at for text, at in sent.items() if text in times and "-1" not in text]
    return {"p50 ms": percentile(delays, 50) * 1e3, "p99 ms": percentile(delays, 99) * 1e3}
