"""Starts and stops the servers: tidemill, the raw baseline, and Apache Kafka if it is found.

Must not know: what is measured.
"""

from __future__ import annotations

import contextlib
import itertools
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic
from tests.support.apache_kafka import ApacheKafka, KafkaNotFoundError
from tests.support.broker_process import BrokerProcess

from bench import wire
from bench.clients.program import WARM_UP_TOPIC
from bench.programs import ROOT, environment_of

SMALL = wire.make_batch(100)
"""The batch that topics begin with, if nothing else is said."""

_topic_numbers = itertools.count()


@dataclass(frozen=True)
class Target:
    """A running server that speaks the Kafka protocol, with one kind of topics.

    Attributes:
        name: The server, and what differs from its defaults.
        bootstrap: Its address for clients.
        pid: Its process id.
        configs: Configs of topics, with ``_`` instead of dots.
    """

    name: str
    bootstrap: str
    pid: int
    configs: dict[str, str] = field(default_factory=dict)

    @property
    def address(self) -> tuple[str, int]:
        """Its host and port."""
        host, _, port = self.bootstrap.rpartition(":")
        return host, int(port)

    def topic(self, partitions: int, batch: bytes = SMALL) -> str:
        """Create a topic with one batch in each partition, and return its name."""
        name = f"bench-{next(_topic_numbers)}"
        self.create_topic(name, partitions)
        if batch:
            self.write_first(name, partitions, batch)
        return name

    def prepare(self) -> None:
        """Create the topic that programs of librdkafka warm up with."""
        self.create_topic(WARM_UP_TOPIC, 1)
        self.write_first(WARM_UP_TOPIC, 1, SMALL)

    def create_topic(self, name: str, partitions: int, **configs: str) -> None:
        """Create a topic. The argument ``flush_messages="1"`` sets ``flush.messages``.

        Raises:
            confluent_kafka.KafkaException: The server returns an error.
        """
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 4})
        config = {key.replace("_", "."): value for key, value in (self.configs | configs).items()}
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
    parent: Path,
    name: str = "tidemill",
    *,
    env: Mapping[str, str] | None = None,
    plain: bool = False,
) -> Iterator[Target]:
    """Start a new tidemill broker with default settings on a free port.

    Args:
        parent: Folder for its data folder.
        name: Its name in the tables.
        env: Environment variables of the broker, in addition to the current ones.
        plain: Whether it can be of a version that does not know all of today's settings.
    """
    with (
        tempfile.TemporaryDirectory(prefix="tidemill-", dir=parent) as folder,
        BrokerProcess(
            Path(folder), settings={"amqp.port": "0"}, env=env, fresh=True, plain=plain
        ) as broker,
    ):
        yield Target(name, broker.bootstrap, broker.pid)


@contextlib.contextmanager
def tidemill_with_rules(parent: Path) -> Iterator[Target]:
    """Start a broker that asks its rules about each access, and whose rules allow it."""
    env = {"TIDEMILL_SECURITY_ALLOW_EVERYONE_IF_NO_ACL_FOUND": "true"}
    with tidemill(parent, "tidemill, with rules", env=env) as target:
        yield target


@contextlib.contextmanager
def of_version(parent: Path, checkout: Path | None, name: str = "tidemill") -> Iterator[Target]:
    """Start a broker of another checkout, which can be of an earlier version, or of this one.

    Args:
        parent: Folder for its data folder.
        checkout: The folder of the checkout; None for this one.
        name: Its name in the tables.

    Raises:
        SystemExit: It is not a checkout, or its extension is not built.
        RuntimeError: The broker runs other code.
    """
    env = environment_of(checkout)
    with tidemill(parent, name, env=env, plain=checkout is not None) as target:
        loaded = Path(f"/proc/{target.pid}/maps").read_text()
        if checkout is not None and f"{(checkout / 'src').resolve()}/tidemill/" not in loaded:
            raise RuntimeError(f"the broker does not run the extension of {checkout}")
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
    arguments = ["--sync", str(folder / "floor")] if sync else []
    with _printing_its_port("bench.clients.floor", *arguments) as (port, pid):
        yield Target("floor, fdatasync" if sync else "floor", f"127.0.0.1:{port}", pid)


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
    arguments = [mode, str(folder), "--files", str(files), "--chunk", str(chunk)]
    arguments += ["--sync"] if sync else []
    arguments += ["--checked"] if checked else []
    with _printing_its_port("bench.baseline", *arguments) as (port, _):
        yield ("127.0.0.1", port)


@contextlib.contextmanager
def _printing_its_port(module: str, *arguments: str) -> Iterator[tuple[int, int]]:
    """Run a server, and yield its port and its process id."""
    command = [sys.executable, "-m", module, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline()), process.pid
        finally:
            process.kill()
