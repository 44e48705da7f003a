"""Starts the brokers: tidemill, and RabbitMQ from Debian's package if it is installed.

Must not know: what is measured.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
from tests.support.broker_process import BrokerProcess

from bench import machine
from bench.run import Run

START_S = 90.0
_LIB = Path("/usr/lib/rabbitmq/bin")


_names = itertools.count()


@dataclass(frozen=True)
class AmqpBroker:
    """A running broker with one kind of queue.

    Attributes:
        name: the broker, and the kind of queue.
        port: its port of AMQP.
        pid: its process.
        kind: x-queue-type of its queues.
    """

    name: str
    port: int
    pid: int
    kind: str = "classic"

    @property
    def url(self) -> str:
        """Its address for clients."""
        return f"amqp://guest:guest@127.0.0.1:{self.port}/%2F"

    def memory_mb(self) -> float:
        """Return its resident memory in 10^6 bytes."""
        return machine.resident_mb(self.pid)

    def queue_arguments(self, queues: int) -> list[str]:
        """Return PerfTest's arguments for new durable queues."""
        number = next(_names)
        named = ["--auto-delete", "false", "--flag", "persistent", "--queue-args"]
        named.append(f"x-queue-type={self.kind}")
        if queues == 1:
            return [*named, "--queue", f"bench-{number}"]
        pattern = ["--queue-pattern", f"bench-{number}-%d", "--queue-pattern-from", "1"]
        return [*named, *pattern, "--queue-pattern-to", str(queues)]


@contextlib.contextmanager
def contenders(run: Run) -> Iterator[list[AmqpBroker]]:
    """Start tidemill, and RabbitMQ with both kinds of queues if it is installed."""
    folder = run.options.folder
    with tidemill(folder) as ours, rabbitmq(folder) as theirs:
        if theirs is None:
            run.say("note: rabbitmq-server is not installed, so there is nothing to compare with")
            yield [ours]
        else:
            quorum = dataclasses.replace(theirs, name="rabbitmq quorum", kind="quorum")
            yield [ours, theirs, quorum]


@contextlib.contextmanager
def tidemill(parent: Path) -> Iterator[AmqpBroker]:
    """Start a new tidemill broker with default settings."""
    with (
        tempfile.TemporaryDirectory(prefix="tidemill-", dir=parent) as folder,
        BrokerProcess(Path(folder), settings={"amqp.port": "0"}, fresh=True) as broker,
    ):
        yield AmqpBroker("tidemill", broker.amqp_port, broker.pid)


def rabbitmq_server() -> Path | None:
    """Return RabbitMQ's start script if it is installed."""
    found = _LIB / "rabbitmq-server"
    if found.exists():
        return found
    path = shutil.which("rabbitmq-server")
    return Path(path) if path else None


@contextlib.contextmanager
def rabbitmq(parent: Path) -> Iterator[AmqpBroker | None]:
    """Start a new RabbitMQ node with default settings; None if it is not installed.

    Raises:
        RuntimeError: it does not start within 90 seconds.
    """
    script = rabbitmq_server()
    if script is None:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="rabbitmq-", dir=parent) as name:
        folder = Path(name)
        port = _free_port()
        env = {
            **os.environ,
            "HOME": str(folder),
            "RABBITMQ_NODENAME": f"bench{port}@localhost",
            "RABBITMQ_NODE_PORT": str(port),
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_DIST_PORT": str(_free_port()),
            "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
            "RABBITMQ_CONFIG_FILE": str(folder / "none"),
            "RABBITMQ_CONF_ENV_FILE": str(folder / "none.conf"),
            "RABBITMQ_PID_FILE": str(folder / "pid"),
            "ERL_EPMD_PORT": str(_free_port()),
        }
        log = (folder / "output").open("wb")
        process = subprocess.Popen(
            [script], env=env, stdout=log, stderr=log, start_new_session=True
        )
        try:
            _wait_for(port, process, folder / "output")
            yield AmqpBroker("rabbitmq classic", port, _beam_of(process.pid))
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            _kill_all(env["RABBITMQ_NODENAME"], env["ERL_EPMD_PORT"])
            log.close()


def _wait_for(port: int, process: subprocess.Popen[bytes], output: Path) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1) as sock:
            sock.settimeout(5)
            sock.sendall(b"AMQP\x00\x00\x09\x01")
            if sock.recv(1):
                return
        time.sleep(0.3)
    raise RuntimeError(f"rabbitmq-server did not start: {output.read_text()[-2000:]}")


def _beam_of(leader: int) -> int:
    """Return the Erlang process of a session: the one with most memory."""
    found = {
        pid: machine.resident_mb(pid)
        for pid in (int(each.name) for each in Path("/proc").iterdir() if each.name.isdigit())
        if _session_of(pid) == leader
    }
    return max(found, key=lambda pid: found[pid])


def _kill_all(node: str, port_mapper: str) -> None:
    """Kill what the start script left: Erlang's port mapper is a daemon."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            environment = process.environ()
            if environment.get("ERL_EPMD_PORT") == port_mapper or (
                environment.get("RABBITMQ_NODENAME") == node
            ):
                process.kill()


def _session_of(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except OSError:
        return None


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])
