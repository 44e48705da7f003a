"""Starts and stops the servers: tidemill, the raw baseline, and Apache Kafka if it is found.

Must not know: what is measured.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic
from tests.support.apache_kafka import ApacheKafka, KafkaNotFoundError
from tests.support.broker_process import BrokerProcess

from bench import wire

ROOT = Path(__file__).parent.parent


@dataclass
class Target:
    """A running server that speaks the Kafka protocol.

    Attributes:
        name: ``tidemill`` or ``kafka``.
        bootstrap: Its address for clients.
        pid: Its process id.
    """

    name: str
    bootstrap: str
    pid: int

    @property
    def address(self) -> tuple[str, int]:
        """Its host and port."""
        host, _, port = self.bootstrap.rpartition(":")
        return host, int(port)

    def create_topic(self, name: str, partitions: int, **configs: str) -> None:
        """Create a topic. The argument ``flush_messages="1"`` sets ``flush.messages``.

        Raises:
            confluent_kafka.KafkaException: The server returns an error.
        """
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 4})
        config = {key.replace("_", "."): value for key, value in configs.items()}
        topic = NewTopic(name, partitions, 1, config=config)
        for future in admin.create_topics([topic], operation_timeout=60).values():
            future.result(timeout=60)

    def write_first(self, topic: str, partitions: int, batch: bytes) -> None:
        """Write one batch to each partition, so that its files exist and are synced.

        Apache Kafka returns errors for a moment after the creation of a topic, so requests are
        repeated.

        Raises:
            RuntimeError: The server still returns an error after half a minute.
        """
        deadline = time.monotonic() + 30
        with contextlib.closing(wire.connect(self.address)) as sock:
            for partition in range(partitions):
                frame = wire.produce_frame(topic, partition, batch, -1)
                while True:
                    try:
                        wire.pipelined(sock, [frame], 1, 1)
                        break
                    except RuntimeError:
                        if time.monotonic() > deadline:
                            raise
                        time.sleep(0.02)


@contextlib.contextmanager
def tidemill(
    parent: Path, *, env: Mapping[str, str] | None = None, plain: bool = False
) -> Iterator[Target]:
    """Start a new tidemill broker with default settings on a free port.

    Args:
        parent: Folder for its data folder.
        env: Environment variables of the broker, in addition to the current ones.
        plain: Whether it may be of a version that does not know today's settings.
    """
    with (
        tempfile.TemporaryDirectory(prefix="tidemill-", dir=parent) as folder,
        BrokerProcess(Path(folder), env=env, fresh=True, plain=plain) as broker,
    ):
        yield Target("tidemill", broker.bootstrap, broker.pid)


@contextlib.contextmanager
def other_checkout(parent: Path, checkout: Path) -> Iterator[Target]:
    """Start a broker of another checkout, which may be of an earlier version.

    Args:
        parent: Folder for its data folder.
        checkout: The folder of the checkout.

    Raises:
        SystemExit: It is not a checkout.
    """
    source = checkout / "src"
    if not (source / "tidemill").is_dir():
        raise SystemExit(f"error: {checkout} is not a checkout: it has no folder src/tidemill")
    env = {"PYTHONPATH": str(source.resolve())}
    with (
        tempfile.TemporaryDirectory(prefix="before-", dir=parent) as folder,
        tidemill(Path(folder), env=env, plain=True) as target,
    ):
        yield target


@contextlib.contextmanager
def apache_kafka(parent: Path, *, required: bool) -> Iterator[Target | None]:
    """Start Apache Kafka as one KRaft node with default settings; None if it is not found.

    Args:
        parent: Folder for its data folder.
        required: Whether to raise an error if it is not found.

    Raises:
        KafkaNotFoundError: It is required, but neither KAFKA_HOME nor Maven has it.
    """
    with tempfile.TemporaryDirectory(prefix="kafka-", dir=parent) as folder:
        try:
            server = _find_kafka(Path(folder))
        except KafkaNotFoundError as error:
            if required:
                raise
            print(f"note: no Apache Kafka to compare with: {error}", file=sys.stderr)
            yield None
            return
        with server:
            yield Target("kafka", server.bootstrap, server.pid)


def _find_kafka(folder: Path) -> ApacheKafka:
    try:
        return ApacheKafka(folder, heap_mb=1024)
    except KafkaNotFoundError:
        return ApacheKafka(folder, heap_mb=1024, fetch=True)


@contextlib.contextmanager
def floor(folder: Path, *, sync: bool) -> Iterator[Target]:
    """Start the server of ``clients/floor.py``, which answers Produce without any other work.

    Args:
        folder: Folder for its file.
        sync: Whether it writes all batches to the file and syncs it before it answers.
    """
    command = [sys.executable, "-m", "bench.clients.floor"]
    command += ["--sync", str(folder / "floor")] if sync else []
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    try:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        yield Target("floor, fdatasync" if sync else "floor", f"127.0.0.1:{port}", process.pid)
    finally:
        process.kill()
        process.wait(timeout=10)
        if process.stdout is not None:
            process.stdout.close()


@contextlib.contextmanager
def baseline(
    mode: str,
    folder: Path,
    *,
    files: int,
    sync: bool = False,
    checked: bool = False,
    chunk: int = 1 << 20,
) -> Iterator[tuple[str, int]]:
    """Start the raw copying server of ``baseline.py`` in its own process."""
    command = [sys.executable, "-m", "bench.baseline", mode, str(folder)]
    command += ["--files", str(files), "--chunk", str(chunk)] + (["--sync"] if sync else [])
    command += ["--checked"] if checked else []
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    try:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        yield ("127.0.0.1", port)
    finally:
        process.kill()
        process.wait(timeout=10)
        if process.stdout is not None:
            process.stdout.close()
