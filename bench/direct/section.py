"""Measures direct messaging: StatsD's packets, multicast, and ZeroMQ beside a bare socket.

A program in C sends packets of five lines; each receiver is a process of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.support.ports import reserve_port

from bench import machine
from bench.compare import Comparison, Figures, ratio_of
from bench.direct import bridged
from bench.direct.receiver import Simple
from bench.report import Aim, Section, Table
from bench.run import Run
from tidemill.direct.statsd import Aggregator, Dialect, Options

SOURCE = Path(__file__).with_name("udp.c")
LINES, SERIES, BUFFER = 5, 1000, 8 << 20
FIGURES = ("received k lines/s", "lost %", "CPU µs/packet")
STREAM_FIGURES = (*("k messages/s", "recovered", "requests", "recovery p50 ms", "recovery p99 ms"),)
STREAM_NOTE = (
    "Messages of 100 B, ten in a packet, published without a broker (RingPublisher) to one "
    "receiver on loopback. The receiver drops packets at random; a recovery takes from the drop to "
    "the delivery in order."
)
NOTE = (
    f"Packets of {LINES} lines (counters and timers with two tags, {SERIES} series), loopback, "
    f"receive buffer {BUFFER >> 20} MiB. bare: recvmmsg, nothing is parsed (bench/direct/udp.c). "
    "python: recv, and the simplest parser in Python (bench/direct/receiver.py). Sender and "
    "receiver share the cores, so the sender limits the fast ones: compare their processor time."
)


def section(run: Run) -> Section:
    """Measure StatsD."""
    result = Section("direct")
    program = run.options.folder / "udp"
    compiler = os.environ.get("CC", "cc")
    subprocess.run([compiler, "-O2", "-o", str(program), str(SOURCE)], check=True)
    compared = Comparison(run, "StatsD over UDP", FIGURES, base="bare", by=FIGURES[::2], note=NOTE)
    seconds = 2.0 if run.options.quick else 5.0
    for load, rate in (("as many as possible", 0), ("100,000 packets/s", 100_000)):
        run.say(f"direct: StatsD, {load}")
        found = compared.measure(
            [load],
            {
                kind: partial(_turn, program, kind, seconds, rate)
                for kind in ("bare", "tidemill", "python")
            },
        )
        if rate == 0:
            result.aims.append(_aim(found, "bare", FIGURES[0], 0.6))
    parsing = Comparison(
        run, "Parsing and aggregating", ("k lines/s",), base="python", by=("k lines/s",)
    )
    parsed = parsing.measure(["five lines a packet"], {"tidemill": _native, "python": _python})
    result.aims.append(_aim(parsed, "python", "k lines/s", 10.0))
    result.tables += [compared.table(), parsing.table(), _multicast(run)]
    bridged.measure(run, result)
    return result


def _multicast(run: Run) -> Table:
    """Measure a stream, with and without lost packets."""
    compared = Comparison(
        run, "A multicast stream", STREAM_FIGURES, about=("load", "loss"), note=STREAM_NOTE
    )
    count = 100_000 if run.options.quick else 500_000
    for load, rate, loss in (
        ("as many as possible", 0, 0.0),
        ("20,000 messages/s", 20_000, 0.0),
        ("20,000 messages/s", 20_000, 0.01),
    ):
        run.say(f"direct: multicast, {load}, {loss:.0%} lost")
        messages = count if rate == 0 else count // 2
        compared.measure(
            [load, f"{loss:.0%}"], {"tidemill": partial(_stream, messages, rate, loss)}
        )
    return compared.table()


def _stream(messages: int, rate: int, loss: float) -> Figures:
    machine.settle()
    ports = [str(reserve_port()), str(reserve_port()), str(messages)]
    command = [sys.executable, "-m", "bench.direct.multicast"]
    with subprocess.Popen(
        [*command, "receive", *ports, str(loss)], stdout=subprocess.PIPE, text=True
    ) as receiver:
        assert receiver.stdout is not None
        receiver.stdout.readline()  # ready
        with subprocess.Popen(
            [*command, "publish", *ports, str(rate)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as publisher:
            answer: dict[str, float] = json.loads(receiver.stdout.read())
            publisher.communicate("\n")
    return answer


def _aim(found: dict[str, list[Figures]], other: str, figure: str, limit: float) -> Aim:
    """Return the aim of a ratio to another contender."""
    ratio = ratio_of(found["tidemill"], found[other], figure)
    return Aim(f"StatsD: {figure} to {other}", ratio or 0.0, limit, "", at_most=False)


def _native() -> Figures:
    return _parse(Aggregator(Options(dialect=Dialect.dogstatsd)).feed, 200_000)


def _python() -> Figures:
    return _parse(Simple().take, 20_000)


def _parse(take: Callable[[bytes], None], packets: int) -> Figures:
    """Give packets to a parser, and return how many lines it takes per second."""
    kinds = [b"\n".join(_line(packet * LINES + at) for at in range(LINES)) for packet in range(200)]
    began = time.perf_counter()
    for number in range(packets):
        take(kinds[number % 200])
    return {"k lines/s": packets * LINES / (time.perf_counter() - began) / 1000}


def _line(number: int) -> bytes:
    kind = "ms" if number % 5 == 4 else "c"
    name = f"web.requests.{number % SERIES}"
    return f"{name}:{number % 100}|{kind}|#env:prod,host:web-{number % 8}".encode()


def _turn(program: Path, kind: str, seconds: float, rate: int) -> Figures:
    """Send for some seconds to a new receiver, and return what it got."""
    machine.settle()
    port = reserve_port()
    given = [str(port), str(seconds), str(BUFFER)]
    command = (
        [str(program), "sink", *given]
        if kind == "bare"
        else [sys.executable, "-m", "bench.direct.receiver", kind, *given]
    )
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as receiver:
        assert receiver.stdout is not None
        receiver.stdout.readline()  # ready
        arguments = [str(port), str(seconds), str(rate), str(LINES), str(SERIES)]
        sent = int(subprocess.check_output([str(program), "send", *arguments]))
        answer = json.loads(receiver.stdout.read())
    packets = float(answer["packets"])
    return {
        "received k lines/s": packets * LINES / seconds / 1000,
        "lost %": max(100 * (1 - packets / sent), 0.0),
        "CPU µs/packet": answer["cpu_s"] / packets * 1e6,
    }
