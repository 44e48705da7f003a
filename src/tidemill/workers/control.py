"""The Unix socket in the data folder, through which commands reach the supervisor.

A request is one line of JSON: ``{"do": "list"}``, ``{"do": "restart", "worker": NAME}`` or
``{"do": "logs", "worker": NAME, "lines": N, "follow": BOOL}``. The answer is one line of JSON, and
for ``logs`` the lines behind it. Only the user of the broker can connect. This module must not know
what a worker does.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import structlog

from tidemill.errors import TidemillError, UnreachableError
from tidemill.system import socket_path
from tidemill.workers.errors import UnknownWorkerError, WorkerNotNeededError
from tidemill.workers.output import WorkerLog
from tidemill.workers.supervisor import Supervisor

SOCKET = "workers.sock"
"""The socket's name in the data folder."""
PATIENCE_S = 5.0
"""How long a client can take to send its request, and to read a part of the answer."""
RESTART_S = 120.0
"""How long a command waits for the answer."""
_REQUEST_BYTES = 4096
_MOST_CLIENTS = 16
_FOLLOW_S = 0.2
_ERRORS = {each.__name__: each for each in (UnknownWorkerError, WorkerNotNeededError)}

Values = dict[str, Any]

log = structlog.get_logger("tidemill.workers")


class ControlSocket:
    """Serves the socket while the broker runs.

    Args:
        supervisor: what the commands are about.
        folder: the data folder, which no other broker uses.
    """

    def __init__(self, supervisor: Supervisor, folder: Path) -> None:
        self._supervisor = supervisor
        self._path = os.path.join(os.path.abspath(folder), SOCKET)
        self._server: asyncio.Server | None = None
        self._clients: set[asyncio.Task[Any]] = set()

    async def start(self) -> None:
        """Create the socket, in place of one that a killed broker has left.

        Without a socket, the workers run too, and a warning is logged.
        """
        try:
            bound = _bind(self._path)
            self._server = await asyncio.start_unix_server(
                self._serve, sock=bound, limit=_REQUEST_BYTES
            )
        except OSError as error:
            log.warning("workers.no_socket", path=self._path, error=error)

    async def stop(self) -> None:
        """Close the socket and all connections."""
        if self._server is None:
            return
        self._server.close()
        with contextlib.suppress(OSError):
            os.unlink(self._path)
        for task in self._clients:
            task.cancel()
        await asyncio.gather(*self._clients, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._clients.add(task)
        try:
            if len(self._clients) <= _MOST_CLIENTS:
                writer.transport.set_write_buffer_limits(0)  # drain waits until all is sent
                await self._answer(reader, writer)
        except (OSError, TimeoutError):
            pass  # the client is gone, or does not read
        finally:
            self._clients.discard(task)
            writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request = await _read_request(reader)
            done = await self._do(request)
        except TidemillError as error:
            done = {"error": type(error).__name__, "message": str(error), "hint": error.hint}
        output = done.pop("output", None)
        await _send(writer, json.dumps(done).encode() + b"\n")
        if output is not None:
            await _send_lines(reader, writer, output, request)

    async def _do(self, request: Values) -> Values:
        match request:
            case {"do": "list"}:
                return {"workers": [each.values() for each in self._supervisor.statuses()]}
            case {"do": "restart", "worker": str(name)}:
                worker = self._supervisor.worker(name)
                await worker.restart()
                return {"worker": worker.status.values()}
            case {"do": "logs", "worker": str(name)}:
                return {"worker": name, "output": self._supervisor.worker(name).output}
        raise TidemillError("invalid request to the supervisor of workers")


def _bind(path: str) -> socket.socket:
    """Return a bound socket. No client can connect before it has its mode and its name."""
    new = f"{path}.new"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(new)
    bound = socket.socket(socket.AF_UNIX)
    try:
        with socket_path(new) as short:
            bound.bind(short)
        os.chmod(new, 0o600)
        os.rename(new, path)
    except OSError:
        bound.close()
        raise
    return bound


async def _read_request(reader: asyncio.StreamReader) -> Values:
    try:
        async with asyncio.timeout(PATIENCE_S):
            request = json.loads(await reader.readline())
    except (ValueError, RecursionError):  # also of a line that is too long
        request = None
    if not isinstance(request, dict):
        raise TidemillError("the request is not a JSON object in one line")
    return request


async def _send(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(data)
    async with asyncio.timeout(PATIENCE_S):
        await writer.drain()


async def _send_lines(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, output: WorkerLog, request: Values
) -> None:
    """Send the last lines of a worker, and the next ones as long as the client follows."""
    count = request.get("lines")
    lines, number = output.last(count) if isinstance(count, int) else output.after(0)
    while True:
        if lines:
            await _send(writer, b"".join(line + b"\n" for line in lines))
        if request.get("follow") is not True:
            return
        try:
            async with asyncio.timeout(_FOLLOW_S):
                await reader.read(1)
            return  # the client has closed the connection
        except TimeoutError:
            lines, number = output.after(number)


# --- the side of a command -----------------------------------------------------------------------


class SupervisorClient:
    """Sends requests to the supervisor of the broker that uses a data folder.

    Args:
        folder: the data folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def list(self) -> list[Values]:
        """Return the status of each worker, as ``WorkerStatus.values`` gives it.

        Raises:
            UnreachableError: no broker runs with this folder.
        """
        with self._ask({"do": "list"}) as (done, _):
            workers: list[Values] = done["workers"]
            return workers

    def restart(self, name: str) -> Values:
        """Stop a worker and start it again; return its status.

        Raises:
            UnreachableError: no broker runs with this folder.
            UnknownWorkerError: there is no such worker.
            WorkerNotNeededError: it has nothing to do.
        """
        with self._ask({"do": "restart", "worker": name}) as (done, _):
            status: Values = done["worker"]
            return status

    def logs(self, name: str, lines: int | None, *, follow: bool) -> Iterator[bytes]:
        """Yield lines that a worker has written, and then those that it writes.

        Raises:
            UnreachableError: no broker runs with this folder.
            UnknownWorkerError: there is no such worker.
        """
        request = {"do": "logs", "worker": name, "lines": lines, "follow": follow}
        with self._ask(request) as (_, rest):
            yield from rest

    @contextlib.contextmanager
    def _ask(self, request: Values) -> Iterator[tuple[Values, Iterator[bytes]]]:
        """Send a request; yield the answer's first line, and an iterator over the other lines."""
        path = os.path.join(os.path.abspath(self._folder), SOCKET)
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(RESTART_S)
            try:
                with socket_path(path) as short:
                    connection.connect(short)
                connection.sendall(json.dumps(request).encode() + b"\n")
                with connection.makefile("rb") as answer:
                    first = json.loads(answer.readline() or b"{}")
                    connection.settimeout(None)
                    if not first:
                        raise ConnectionResetError("the broker has closed the connection")
                    if "error" in first:
                        kind = _ERRORS.get(first["error"], TidemillError)
                        raise kind(first["message"], hint=first["hint"])
                    yield first, answer
            except OSError as error:
                raise UnreachableError(
                    f"no broker answers in the data folder {self._folder}: "
                    f"{(error.strerror or str(error)).lower()}",
                    hint="Use the --data-dir or --config of a broker that runs on this machine.",
                ) from error
