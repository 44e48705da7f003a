"""What is measured: tidemill, the raw baseline, and Apache Kafka where it is to hand.

Starts and stops processes; measures nothing.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
from confluent_kafka.admin import AdminClient, NewTopic
from tests.support.apache_kafka import ApacheKafka, KafkaNotFoundError
from tests.support.broker_process import BrokerProcess


@dataclass
class Target:
    """A running server that speaks the Kafka protocol."""

    name: str
    address: tuple[str, int]
    pid: int

    @property
    def bootstrap(self) -> str:
        return f"{self.address[0]}:{self.address[1]}"

    def create_topic(self, name: str, partitions: int) -> None:
        """Create a topic; raises what the admin client raises."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        for future in admin.create_topics([NewTopic(name, partitions, 1)]).values():
            future.result(timeout=60)

    def delete_topic(self, name: str) -> None:
        """Delete a topic, so that its files do not fill the disk."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        for future in admin.delete_topics([name]).values():
            future.result(timeout=60)

    def memory_mb(self) -> float:
        """Resident memory of the server process in megabytes (10^6 bytes)."""
        return float(psutil.Process(self.pid).memory_info().rss) / 1e6


@contextlib.contextmanager
def tidemill(data_dir: Path | None = None) -> Iterator[Target]:
    """A tidemill broker with default settings on a free port."""
    with contextlib.ExitStack() as stack:
        folder = data_dir or Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="tidemill-bench-"))
        )
        broker = stack.enter_context(BrokerProcess(folder))
        yield Target("tidemill", broker.address, broker.pid)


@contextlib.contextmanager
def apache_kafka(*, fetch: bool) -> Iterator[Target | None]:
    """Apache Kafka as one KRaft node with default settings; None where it can't be had."""
    with tempfile.TemporaryDirectory(prefix="kafka-bench-") as folder:
        try:
            server = ApacheKafka(Path(folder), heap="-Xmx1g", fetch=fetch)
        except KafkaNotFoundError as error:
            print(f"note: no Apache Kafka to compare with: {error}", file=sys.stderr)
            yield None
            return
        with server:
            host, port = server.bootstrap.rsplit(":", 1)
            yield Target("kafka", (host, int(port)), server.pid)


@contextlib.contextmanager
def baseline(
    mode: str, folder: Path, *, files: int, sync: bool = False, chunk: int = 1 << 20
) -> Iterator[tuple[str, int]]:
    """The raw copying server of ``baseline.py`` in a process of its own."""
    command = [sys.executable, "-m", "bench.baseline", mode, str(folder)]
    command += ["--files", str(files), "--chunk", str(chunk)] + (["--sync"] if sync else [])
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parent.parent
    )
    try:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        yield ("127.0.0.1", port)
    finally:
        process.terminate()
        process.wait(timeout=10)
        if process.stdout is not None:
            process.stdout.close()


def drop_files(folder: Path) -> None:
    """Remove the baseline's files."""
    for path in folder.glob("raw-*"):
        os.unlink(path)
