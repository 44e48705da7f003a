"""The socket of the supervisor: what it answers, whom, and what it does not wait for."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import stat
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import structlog

from tests.workers.running import Log, python, supervised, until
from tidemill.errors import UnreachableError
from tidemill.system import socket_path
from tidemill.workers import control
from tidemill.workers.control import SOCKET, ControlSocket, SupervisorClient
from tidemill.workers.errors import UnknownWorkerError, WorkerNotNeededError

COUNTS = (
    "import itertools, time\nfor number in itertools.count(): print('n', number); time.sleep(0.01)"
)

MUCH = "import time; print(*['x' * 999] * 900, sep='\\n'); time.sleep(600)"


@asynccontextmanager
async def controlled(
    folder: Path, log: Log | None = None, program: str = COUNTS
) -> AsyncIterator[SupervisorClient]:
    specs = [python("a", program), python("later", COUNTS, wanted=lambda: False)]
    async with supervised(specs, log=log) as supervisor:
        server = ControlSocket(supervisor, folder)
        await server.start()
        try:
            await until(lambda: supervisor.statuses()[0].state == "running", "it runs")
            yield SupervisorClient(folder)
        finally:
            await server.stop()


async def ask(folder: Path, data: bytes) -> bytes:
    """Return all that the supervisor answers to a request."""
    reader, writer = await asyncio.open_unix_connection(str(folder / SOCKET))
    writer.write(data)
    answer = await reader.read()
    writer.close()
    return answer


async def test_it_lists_and_restarts_workers(tmp_path: Path) -> None:
    async with controlled(tmp_path) as client:
        first, later = await asyncio.to_thread(client.list)
        assert (first["name"], first["state"], first["restarts"]) == ("a", "running", 0)
        assert (later["state"], later["pid"]) == ("waiting", None)
        again = await asyncio.to_thread(client.restart, "a")
        assert (again["state"], again["restarts"]) == ("running", 1)
        assert again["pid"] != first["pid"]
        with pytest.raises(WorkerNotNeededError):
            await asyncio.to_thread(client.restart, "later")
        for call in (client.restart, lambda name: list(client.logs(name, 1, follow=False))):
            with pytest.raises(UnknownWorkerError) as caught:
                await asyncio.to_thread(call, "b")
            assert caught.value.hint == "Workers: a, later."


async def test_it_shows_the_last_lines_and_follows_the_next_ones(tmp_path: Path) -> None:
    log = Log()

    def follow(lines: Iterator[bytes], count: int) -> list[bytes]:
        found = [next(lines) for _ in range(count)]
        lines.close()  # type: ignore[attr-defined]
        return found

    async with controlled(tmp_path, log) as client:
        await until(lambda: len(log.lines) > 10, "lines")
        kept = await asyncio.to_thread(lambda: list(client.logs("a", None, follow=False)))
        assert kept[:2] == [b"n 0\n", b"n 1\n"]
        last = await asyncio.to_thread(lambda: list(client.logs("a", 3, follow=False)))
        numbers = [int(line.split()[1]) for line in last]
        assert numbers == [numbers[0], numbers[0] + 1, numbers[0] + 2]
        more = await asyncio.to_thread(follow, client.logs("a", 1, follow=True), 100)
        numbers = [int(line.split()[1]) for line in more]
        assert numbers == list(range(numbers[0], numbers[0] + 100))


async def test_only_the_user_of_the_broker_can_connect_and_the_socket_goes_with_it(
    tmp_path: Path,
) -> None:
    async with controlled(tmp_path):
        assert os.listdir(tmp_path) == [SOCKET]
        assert stat.S_IMODE((tmp_path / SOCKET).stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == []


async def test_the_socket_of_a_killed_broker_is_replaced(tmp_path: Path) -> None:
    for name in (SOCKET, f"{SOCKET}.new"):
        with socket.socket(socket.AF_UNIX) as left:
            left.bind(str(tmp_path / name))
    with pytest.raises(UnreachableError, match="connection refused"):
        SupervisorClient(tmp_path).list()
    async with controlled(tmp_path) as client:
        assert len(await asyncio.to_thread(client.list)) == 2


def test_without_a_broker_a_command_says_so(tmp_path: Path) -> None:
    with pytest.raises(UnreachableError, match="no broker answers in the data folder"):
        SupervisorClient(tmp_path).list()


async def test_a_data_folder_with_a_long_path_works(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 120) / ("y" * 120)
    folder.mkdir(parents=True)
    async with controlled(folder) as client:
        assert len(await asyncio.to_thread(client.list)) == 2


async def test_a_path_that_is_too_long_for_the_system_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / ("x" * 120)
    folder.mkdir()
    monkeypatch.setattr("sys.platform", "darwin")
    with structlog.testing.capture_logs() as events:
        async with supervised([]) as supervisor:
            server = ControlSocket(supervisor, folder)
            await server.start()
            await server.stop()
    assert [each["event"] for each in events] == ["workers.no_socket"]
    with pytest.raises(UnreachableError, match="name too long"):
        SupervisorClient(folder).list()
    monkeypatch.chdir(folder)
    with socket_path(str(folder / SOCKET)) as path:
        assert path == SOCKET


@pytest.mark.parametrize(
    "request_",
    [
        b"nothing\n",
        b"[]\n",
        b"{}\n",
        b'{"do": "restart"}\n',
        b'{"do": "logs", "worker": 1}\n',
        b"[" * 4000 + b"\n",
        b"\xff\xfe\n",
        b"{" + b"x" * 100_000,
    ],
)
async def test_a_request_that_is_malformed_or_endless_is_refused(
    request_: bytes, tmp_path: Path
) -> None:
    async with controlled(tmp_path) as client:
        try:
            answer = await ask(tmp_path, request_)
        except ConnectionError:
            answer = b""  # the rest of the request was not read
        if answer:
            assert json.loads(answer)["error"] == "TidemillError"
        assert len(await asyncio.to_thread(client.list)) == 2


async def test_clients_that_send_nothing_or_read_nothing_are_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "PATIENCE_S", 0.2)
    log = Log()
    async with controlled(tmp_path, log, MUCH) as client:
        await until(lambda: len(log.data) > 900_000, "more than a socket takes")
        assert await ask(tmp_path, b"") == b""
        many = [socket.socket(socket.AF_UNIX) for _ in range(control._MOST_CLIENTS)]
        for each in many:
            each.connect(str(tmp_path / SOCKET))
            each.send(b'{"do": "logs", "worker": "a"}\n')
        # While they are connected no other client is served, until they are closed.

        def is_served() -> bool:
            try:
                return bool(client.list())
            except UnreachableError:
                return False

        async with asyncio.timeout(90):
            while not await asyncio.to_thread(is_served):
                await asyncio.sleep(0.05)
        for each in many:
            each.close()
