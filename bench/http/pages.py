"""Measures the console before a large broker: how fast pages answer, and what viewers cost.

The broker has 200 topics, 2,000 partitions, 100 groups with offsets and 1,000 queues. Each page is
loaded again and again over one connection. Then five viewers look at pages that move: the broker's
processor time with them, less that without them, is compared with that under a producer's load.
Viewers and producer take turns: together with other work, a broker gets more requests at a time and
takes up to a third less for each, which is much more than viewers cost.
"""

from __future__ import annotations

import contextlib
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pika
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tests.support.broker_process import BrokerProcess
from tests.support.ports import reserve_port
from tests.support.processes import ServerProcess, accepts_connections

from bench import cpu, machine, programs, wire
from bench.report import Aim, Section, Table
from bench.run import Run, percentile

TOPICS, PARTITIONS, GROUPS, QUEUES, VIEWERS = 200, 10, 100, 1_000, 5
P99_MS, SHARE, IDLE_MB = 150.0, 5.0, 90.0
_PER_S, _TURNS = 30_000, 3
_RECORDS = 20_000
NOTE = (
    f"{TOPICS} topics of {PARTITIONS} partitions, {GROUPS} groups with offsets, {QUEUES:,} queues. "
    "One connection, one request after the other, while a snapshot is asked for each five seconds. "
    "The processor time is that of the gateway, snapshots included."
)
COST_NOTE = (
    f"A producer sends {_PER_S:,} requests a second, each with a batch of 100 bytes. "
    f"{VIEWERS} viewers have the overview, topics, a topic and other pages open."
)


def section(run: Run) -> Section:
    """Measure all of it."""
    seconds = 10.0 if run.options.quick else 30.0
    with (
        tempfile.TemporaryDirectory(prefix="console-", dir=run.options.folder) as folder,
        BrokerProcess(Path(folder), fresh=True) as broker,
        _gateway(run, broker) as (port, gateway),
    ):
        run.say("console: topics, groups and queues")
        _fill(broker)
        idle_mb = machine.resident_mb(gateway)
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60, trust_env=False) as http:
            pages = _pages(http)
            run.say(f"console: {len(pages)} pages")
            table = Table(
                "Console: pages", ["page", "p50 ms", "p99 ms", "processor ms", "KiB"], note=NOTE
            )
            slowest = 0.0
            for page in pages:
                meter, times = cpu.Meter(gateway), 50 if run.options.quick else 200
                took, size = _load(http, page, times)
                spent = meter.spent() / times * 1e3
                p99 = percentile(took, 99) * 1e3
                slowest = max(slowest, p99)
                table.rows.append([page, percentile(took, 50) * 1e3, p99, spent, size / 1024])
        run.say("console: viewers")
        idle, viewed, loaded = _shares(broker, f"http://127.0.0.1:{port}", pages, seconds)
    cost = Table("Console: five viewers", ["broker with", "% of a core"], note=COST_NOTE)
    cost.rows = [
        ["nothing", 100 * idle],
        [f"{VIEWERS} viewers", 100 * viewed],
        ["a producer", 100 * loaded],
    ]
    aims = [
        Aim("console: the slowest page, p99", slowest, P99_MS, "ms", at_most=True),
        Aim(
            "console: five viewers",
            100 * (viewed - idle) / loaded,
            SHARE,
            "% of a loaded broker's processor time",
            at_most=True,
        ),
        Aim("console: memory of the gateway, unused", idle_mb, IDLE_MB, "MB", at_most=True),
    ]
    return Section("console", [table, cost], aims)


@contextlib.contextmanager
def _gateway(run: Run, broker: BrokerProcess) -> Iterator[tuple[int, int]]:
    port = reserve_port()
    serve = [sys.executable, "-m", "tidemill", "gateway", "--port", str(port)]
    queues = f"--set=gateway.amqp_url=amqp://127.0.0.1:{broker.amqp_port}/"
    command = [*serve, "-b", broker.bootstrap, queues]
    process = ServerProcess(
        "gateway", command, run.options.folder / "console-gateway.log", cwd=programs.ROOT
    )
    try:
        process.wait_until(lambda: accepts_connections("127.0.0.1", port), 60)
        yield port, process.pid
    finally:
        process.terminate(60)


def _fill(broker: BrokerProcess) -> None:
    servers: dict[str, str | int | float | bool] = {"bootstrap.servers": broker.bootstrap}
    admin = AdminClient(servers)
    new = [NewTopic(f"topic-{n:03}", PARTITIONS, 1) for n in range(TOPICS)]
    for created in admin.create_topics(new, operation_timeout=60).values():
        created.result(120)
    producer = Producer(servers)
    for n in range(_RECORDS):
        value = b'{"id":%d,"country":"NL","customer":{"name":"Ada"}}' % n
        producer.produce(f"topic-{n % TOPICS:03}", value, b"k%d" % n)
    producer.flush(60)
    for n in range(GROUPS):
        consumer = Consumer({**servers, "group.id": f"group-{n:03}"})
        places = [TopicPartition(f"topic-{n:03}", number, 0) for number in range(PARTITIONS)]
        consumer.commit(offsets=places, asynchronous=False)
        consumer.close()
    parameters = pika.ConnectionParameters("127.0.0.1", broker.amqp_port)
    with contextlib.closing(pika.BlockingConnection(parameters)) as connection:
        channel = connection.channel()
        for n in range(QUEUES):
            channel.queue_declare(f"queue-{n:04}", durable=True)


def _pages(http: httpx.Client) -> list[str]:
    """Return the addresses of all pages that answer for a topic and a group."""
    from tidemill.gateway.console.table import PAGES

    place: dict[str, str | int] = {
        "name": "topic-007",
        "topic": "topic-007",
        "group": "group-007",
        "partition": 0,
        "offset": 0,
    }
    urls = [f"/console/{page.address}" for page in PAGES]
    names = {"/console/group": "group-007", "/console/queue": "queue-0007"}
    found = []
    for url in [*urls, "/console/messages.json", "/api/queues", "/api/overview"]:
        only = {**place, "name": names.get(url, place["name"])}
        if "messages" in url or "/api/" in url:
            only = {"topic": place["topic"]}
        answer = http.get(url, params=only)
        if answer.status_code == 200:
            found.append(answer.url.raw_path.decode())
    return found


def _load(http: httpx.Client, page: str, times: int) -> tuple[list[float], int]:
    """Return how long each of some loads took, and the bytes of the last one."""
    took, size = [], 0
    http.get(page)
    for _ in range(times):
        began = time.perf_counter()
        answer = http.get(page)
        took.append(time.perf_counter() - began)
        size = len(answer.content)
        if answer.status_code != 200:
            raise RuntimeError(f"{page} answers {answer.status_code}")
    return took, size


def _shares(
    broker: BrokerProcess, url: str, pages: list[str], seconds: float
) -> tuple[float, float, float]:
    """Return the broker's shares of a processor with nothing, with viewers, and with a producer."""
    idle, viewed, loaded = [], [], []
    for _ in range(_TURNS):
        idle.append(_share(broker.pid, seconds))
        with _viewers(url, pages):
            viewed.append(_share(broker.pid, seconds))
        with _Producer(broker.bootstrap):
            loaded.append(_share(broker.pid, seconds))
    return statistics.mean(idle), statistics.mean(viewed), statistics.mean(loaded)


def _share(pid: int, seconds: float) -> float:
    meter, began = cpu.Meter(pid), time.monotonic()
    time.sleep(seconds)
    return meter.spent() / (time.monotonic() - began)


class _Producer:
    """Writes small batches at a steady rate, which loads the broker more than this process."""

    def __init__(self, servers: str) -> None:
        host, _, port = servers.rpartition(":")
        self._address = host, int(port)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> _Producer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        frame = wire.produce_frame("topic-000", 0, wire.make_batch(100), 1)
        together = 100
        with contextlib.closing(wire.connect(self._address)) as sock:
            began, sent = time.monotonic(), 0
            while not self._stop.is_set():
                if sent < (time.monotonic() - began) * _PER_S:
                    wire.pipelined(sock, [frame], together, together)
                    sent += together
                else:
                    time.sleep(0.002)


@contextlib.contextmanager
def _viewers(url: str, pages: list[str]) -> Iterator[None]:
    """Look at pages that move: read what they are sent."""
    moving = []
    with httpx.Client(base_url=url, timeout=60, trust_env=False) as http:
        for page in pages:
            path, _, query = page.partition("?")
            live = f"{path}.live?{query}"
            if http.head(live).status_code == 200:
                moving.append(live)
    if not moving:
        raise RuntimeError("no page moves")
    stop = threading.Event()

    def look(live: str) -> None:
        with (
            httpx.Client(base_url=url, timeout=60, trust_env=False) as http,
            http.stream("GET", live) as answer,
        ):
            for _ in answer.iter_lines():
                if stop.is_set():
                    return

    threads = [
        threading.Thread(target=look, args=(moving[n % len(moving)],), daemon=True)
        for n in range(VIEWERS)
    ]
    for each in threads:
        each.start()
    try:
        yield
    finally:
        stop.set()
        for each in threads:
            each.join(30)
