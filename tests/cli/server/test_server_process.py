"""The broker as a process: what it says when it is ready, and how it stops."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import signal
import socket
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.net.test_tls import make as make_certificate
from tests.support.broker_process import BrokerProcess
from tests.support.processes import accepts_connections
from tidemill.cli.server.serve import _greeting
from tidemill.cli.server.settings_file import load

COMMAND = [sys.executable, "-m", "tidemill"]


def environment() -> dict[str, str]:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("TIDEMILL_", "NO_COLOR"))}
    return {
        **inherited,
        "TIDEMILL_AMQP_PORT": "0",
        "TIDEMILL_GATEWAY_ENABLED": "false",
        "TIDEMILL_HEALTH_ENABLED": "false",
    }


@contextmanager
def started(*arguments: str, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(
        [*COMMAND, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=folder,
        env=environment(),
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def finished(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command that should end by itself."""
    return subprocess.run(
        [*COMMAND, *arguments],
        capture_output=True,
        text=True,
        cwd=folder,
        env=environment(),
        timeout=120,
    )


@pytest.mark.parametrize("verb", ["dev", "serve"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_it_prints_ready_once_and_stops_cleanly(
    verb: str, number: signal.Signals, tmp_path: Path
) -> None:
    with started(verb, "--kafka-port", "0", "--data-dir", "data", folder=tmp_path) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        ready = json.loads(line)
        host, _, port = ready.pop("kafka").rpartition(":")
        assert ready.pop("amqp").startswith("127.0.0.1:")
        assert ready == {"event": "ready", "data_dir": str(tmp_path / "data"), "pid": process.pid}
        assert accepts_connections(host, int(port))
        process.send_signal(number)
        rest, _ = process.communicate(timeout=60)
    assert (process.returncode, rest) == (0, b"")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "<&- >&-"])
def test_it_serves_and_stops_with_standard_streams_that_are_closed(
    tmp_path: Path, closed: str
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = f"{sys.executable} -m tidemill serve --kafka-port {port} --set amqp.port=0"
    command += " --set gateway.enabled=false --set health.enabled=false"
    process = subprocess.Popen(
        ["sh", "-c", f"exec {command} --data-dir {tmp_path / 'data'} {closed}"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        logged = ""
        while "event=ready" not in logged and (line := process.stderr.readline()):
            logged += line
        done = subprocess.run(
            [sys.executable, "-m", "tidemill", "topic", "list", "-b", f"127.0.0.1:{port}"],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        process.terminate()
        logged += process.communicate(timeout=30)[1]
        assert process.returncode == 0, logged
    finally:
        process.kill()
        process.wait()


def test_it_starts_beside_a_service_of_its_name_in_kubernetes(tmp_path: Path) -> None:
    env = {"TIDEMILL_PORT": "tcp://10.0.0.7:9092", "TIDEMILL_SERVICE_HOST": "10.0.0.7"}
    with BrokerProcess(tmp_path, env=env, fresh=True) as broker:
        assert (
            'event=environment.ignored variables="TIDEMILL_PORT, TIDEMILL_SERVICE_HOST"'
            in broker.log()
        )


@pytest.mark.parametrize("with_tls", [False, True])
def test_closing_the_terminal_stops_it_cleanly(tmp_path: Path, with_tls: bool) -> None:
    options = []
    if with_tls:  # then SIGHUP reloads the certificate, but not if the terminal is gone
        cert, key = make_certificate(tmp_path, "a")
        options = ["--set", f"kafka.tls_cert={cert}", "--set", f"kafka.tls_key={key}"]
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, "dev", "--kafka-port", "0", *options],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        cwd=tmp_path,
        env=environment(),
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(theirs)
    try:
        text = b""
        while b"Ctrl-C stops it" not in text:
            text += os.read(ours, 4096)
        os.close(ours)
        assert process.wait(60) == 0
    finally:
        process.kill()
    assert (tmp_path / "tidemill-data" / "clean-stop.json").exists()


def test_the_banner_does_not_promise_a_gateway_whose_port_is_in_use(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        loaded = load(None, flags={"gateway.port": ("--set", port), "data_dir": ("", tmp_path)})
        taken = _greeting(loaded, [], hints=False)
    free = _greeting(loaded, [], hints=False)
    url = f"http://127.0.0.1:{port}/"
    assert f"{url} starts when port {port} is free: another process has it" in taken
    assert url in free
    assert "another process" not in free


def test_a_terminal_gets_addresses_and_three_things_to_try(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, "dev", "--kafka-port", "0"],
        stdout=theirs,
        stderr=subprocess.PIPE,
        cwd=tmp_path,
        env=environment() | {"NO_COLOR": "1"},
    )
    os.close(theirs)
    try:
        text = ""
        deadline = time.monotonic() + 60
        while "Ctrl-C stops it" not in text:
            assert select.select([ours], [], [], deadline - time.monotonic())[0], text
            text += os.read(ours, 4096).decode()
        lines = [line.strip() for line in text.splitlines()]
        address = next(line.split()[1] for line in lines if line.startswith("kafka"))
        assert address.startswith("localhost:")
        tries = [line for line in lines if "tidemill topic" in line]
        assert len(tries) == 3
        assert all(line.endswith(f"-b {address}") for line in tries)
        assert str(tmp_path / "tidemill-data") in text
        assert "\x1b" not in text
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.communicate()
        os.close(ours)


def test_a_port_in_use_is_exit_4_with_a_hint(broker: BrokerProcess, tmp_path: Path) -> None:
    done = finished(tmp_path, "dev", "--kafka-port", str(broker.port))
    assert (done.returncode, done.stdout) == (4, "")
    assert f"error: another process listens on 127.0.0.1:{broker.port}" in done.stderr
    assert "--kafka-port 0" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_data_folder_in_use_is_exit_4(broker: BrokerProcess, tmp_path: Path) -> None:
    done = finished(tmp_path, "serve", "--kafka-port", "0", "--data-dir", str(broker.data_dir))
    assert (done.returncode, done.stdout) == (4, "")
    assert "in use by another process" in done.stderr
    assert "hint: " in done.stderr


@pytest.mark.parametrize("folder", ["file", "file/below/it"])
def test_an_invalid_data_folder_is_wrong_usage(folder: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = finished(tmp_path, "dev", "--kafka-port", "0", "--data-dir", folder)
    assert (done.returncode, done.stdout) == (2, "")
    place = tmp_path / "file"
    assert f"error: invalid data folder {folder}: {place} is not a folder" in done.stderr
    assert "--data-dir DIR" in done.stderr


def test_a_folder_with_other_files_is_rejected_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "data" / "topic-0").mkdir(parents=True)
    done = finished(tmp_path, "serve", "--kafka-port", "0", "--data-dir", "data")
    assert done.returncode == 1
    assert "it is not a tidemill data folder" in done.stderr
    assert "Traceback" not in done.stderr


def test_set_alone_decides_the_port_and_the_folder(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    flags = ("--set", f"kafka.port={port}", "--set", "data_dir=elsewhere")
    for command in ("serve", "dev"):
        with started(command, *flags, folder=tmp_path) as process:
            assert process.stdout is not None
            ready = json.loads(process.stdout.readline())
        assert ready["kafka"] == f"127.0.0.1:{port}"
        assert ready["data_dir"] == str(tmp_path / "elsewhere")
    assert not (tmp_path / "tidemill-data").exists()


def test_a_wrong_topic_default_is_refused_before_anything_starts(tmp_path: Path) -> None:
    done = finished(
        tmp_path, "serve", "--kafka-port", "0", "--set", "log.topic_defaults.retention.ms=soon"
    )
    assert done.returncode != 0
    assert "retention.ms" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_second_interrupt_ends_it_immediately(tmp_path: Path) -> None:
    """Both signals are there before the clean stop can begin; whichever is second decides."""
    with started("dev", "--kafka-port", "0", folder=tmp_path) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["event"] == "ready"
        process.send_signal(signal.SIGSTOP)  # both signals are pending when it continues
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGCONT)
        assert process.wait(60) in (128 + signal.SIGTERM, 128 + signal.SIGINT)


def test_log_lines_are_logfmt_for_machines_and_the_level_is_a_setting(tmp_path: Path) -> None:
    with started(
        *("serve", "--kafka-port", "0", "--set", "telemetry.level=info"), folder=tmp_path
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
    lines = errors.decode().splitlines()
    assert all(line.startswith("timestamp=") for line in lines), lines
    assert "component=server event=ready" in lines[0]
    assert "event=stopped" in lines[-1]
