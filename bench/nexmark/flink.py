"""Measures Nexmark's queries in Flink SQL, if a Python with apache-flink is named.

PyFlink has other dependencies than PySpark, so it needs an environment of its own. Must not know:
Spark.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from bench import connector, cpu, machine
from bench.nexmark.queries import QUERIES
from bench.nexmark.rows import canonical, digest, read_topic
from bench.nexmark.turns import FLINK, Settings, Turn
from bench.programs import ROOT

WARM_UP = "q7"


def turns(settings: Settings, python: Path) -> Iterator[Turn]:
    """Run all queries, and yield the turns. The first query is not measured.

    Args:
        settings: Broker, queries and rounds.
        python: An interpreter with apache-flink.

    Raises:
        ConnectorNotFoundError: Flink's Kafka connector is missing.
        RuntimeError: Flink failed; its error is on stderr.
    """
    [jar] = connector.find_connector(connector.FLINK)
    # Its PYTHONPATH must not name packages of this environment.
    command = [str(python), "-m", "bench.nexmark.flink_client", settings.bootstrap, str(jar)]
    client = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    try:
        _expect(client, "ready")
        _turn(client, settings, WARM_UP, "nexmark.flink.warm-up")
        for query in settings.queries:
            for number in range(settings.rounds):
                yield _turn(client, settings, query, f"nexmark.flink.{query}.{number}")
    finally:
        assert client.stdin is not None
        client.stdin.close()
        try:
            client.wait(60)
        except subprocess.TimeoutExpired:
            client.kill()
            client.wait()


def _turn(client: subprocess.Popen[str], settings: Settings, query: str, topic: str) -> Turn:
    machine.settle()
    broker = cpu.seconds(settings.broker_pid)
    used, began = cpu.tree_seconds(client.pid), time.perf_counter()
    assert client.stdin is not None
    client.stdin.write(f"{query} {topic}\n")
    client.stdin.flush()
    _expect(client, "done")
    wall = time.perf_counter() - began
    used = cpu.tree_seconds(client.pid) - used
    broker = cpu.seconds(settings.broker_pid) - broker
    found = digest(canonical(read_topic(settings.bootstrap, topic), QUERIES[query].columns))
    return Turn(query, FLINK, wall, used, broker, found.rows, found.hash)


def _expect(client: subprocess.Popen[str], wanted: str) -> None:
    """Read lines until one is ``wanted``; Flink prints others.

    Raises:
        RuntimeError: The client has ended.
    """
    assert client.stdout is not None
    for line in client.stdout:
        if line.strip() == wanted:
            return
    raise RuntimeError(f"Flink ended with {client.wait()}; its error is on stderr")
