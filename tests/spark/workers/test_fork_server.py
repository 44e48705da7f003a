"""Spark's Python processes are forks that differ in nothing that Spark or a module can see."""

from __future__ import annotations

import contextlib
import json
import marshal
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.processes import poll_until
from tidemill.spark.workers import handoff, server
from tidemill.spark.workers.fork_server import Request, search_path
from tidemill.spark.workers.server import LAUNCHER, WorkerServer, start_server

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux only")

TIMEOUT_S = 60
PROBE = """
import json, os, signal, sys
print(json.dumps({
    "name": __name__, "argv": sys.argv[1:], "mine": os.environ.get("MINE"),
    "server_only": os.environ.get("ONLY_IN_SERVER"), "cwd": os.getcwd(), "path": sys.path[0],
    "parent": os.getppid(), "pid": os.getpid(), "imported": "pyarrow" in sys.modules,
    "input": sys.stdin.read(), "seed": hash("x"),
    "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, []))}))
sys.exit(int(os.environ.get("CODE", "0")))
"""
WAITING = "import time\nprint('ready', flush=True)\ntime.sleep(600)\n"
STUBBORN = "import signal\nsignal.signal(signal.SIGTERM, lambda *_: None)\n" + WAITING
ORPHAN = "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)\n" + WAITING
"""A module that kills the server as the first thing that it does."""


def new_server() -> WorkerServer:
    started = start_server()
    assert started is not None
    return started


Env = dict[str, str]
"""The variables of a launcher."""


@pytest.fixture(scope="module")
def workers() -> Iterator[WorkerServer]:
    """A fork server, with a variable that no launcher has."""
    os.environ["ONLY_IN_SERVER"] = "yes"
    try:
        started = new_server()
    finally:
        del os.environ["ONLY_IN_SERVER"]
    yield started
    started.stop()


@pytest.fixture
def modules(tmp_path: Path) -> Path:
    """A folder with the modules that the tests run."""
    folder = tmp_path / "modules"
    folder.mkdir()
    modules = {"probe": PROBE, "waiting": WAITING, "stubborn": STUBBORN, "orphan": ORPHAN}
    for name, code in modules.items():
        (folder / f"{name}.py").write_text(code)
    return folder


def environ(served: Mapping[str, str], modules: Path, **more: str) -> dict[str, str]:
    path = os.pathsep.join([str(modules), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, handoff.PYTHON: sys.executable, **served, "PYTHONPATH": path, **more}


def launch(
    env: Mapping[str, str], *arguments: str, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [LAUNCHER, *arguments],
        env=env,
        capture_output=True,
        text=True,
        input="typed",
        timeout=TIMEOUT_S,
        cwd=cwd,
        check=False,
    )


def probe(env: Mapping[str, str], *arguments: str, cwd: Path | None = None) -> dict[str, Any]:
    done = launch(env, "-m", "probe", *arguments, cwd=cwd)
    assert done.stdout, done.stderr
    return {"code": done.returncode, "stderr": done.stderr, **json.loads(done.stdout)}


def start(env: Mapping[str, str], module: str) -> subprocess.Popen[bytes]:
    """Start a module that waits, and return its launcher when it runs."""
    process = subprocess.Popen([LAUNCHER, "-m", module], env=env, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    return process


@pytest.fixture
def env(workers: WorkerServer, modules: Path) -> Env:
    """The variables of a launcher that finds the fork server and the modules."""
    return environ(workers.environ, modules)


def forks(workers: WorkerServer) -> list[psutil.Process]:
    return list(psutil.Process(workers.pid).children())


def wait_for_end(process: psutil.Process) -> None:
    """Wait until a process has ended, also if its parent never asks for its exit code."""

    def has_ended() -> bool:
        try:
            return bool(process.status() == psutil.STATUS_ZOMBIE)
        except psutil.NoSuchProcess:
            return True

    poll_until(has_ended, TIMEOUT_S, f"{process} has ended")


def wait_until_none(workers: WorkerServer) -> None:
    poll_until(lambda: not forks(workers), TIMEOUT_S, "the forks have ended")


def test_a_fork_has_what_the_launcher_got(workers: WorkerServer, env: Env, tmp_path: Path) -> None:
    env = {**env, "MINE": "x=\udcff", "CODE": "7"}
    found = probe(env, "a b", "", cwd=tmp_path)
    assert found["parent"] == workers.pid
    assert found["imported"]  # by the server
    assert found["name"] == "__main__"
    assert found["argv"] == ["a b", ""]
    assert found["mine"] == "x=\udcff"
    assert found["server_only"] is None
    assert found["cwd"] == found["path"] == str(tmp_path)
    assert found["input"] == "typed"
    assert found["blocked"] == []
    assert found["code"] == 7


@pytest.mark.parametrize("path", [None, "/nowhere/socket", ""])
def test_without_a_server_the_interpreter_runs(modules: Path, path: str | None) -> None:
    env = environ({}, modules, **({} if path is None else {handoff.SOCKET: path}), CODE="3")
    found = probe(env, "a")
    assert (found["argv"], found["code"], found["imported"]) == (["a"], 3, False)
    assert found["parent"] == os.getpid()  # the launcher became the interpreter
    assert found["blocked"] == []


def test_an_interpreter_with_other_settings_is_not_a_fork(env: Env) -> None:
    same = [probe({**env, "PYTHONHASHSEED": "0"}) for _ in range(2)]
    other = probe({**env, "PYTHONHASHSEED": "1"})
    assert [each["imported"] for each in (*same, other)] == [True, True, False]
    assert same[0]["seed"] == same[1]["seed"] != other["seed"]


def test_what_is_not_a_module_is_left_to_the_interpreter(env: Env) -> None:
    done = launch(env, "-c", "import os; print(os.getppid())")
    assert int(done.stdout) == os.getpid()


def test_an_error_is_printed_and_is_the_exit_code(env: Env) -> None:
    done = launch(env, "-m", "no_such_module")
    assert done.returncode == 1
    assert "No module named no_such_module" in done.stderr


def test_a_signal_reaches_the_fork_and_its_end_is_the_launchers(
    workers: WorkerServer, env: Env
) -> None:
    process = start(env, "waiting")
    process.terminate()
    assert process.wait(TIMEOUT_S) == -signal.SIGTERM
    wait_until_none(workers)


def test_the_fork_of_a_launcher_that_is_killed_is_killed(workers: WorkerServer, env: Env) -> None:
    process = start(env, "stubborn")
    (fork,) = forks(workers)
    process.terminate()  # the fork ignores it
    process.kill()
    process.wait()
    wait_for_end(fork)


def test_a_launcher_ends_with_a_fork_that_is_killed(workers: WorkerServer, env: Env) -> None:
    process = start(env, "waiting")
    (fork,) = forks(workers)
    fork.kill()
    assert process.wait(TIMEOUT_S) == -signal.SIGKILL


def test_the_output_ends_with_the_fork(env: Env) -> None:
    process = start(env, "waiting")
    process.terminate()
    assert process.stdout is not None
    assert process.stdout.read() == b""
    process.wait()


def test_many_processes_start_at_the_same_time(workers: WorkerServer, env: Env) -> None:
    many = [start(env, "waiting") for _ in range(20)]
    assert len(forks(workers)) == 20
    for each in many:
        each.terminate()
    assert {each.wait(TIMEOUT_S) for each in many} == {-signal.SIGTERM}
    wait_until_none(workers)


@pytest.mark.parametrize(
    "sent", [b"", b"\0\0", b"\0\0\0\4", b"\xff\xff\xff\xffx", b"\0\0\0\2\xff\xff"]
)
def test_a_damaged_request_does_not_end_the_server(env: Env, sent: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(env[handoff.SOCKET])
        client.sendall(sent)
        client.shutdown(socket.SHUT_WR)
        assert client.recv(99) == handoff.REFUSED + bytes(4)
    assert probe(env)["imported"]


def test_a_launcher_that_sends_nothing_holds_back_no_other(env: Env) -> None:
    with contextlib.ExitStack() as silent:
        for _ in range(5):
            client = silent.enter_context(socket.socket(socket.AF_UNIX))
            client.connect(env[handoff.SOCKET])
        assert probe(env)["imported"]


def test_the_fork_itself_answers_with_its_process_id(
    workers: WorkerServer, modules: Path, env: Env
) -> None:
    """If the server answered, Spark's process could run and end before its launcher knows it."""
    message = marshal.dumps((["-m", "waiting"], env, str(modules)))
    with socket.socket(socket.AF_UNIX) as client, Path(os.devnull).open("w+b") as nothing:
        client.settimeout(TIMEOUT_S)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        client.connect(env[handoff.SOCKET])
        files = [nothing.fileno()] * 3
        head = len(message).to_bytes(handoff.LENGTH_BYTES, "big")
        assert socket.send_fds(client, [head], files) == len(head)
        client.sendall(message)
        answer, [(_, kind, credentials)], *_ = client.recvmsg(
            handoff.ANSWER_BYTES, socket.CMSG_SPACE(struct.calcsize("3i"))
        )
        assert kind == socket.SCM_CREDENTIALS
        sender, *_ = struct.unpack("3i", credentials)
        assert answer == handoff.STARTED + sender.to_bytes(4, "big")
        (fork,) = forks(workers)
        assert fork.pid == sender
    wait_for_end(fork)  # the client was its launcher


def test_a_fork_whose_server_dies_under_it_still_has_its_launcher(modules: Path) -> None:
    own = new_server()
    process = start(environ(own.environ, modules), "orphan")
    own.stop()
    process.terminate()
    assert process.wait(TIMEOUT_S) == 1
    assert process.stdout is not None
    assert process.stdout.read() == b""  # the fork has ended


def test_a_server_that_is_killed_leaves_its_forks_and_their_launchers(modules: Path) -> None:
    own = new_server()
    process = start(environ(own.environ, modules), "waiting")
    (fork,) = forks(own)
    psutil.Process(own.pid).kill()
    own.stop()
    process.terminate()  # still reaches the fork
    wait_for_end(fork)
    assert process.wait(TIMEOUT_S) == 1
    assert not probe(environ(own.environ, modules))["imported"]


def test_a_server_ends_with_the_program_that_started_it() -> None:
    code = (
        "import os, signal; from tidemill.spark.workers.server import start_server\n"
        "print(start_server().pid, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, timeout=TIMEOUT_S, check=False
    )
    pid = int(done.stdout)
    with contextlib.suppress(psutil.NoSuchProcess):
        wait_for_end(psutil.Process(pid))


def test_a_stopped_server_leaves_no_files(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory() as short:  # the path of a socket has at most 107 bytes
        folder = Path(short)
        monkeypatch.setattr(tempfile, "tempdir", short)
        own = new_server()
        assert list(folder.iterdir())
        own.stop()
        assert not list(folder.iterdir())


def test_a_folder_whose_path_is_too_long_for_a_socket_means_no_server(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = tmp_path / ("x" * 120)
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    assert start_server() is None
    assert not list(folder.iterdir())


def test_the_user_can_switch_it_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(server.SWITCH, "0")
    assert start_server() is None


def test_the_path_has_the_names_of_the_request_before_the_servers() -> None:
    env = {"PYTHONPATH": os.pathsep.join(["/spark/python", "/mine", "/spark/python", ""])}
    request = Request(["-m", "x"], env, "/work", ())
    own = ["/folder-of-server", "/old", "/lib/python", "/lib/site-packages"]
    assert search_path(request, own, "/old") == [
        *("/work", "/spark/python", "/mine", "/lib/python", "/lib/site-packages")
    ]
