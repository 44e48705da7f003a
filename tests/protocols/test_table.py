"""A protocol is one folder and one line in the table of protocols."""

from __future__ import annotations

import os
import pty
import select
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support import environment
from tests.support.broker_process import BrokerProcess
from tidemill.cli.server import settings_file
from tidemill.errors import SettingsError
from tidemill.protocols import table

ECHO = "tests.protocols.echo.protocol"
PROGRAM = f"""\
from tidemill.protocols import table
table.PROTOCOLS.append({ECHO!r})
from tidemill.cli.main import main
main()
"""
COMMAND = [sys.executable, "-c", PROGRAM]
PATHS = {"PYTHONPATH": str(Path(__file__).parents[2])}


@pytest.fixture
def _with_echo(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(table, "PROTOCOLS", [*table.PROTOCOLS, ECHO])


def echoed(address: str, lines: bytes) -> bytes:
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=60) as client:
        client.sendall(lines)
        received = b""
        while len(received) < len(lines):
            received += client.recv(4096)
        return received


def test_a_protocol_of_one_folder_and_one_line_is_served_by_the_broker(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, settings={"echo.port": "0"}, env=PATHS, command=COMMAND) as broker:
        assert list(broker.ready_event) == ["event", "kafka", "amqp", "echo", "data_dir", "pid"]
        assert echoed(broker.ready_event["echo"], b"a\nbc\n") == b"a\nbc\n"
        broker.terminate()


def test_its_address_is_in_the_banner(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, "serve", "--kafka-port", "0", "--set", "amqp.port=0", "--set", "echo.port=0"],
        stdout=theirs,
        cwd=tmp_path,
        env=environment.without_settings()
        | PATHS
        | {"NO_COLOR": "1", "TIDEMILL_GATEWAY_ENABLED": "false", "TIDEMILL_HEALTH_PORT": "0"},
    )
    os.close(theirs)
    try:
        text = ""
        deadline = time.monotonic() + 60
        while "Ctrl-C stops it" not in text:
            assert select.select([ours], [], [], deadline - time.monotonic())[0], text
            text += os.read(ours, 4096).decode()
        (line,) = [line for line in text.splitlines() if line.startswith("  echo ")]
        assert echoed(line.split()[1], b"x\n") == b"x\n"
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def test_a_port_in_use_is_exit_4_with_the_flag_that_picks_a_free_one(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        done = subprocess.run(
            [*COMMAND, "serve", "--kafka-port=0", "--set=amqp.port=0", f"--set=echo.port={port}"],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env=environment.without_settings() | PATHS,
        )
    assert done.returncode == 4
    assert f"another process listens on 127.0.0.1:{port}" in done.stderr
    assert "--set echo.port=0 picks a free one" in done.stderr


@pytest.mark.usefixtures("_with_echo")
def test_its_settings_are_read_and_checked_like_all_others() -> None:
    Path("tidemill.toml").write_text("[echo]\nport = 70\n")
    loaded = settings_file.load(environ={})
    keys = [key for key, _, _ in loaded.entries()]
    assert keys[keys.index("echo.port") - 1].startswith("health.")
    assert ("echo.port", 70, "tidemill.toml") in loaded.entries()
    assert settings_file.load(environ={"TIDEMILL_ECHO_PORT": "7"}).settings.value("echo.port") == 7
    with pytest.raises(SettingsError, match=r"invalid value echo.port = 'x': "):
        settings_file.load(environ={"TIDEMILL_ECHO_PORT": "x"})
    with pytest.raises(SettingsError, match=r"unknown key echo\.prt") as refused:
        settings_file.load(environ={}, flags={"echo.prt": ("--set", "1")})
    assert refused.value.hint == "Did you mean echo.port?"


def test_the_declarations_import_no_server() -> None:
    program = (
        "import sys\nfrom tidemill.protocols.table import protocols\nprotocols()\n"
        "print([n for n in ('asyncio', 'ssl', 'tidemill.net', 'tidemill.engine') "
        "if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr
