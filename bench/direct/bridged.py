"""Measures a topic that a bridge publishes with ZeroMQ, beside a bare XPUB and SUB.

Each program is a process of its own. Live, the producer, the broker, the bridge and the subscriber
share the cores. Late, bridge and subscriber begin when all records are in the
log, so that none is answered from memory.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from tests.support.ports import reserve_port

from bench import machine, targets
from bench.compare import Comparison, Figures, ratio_of
from bench.programs import ROOT
from bench.report import Aim, Section
from bench.run import Run
from bench.targets import Target

RATE = "k messages/s"
NOTE = (
    "Messages of 100 B to one subscriber, tcp on loopback. bare: pyzmq's XPUB with NODROP, and "
    "SUB, one message at a time (bench/direct/zeromq.py). live: a producer writes to the topic "
    "while the subscriber of its bridge reads. late: both begin when the topic is full."
)


def measure(run: Run, result: Section) -> None:
    """Add the table and the aim."""
    run.say("direct: ZeroMQ")
    messages = 500_000 if run.options.quick else 2_000_000
    compared = Comparison(run, "ZeroMQ", (RATE,), base="bare", by=(RATE,), note=NOTE)
    with targets.tidemill(run.options.folder) as target:
        found = compared.measure(
            ["100 B"],
            {
                "bare": partial(_bare, messages),
                "live": partial(_bridged, run.options.folder, target, messages, "latest"),
                "late": partial(_bridged, run.options.folder, target, messages, "earliest"),
            },
        )
    for who in ("live", "late"):
        ratio = ratio_of(found[who], found["bare"], RATE) or 0.0
        result.aims.append(Aim(f"ZeroMQ, {who}: {RATE} to bare", ratio, 0.4, "", at_most=False))
    result.tables.append(compared.table())


def _bare(messages: int) -> Figures:
    machine.settle()
    given = [str(reserve_port()), str(messages)]
    with _receiver("subscribe", *given) as receiver:
        _run("publish", *given)
        return _answer(receiver)


def _bridged(folder: Path, target: Target, messages: int, start: str) -> Figures:
    machine.settle()
    topic, count = target.topic(1, b""), str(messages)
    ports = reserve_port(), reserve_port()
    given = [str(ports[0]), str(ports[1]), count, start]
    if start == "earliest":
        _run("produce", target.bootstrap, topic, count)
    with _bridge(folder, target, topic, ports), _receiver("follow", *given) as receiver:
        if start == "latest":
            _run("produce", target.bootstrap, topic, count)
        return _answer(receiver)


@contextlib.contextmanager
def _bridge(folder: Path, target: Target, topic: str, ports: tuple[int, int]) -> Iterator[None]:
    """Run a bridge. It is there when a subscriber is."""
    file = folder / f"{topic}.toml"
    publish, requests = (f"tcp://127.0.0.1:{port}" for port in ports)
    file.write_text(
        f'name = "{topic}"\nkind = "zeromq"\ntopic = "{topic}"\nmanaged = false\n'
        f'options = {{ publish = "{publish}", requests = "{requests}" }}\n'
    )
    tidemill = [sys.executable, "-m", "tidemill", "bridge"]
    at = ["-b", target.bootstrap]
    subprocess.run([*tidemill, "create", str(file), *at], check=True, capture_output=True)
    log = (folder / f"{topic}.log").open("w")
    with log, subprocess.Popen([*tidemill, "run", topic, *at], stdout=log, stderr=log) as worker:
        try:
            yield
        finally:
            worker.terminate()


def _receiver(*arguments: str) -> subprocess.Popen[str]:
    """Start a program that receives, and wait until it is ready."""
    command = [sys.executable, "-m", "bench.direct.zeromq", *arguments]
    started = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert started.stdout is not None
    started.stdout.readline()
    return started


def _run(*arguments: str) -> None:
    command = [sys.executable, "-m", "bench.direct.zeromq", *arguments]
    subprocess.run(command, check=True, cwd=ROOT, timeout=300)


def _answer(receiver: subprocess.Popen[str]) -> Figures:
    assert receiver.stdout is not None
    found: dict[str, float] = json.loads(receiver.stdout.readline())
    return found
