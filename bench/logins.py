"""Measures how much logins delay others: produce's latency beside 500 logins by SCRAM a second.

A process of its own logs in; beside it, requests to produce are sent at a rate. For comparison, the
same process sends as many requests over as many connections, without a login.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import psutil
from tests.support import environment
from tests.support.broker_process import BrokerProcess
from tests.support.ports import reserve_port

from bench import wire
from bench.report import Aim, Section, Table
from bench.run import Run, percentile
from bench.targets import Target
from tidemill.kafka_client import sasl
from tidemill.kafka_codec.declared import API_VERSIONS, SASL_AUTHENTICATE, SASL_HANDSHAKE
from tidemill.kafka_codec.headers import request_header
from tidemill.kafka_codec.messages import encode_request

LOGINS_PER_SECOND = 500
AIM_MS = 20.0
"""How much later the 99th percentile can be than beside the same connections without a login."""
REQUESTS_PER_SECOND = 200.0
CONNECTIONS = 4
USER, PASSWORD = "bench", "secret"
NOTE = (
    f"Milliseconds of requests to produce with one record of 100 B and acks=all, "
    f"{REQUESTS_PER_SECOND * CONNECTIONS:.0f} in a second over {CONNECTIONS} connections. Beside "
    f"them, one process opens {LOGINS_PER_SECOND} connections in a second: each logs in by "
    "SCRAM-SHA-256 (three requests), or sends three requests and computes the same. That process "
    "and the broker share the machine's processors. CPU: the broker's, of one processor."
)
CONFIG = """
[listeners.guarded]
protocol = "SASL_PLAINTEXT"
port = {port}
mechanisms = "SCRAM-SHA-256"
"""


def section(run: Run) -> Section:
    """Measure produce's latency alone, beside connections, and beside logins."""
    table = Table(
        "Logins: latency of produce beside them",
        ["beside", "a second", "p50 ms", "p99 ms", "p99.9 ms", "CPU %"],
        note=NOTE,
    )
    seconds = 4.0 if run.options.quick else 15.0
    with tempfile.TemporaryDirectory(prefix="logins-", dir=run.options.folder) as name:
        folder, port = Path(name), reserve_port()
        (folder / "tidemill.toml").write_text(CONFIG.format(port=port))
        with BrokerProcess(folder, fresh=True) as broker:
            target = Target("tidemill", broker.bootstrap, broker.pid)
            _make_user(folder, broker.bootstrap)
            batch = wire.make_batch(100)
            frames = [wire.produce_frame(target.topic(1), 0, batch, -1)]
            guarded = ("127.0.0.1", port)
            found = run.take_turns(
                {
                    "nothing": lambda: _measured(target, frames, seconds, None, guarded),
                    "connections": lambda: _measured(target, frames, seconds, _ask, target.address),
                    "logins": lambda: _measured(target, frames, seconds, _log_in, guarded),
                }
            )
    p99: dict[str, float] = {}
    for beside, turns in found.items():
        latencies = [each.latencies for each in turns]
        p50, p99[beside], p999 = (
            statistics.median(percentile(each, percent) * 1e3 for each in latencies)
            for percent in (50, 99, 99.9)
        )
        rate = statistics.median(each.rate for each in turns)
        processor = statistics.median(each.processor for each in turns)
        table.rows.append([beside, round(rate), p50, p99[beside], p999, round(processor * 100)])
    aim = Aim(
        f"produce's p99 beside {LOGINS_PER_SECOND} logins/s, to that beside connections",
        p99["logins"] - p99["connections"],
        AIM_MS,
        "ms",
        at_most=True,
    )
    return Section("logins", [table], [aim])


def _make_user(folder: Path, bootstrap: str) -> None:
    (folder / "password").write_text(PASSWORD)
    command = [sys.executable, "-m", "tidemill", "user", "create", USER, "-b", bootstrap]
    subprocess.run(
        [*command, "--password-file", str(folder / "password")],
        check=True,
        capture_output=True,
        env=environment.without_settings(),
    )


Work = Callable[[socket.socket], None]


@dataclass(frozen=True)
class Turn:
    """The seconds of each request, the broker's processors, and the connections in a second."""

    latencies: list[float]
    processor: float
    rate: float


def _measured(
    target: Target,
    frames: list[bytes],
    seconds: float,
    work: Work | None,
    address: tuple[str, int],
) -> Turn:
    broker = psutil.Process(target.pid)

    def paced() -> tuple[list[float], float]:
        before, began = sum(broker.cpu_times()[:2]), time.perf_counter()
        found = wire.paced(target.address, frames, CONNECTIONS, REQUESTS_PER_SECOND, seconds)
        took = time.perf_counter() - began
        return found, (sum(broker.cpu_times()[:2]) - before) / took

    if work is None:
        return Turn(*paced(), 0.0)
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_load, args=(work, address, seconds + 2, theirs))
    process.start()
    assert ours.recv() == "begun"
    try:
        measured = paced()
    finally:
        rate = float(ours.recv())
        process.join()
    return Turn(*measured, rate)


def _load(work: Work, address: tuple[str, int], seconds: float, report: Any) -> None:
    """Open connections at a rate, one after the other, and do the work on each."""
    hashlib.pbkdf2_hmac = lru_cache(hashlib.pbkdf2_hmac)  # type: ignore[assignment]
    with socket.create_connection(address) as sock:
        work(sock)
    began, count = time.perf_counter(), 0
    report.send("begun")
    while (now := time.perf_counter() - began) < seconds:
        if count / LOGINS_PER_SECOND > now:
            time.sleep(count / LOGINS_PER_SECOND - now)
        with socket.create_connection(address) as sock:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            work(sock)
        count += 1
    report.send(count / (time.perf_counter() - began))


def _call(sock: socket.socket, api: int, version: int, tree: dict[str, object]) -> bytes:
    """Send a request, and return the body of its answer."""
    body = request_header(api, version, 7, "bench") + encode_request(api, version, tree)
    sock.sendall(struct.pack(">i", len(body)) + body)
    buffer = bytearray(1 << 16)
    return bytes(buffer[4 : wire.read_response(sock, buffer)])


def _ask(sock: socket.socket) -> None:
    """Send as many requests as a login has, and compute what its client does."""
    scram = sasl.Scram("sha256", USER, PASSWORD, "nonce")
    _call(sock, API_VERSIONS, 0, {})
    scram.first()
    _call(sock, API_VERSIONS, 0, {})
    scram.final(b"r=noncenonce,s=c2FsdHNhbHRzYWx0c2FsdA==,i=4096")
    _call(sock, API_VERSIONS, 0, {})


def _log_in(sock: socket.socket) -> None:
    scram = sasl.Scram("sha256", USER, PASSWORD)
    _call(sock, SASL_HANDSHAKE, 1, {"mechanism": "SCRAM-SHA-256"})
    server_first = _token(_call(sock, SASL_AUTHENTICATE, 0, {"auth_bytes": scram.first()}))
    final = scram.final(server_first)
    scram.check(_token(_call(sock, SASL_AUTHENTICATE, 0, {"auth_bytes": final})))


def _token(body: bytes) -> bytes:
    """Return the message of the mechanism in an answer of version 0."""
    error, length = struct.unpack_from(">hh", body)
    if error:
        raise RuntimeError(f"the login failed with error {error}")
    start = 4 + max(length, 0)
    return body[start + 4 : start + 4 + int.from_bytes(body[start : start + 4], "big")]
