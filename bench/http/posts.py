"""Measures the gateway: posts to topics, and what its overload does to the broker.

Beside it, in turns, run Starlette that stores nothing, and the shape of the Confluent REST proxy.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

from confluent_kafka import Producer
from tests.support.ports import reserve_port
from tests.support.processes import ServerProcess, accepts_connections

from bench import cpu, machine, programs
from bench.compare import Comparison, Figures, ratio_of
from bench.report import Aim, Section
from bench.run import Run, percentile
from bench.targets import Target, tidemill

CASES = [(1, 1), (16, 1), (1, 100), (16, 100)]
"""Connections, and records of a post."""
OVERLOAD = 1.2
IDLE_MB = 70.0
_SETTLE_S = 2.0
_RATE = "posts/s"
_P99 = "broker p99 ms"
NOTE = (
    "Values of 100 bytes with keys, acks=all, one partition. 'bare' is Starlette that stores "
    "nothing; 'REST proxy' is its shape in Starlette with confluent-kafka, without limits. All of "
    "them are uvicorn with httptools, in one process."
)
OVERLOAD_NOTE = (
    "A producer sends one record after the other with acks=all. 'gateway' refuses malformed posts "
    "of 16 connections as fast as it can, and 'burning' are two processes that use as much "
    "processor time as the gateway and its client do."
)


def section(run: Run) -> Section:
    """Measure all of it."""
    compared = Comparison(
        run,
        "HTTP: posts to a topic",
        [_RATE, "p50 ms", "p99 ms"],
        about=("connections", "records"),
        base="bare",
        by=[_RATE],
        note=NOTE,
    )
    overload = Comparison(
        run,
        "HTTP: the broker beside a gateway under overload",
        [_P99, "broker p50 ms"],
        base="burning",
        by=[_P99],
        note=OVERLOAD_NOTE,
    )
    seconds = 2.0 if run.options.quick else 5.0
    with tidemill(run.options.folder) as target, ExitStack() as stack:
        target.create_topic("posts", 1)
        target.create_topic("beside", 1)
        ports = {
            name: stack.enter_context(_server(run, name, command, target))
            for name, command in SERVERS.items()
        }
        time.sleep(_SETTLE_S)
        idle_mb = machine.resident_mb(ports["gateway"][1])
        for connections, records in CASES:
            run.say(f"http: {connections} connections, {records} records")
            turns = {
                name: partial(_post, port, connections, records, seconds)
                for name, (port, _) in ports.items()
            }
            compared.measure([connections, records], turns)
        shares = _Shares()
        found = overload.measure(
            ["malformed posts"],
            {
                "gateway": partial(_overloaded, target, *ports["gateway"], seconds, shares),
                "burning": partial(_burning, target, seconds, shares),
            },
        )
    ratio = ratio_of(found["gateway"], found["burning"], _P99)
    assert ratio is not None
    what = "HTTP: broker's p99 beside an overloaded gateway, to burning processes"
    aims = [
        Aim(what, ratio, OVERLOAD, "", at_most=True),
        Aim("HTTP: idle memory of the gateway", idle_mb, IDLE_MB, "MB", at_most=True),
    ]
    return Section("http-posts", [compared.table(), overload.table()], aims)


SERVERS = {
    "bare": ["bench.http.rest", "bare", "{port}", "{servers}"],
    "REST proxy": ["bench.http.rest", "rest", "{port}", "{servers}"],
    "gateway": ["tidemill", "gateway", "--port", "{port}", "-b", "{servers}"],
}


@contextmanager
def _server(run: Run, name: str, command: list[str], target: Target) -> Iterator[tuple[int, int]]:
    """Run a server; yield its port and process id."""
    port = reserve_port()
    filled = [each.format(port=port, servers=target.bootstrap) for each in command]
    log = run.options.folder / f"{name.replace(' ', '-')}.log"
    process = ServerProcess(name, [sys.executable, "-m", *filled], log, cwd=programs.ROOT)
    try:
        process.wait_until(lambda: accepts_connections("127.0.0.1", port), 60)
        yield port, process.pid
    finally:
        process.terminate(60)


def _post(port: int, connections: int, records: int, seconds: float) -> Figures:
    (found,) = programs.lines(
        "bench.http.poster", port, "/topics/posts", connections, records, seconds, "list"
    )
    if found["errors"]:
        raise RuntimeError(f"{found['errors']} posts failed")
    return dict(found)


class _Shares:
    """The processor time that the gateway and its client use, as shares of one processor."""

    gateway = client = 1.0


def _overloaded(target: Target, port: int, pid: int, seconds: float, shares: _Shares) -> Figures:
    arguments = (port, "/topics/posts", 16, 100, 2 * seconds, "broken")
    process = programs.start("bench.http.poster", *arguments)
    time.sleep(1.0)  # until it is at work
    began, of_gateway, of_client = time.monotonic(), cpu.seconds(pid), cpu.seconds(process.pid)
    found = _latency(target, seconds)
    took = time.monotonic() - began
    shares.gateway = (cpu.seconds(pid) - of_gateway) / took
    shares.client = (cpu.seconds(process.pid) - of_client) / took
    process.kill()
    process.communicate()
    return found


def _burning(target: Target, seconds: float, shares: _Shares) -> Figures:
    burning = [
        programs.start("bench.http.burn", min(1.0, share))
        for share in (shares.gateway, shares.client)
    ]
    time.sleep(1.0)  # until they are at work
    found = _latency(target, seconds)
    for process in burning:
        process.kill()
        process.communicate()
    return found


def _latency(target: Target, seconds: float) -> Figures:
    """Produce one record after the other."""
    producer = Producer({"bootstrap.servers": target.bootstrap, "linger.ms": 0, "acks": "all"})
    took: list[float] = []
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        began = time.perf_counter()
        producer.produce("beside", b"x" * 100)
        producer.flush()
        took.append(time.perf_counter() - began)
    return {_P99: percentile(took, 99) * 1e3, "broker p50 ms": percentile(took, 50) * 1e3}
