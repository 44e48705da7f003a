"""Runs Apache Kafka as one KRaft node: the reference for the interop suite and for bench.

Finds Kafka's jars in ``$KAFKA_HOME/libs``, or through Maven (local repository first, network only
if ``fetch`` allows it). Knows nothing of tidemill.

Run as a program, it starts a broker and prints its address until it is interrupted::

    python -m tests.support.apache_kafka /tmp/kafka-data --port 9192
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from tests.support.ports import reserve_port
from tests.support.processes import NotInstalledError, ServerProcess, accepts_connections

KAFKA_VERSION = "4.3.0"
SCALA_VERSION = "2.13"
CLUSTER_ID = "dG0tcmVmZXJlbmNlLWthZg"

_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>reference</groupId><artifactId>kafka</artifactId><version>1</version>
<dependencies><dependency><groupId>org.apache.kafka</groupId>
<artifactId>kafka_{scala}</artifactId><version>{version}</version></dependency></dependencies>
</project>
"""


class KafkaNotFoundError(NotInstalledError):
    """There is no Java, or Kafka's jars can't be found; the message says what is missing."""


def find_classpath(*, fetch: bool = False) -> str:
    """Return a class path with Kafka's server.

    Args:
        fetch: whether Maven may download what its local repository lacks.

    Raises:
        KafkaNotFoundError: the jars were not found.
    """
    home = os.environ.get("KAFKA_HOME")
    if home:
        libs = Path(home) / "libs"
        if not any(libs.glob("kafka_*.jar")):
            raise KafkaNotFoundError(f"KAFKA_HOME is set, but {libs} holds no kafka_*.jar")
        return f"{libs}/*"
    maven = shutil.which("mvn")
    if maven is None:
        raise KafkaNotFoundError("KAFKA_HOME is not set and there is no mvn to find the jars with")
    repository = Path.home() / ".m2/repository/org/apache/kafka" / f"kafka_{SCALA_VERSION}"
    if not fetch and not (repository / KAFKA_VERSION).is_dir():
        raise KafkaNotFoundError(f"KAFKA_HOME is not set and {repository} lacks {KAFKA_VERSION}")
    with tempfile.TemporaryDirectory(prefix="kafka-classpath-") as folder:
        (Path(folder) / "pom.xml").write_text(
            _POM.format(scala=SCALA_VERSION, version=KAFKA_VERSION)
        )
        result = Path(folder) / "classpath"
        command = [maven, "-q", "-B", "dependency:build-classpath", f"-Dmdep.outputFile={result}"]
        if not fetch:
            command.append("--offline")
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=600, check=False
        )
        if done.returncode != 0:
            raise KafkaNotFoundError(f"mvn could not resolve Kafka's jars: {done.stdout[-2000:]}")
        return result.read_text().strip()


def find_tools_classpath() -> str:
    """Return a class path with Kafka's server and its command line tools.

    Raises:
        KafkaNotFoundError: the jars were not found.
    """
    classpath = find_classpath()
    if os.environ.get("KAFKA_HOME"):
        return classpath
    folder = Path.home() / ".m2/repository/org/apache/kafka/kafka-tools" / KAFKA_VERSION
    jar = folder / f"kafka-tools-{KAFKA_VERSION}.jar"
    if not jar.exists():
        artifact = f"org.apache.kafka:kafka-tools:{KAFKA_VERSION}"
        raise KafkaNotFoundError(f"{jar} is missing: mvn dependency:get -Dartifact={artifact}")
    return f"{jar}{os.pathsep}{classpath}"


def find_java() -> str:
    """Return the ``java`` of JAVA_HOME or of PATH.

    Raises:
        KafkaNotFoundError: there is none.
    """
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None or not Path(java).exists():
        raise KafkaNotFoundError("no java on PATH and none in JAVA_HOME")
    return java


class ApacheKafka:
    """One Kafka node that is broker and controller, on loopback. Use as a context manager.

    Args:
        folder: for data, configuration and output. It is created, and kept.
        port: of the client listener; None picks a free one.
        properties: server properties; they win over the defaults.
        heap_mb: maximum Java heap in MiB.
        fetch: whether Maven may download Kafka's jars.

    Raises:
        KafkaNotFoundError: no Java or no jars.
    """

    def __init__(
        self,
        folder: Path,
        *,
        port: int | None = None,
        properties: Mapping[str, str] | None = None,
        heap_mb: int = 512,
        fetch: bool = False,
    ) -> None:
        self._java = find_java()
        self._classpath = find_classpath(fetch=fetch)
        self._heap_mb = heap_mb
        self.folder = folder
        self.port = reserve_port() if port is None else port
        self.process: ServerProcess | None = None
        folder.mkdir(parents=True, exist_ok=True)
        self._config = folder / "server.properties"
        settings = {**self._default_properties(), **(properties or {})}
        self._config.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))

    @property
    def bootstrap(self) -> str:
        """``host:port`` for clients."""
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """Process id of the running broker."""
        assert self.process is not None, "not started"
        return self.process.pid

    def _default_properties(self) -> dict[str, str]:
        controller = reserve_port()
        return {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self.port}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "log.dirs": str(self.folder / "data"),
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "transaction.state.log.num.partitions": "1",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            "log.retention.check.interval.ms": str(24 * 3_600_000),  # as NO_RETENTION
            "group.initial.rebalance.delay.ms": "100",
            "group.min.session.timeout.ms": "1000",
        }

    def start(self, timeout: float = 180) -> Self:
        """Format a new folder, start, and wait until clients can connect.

        Raises:
            StartFailedError: it ended or was not ready in time.
        """
        if not (self.folder / "data" / "meta.properties").exists():
            subprocess.run(
                [
                    *self._command("-Xmx128m"),
                    "kafka.tools.StorageTool",
                    *("format", "--cluster-id", CLUSTER_ID, "--config", str(self._config)),
                ],
                check=True,
                capture_output=True,
                timeout=timeout,
            )
        self.process = ServerProcess(
            "Apache Kafka",
            [*self._command(f"-Xmx{self._heap_mb}m"), "kafka.Kafka", str(self._config)],
            self.folder / "kafka.log",
            cwd=self.folder,
        )
        try:
            self.process.wait_until(lambda: accepts_connections("127.0.0.1", self.port), timeout)
        except AssertionError:
            self.process.kill()
            raise
        return self

    def _command(self, heap: str) -> list[str]:
        # SerialGC: on a machine with few cores, the threads of G1 only take time from others.
        return [self._java, heap, "-XX:+UseSerialGC", "-cp", self._classpath]

    def stop(self) -> None:
        """Stop it cleanly."""
        if self.process is not None:
            self.process.terminate(timeout=60)
            self.process = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        if self.process is not None:
            self.process.kill()


def main() -> None:
    """Run a broker until SIGINT or SIGTERM."""
    parser = argparse.ArgumentParser(description="Run Apache Kafka as one node on loopback.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--port", type=int)
    parser.add_argument("--fetch", action="store_true", help="let Maven download the jars")
    arguments = parser.parse_args()
    with ApacheKafka(arguments.folder, port=arguments.port, fetch=arguments.fetch) as kafka:
        # Not before the start: a child inherits the mask.
        signals = {signal.SIGINT, signal.SIGTERM}
        signal.pthread_sigmask(signal.SIG_BLOCK, signals)
        print(kafka.bootstrap, flush=True)
        signal.sigwait(signals)
        kafka.stop()


if __name__ == "__main__":
    main()
