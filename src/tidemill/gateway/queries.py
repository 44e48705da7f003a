"""``POST /sql``: queries over topics, each in a process that can be killed, as the caller's user.

A process that takes too long, or whose client has gone, is killed. Must not know: SQL, pages.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from tidemill.confluent.clients import Kafka
from tidemill.extras import problem_of
from tidemill.gateway import guard
from tidemill.gateway.answers import json_answer
from tidemill.gateway.errors import HttpError, from_names, invalid, unsupported_type
from tidemill.gateway.following import disconnected
from tidemill.gateway.guard import Turns
from tidemill.gateway.parameters import Parameters
from tidemill.gateway.settings import GatewaySettings
from tidemill.sql.process import Order

_START_S = 15.0
"""How long a process can take besides the time limit of its query."""
_MOST_BYTES = 16 << 20
_MOST_STATEMENT = 1 << 20


@dataclass
class Result:
    """The rows of a query.

    Attributes:
        columns: their names and types.
        truncated: whether there are more rows than a result can have.
    """

    columns: Sequence[Mapping[str, str]] = ()
    rows: list[list[Any]] = field(default_factory=list)
    truncated: bool = False
    notes: Sequence[str] = ()
    warnings: Sequence[str] = ()


class Queries:
    """Runs queries with the Kafka properties of one user.

    Args:
        beside: those of other users, with which these share the limit.
    """

    def __init__(
        self, kafka: Kafka, settings: GatewaySettings, beside: Queries | None = None
    ) -> None:
        self._kafka, self._settings = kafka, settings
        most = settings.sql_queries
        self._turns: Turns = (
            Turns(most, most, "queries are running") if beside is None else beside._turns
        )
        self._running: set[asyncio.subprocess.Process] = set()

    async def run(
        self,
        statement: str,
        gone: Callable[[], Awaitable[None]],
        take: Callable[[int], None],
        parameters: Sequence[Any] = (),
        hidden: Sequence[str] = (),
    ) -> Result:
        """Run a query.

        Args:
            gone: returns when the result is of no use any more.
            take: takes memory for the rows.
            hidden: patterns of topics that it must not read.

        Raises:
            HttpError: it is refused, fails, or takes too long; too many are running (503).
        """
        if (problem := problem_of("sql")) is not None:
            raise HttpError(501, "not_installed", problem[0], hint=problem[1])
        if not self._settings.sql_queries:
            raise HttpError(403, "forbidden", "SQL is off: gateway.sql_queries is 0")
        async with self._turns.turn():
            order = self._order(statement, parameters, hidden)
            return await self._in_process(order, gone, take)

    async def _in_process(
        self, order: Order, gone: Callable[[], Awaitable[None]], take: Callable[[int], None]
    ) -> Result:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tidemill.sql.process"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            limit=2 * _MOST_BYTES,
            start_new_session=True,
            env={**os.environ, "PYTHONUNBUFFERED": ""},
        )
        self._running.add(process)
        leaving = asyncio.ensure_future(gone())
        leaving.add_done_callback(lambda _: _kill(process))
        try:
            async with asyncio.timeout(order.timeout_s + _START_S):
                return await _read(process, order, take)
        except TimeoutError:
            message = "the query took too long, and was ended"
            raise HttpError(504, "query_timeout", message) from None
        finally:
            leaving.cancel()
            _kill(process)
            await process.wait()
            self._running.discard(process)

    def stop(self) -> None:
        """Kill what runs."""
        for process in self._running:
            _kill(process)

    def _order(self, statement: str, parameters: Sequence[Any], hidden: Sequence[str]) -> Order:
        settings, given = self._settings, dict(self._kafka.properties)
        token = getattr(given.pop("oauth_cb", None), "token", "")
        return Order(
            servers=self._kafka.servers,
            statement=statement,
            parameters=list(parameters),
            properties={name: str(value) for name, value in given.items()},
            token=token,
            memory=settings.sql_memory,
            timeout_s=settings.sql_seconds,
            most_rows=settings.sql_rows,
            most_bytes=_MOST_BYTES,
            max_bytes=settings.sql_read_bytes,
            hidden=hidden,
        )


def _kill(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.kill()


async def _read(
    process: asyncio.subprocess.Process, order: Order, take: Callable[[int], None]
) -> Result:
    """Give a process its order, and return what it writes."""
    assert process.stdin is not None
    assert process.stdout is not None
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the exit code says more
        process.stdin.write(order.encode())
        await process.stdin.drain()
        process.stdin.close()
    result, has_ended = Result(), False
    async for line in process.stdout:
        take(len(line))
        found = orjson.loads(line)
        if isinstance(found, list):
            result.rows.append(found)
        elif "error" in found:
            raise from_names(found["kinds"], found["error"], found["hint"])
        elif "columns" in found:
            result.columns = found["columns"]
        else:
            has_ended, result.truncated = True, found["truncated"]
            result.notes, result.warnings = found["notes"], found["warnings"]
    if not has_ended:
        exit_code = await process.wait()
        raise HttpError(
            500,
            "query_failed",
            f"the process of the query has ended with code {exit_code}",
            hint="It may have taken more memory or processor time than is allowed.",
        )
    return result


async def post_sql(request: Request) -> Response:
    """Run the query in the body of a request, and return its rows."""
    parts = request.app.parts
    Parameters(request).end()
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in ("application/json", "text/plain"):
        raise unsupported_type(kind, "Use text/plain for a statement, or application/json.")
    with parts.budget.taken() as take:
        most, seconds = _MOST_STATEMENT, parts.settings.slow_client_seconds
        body = await guard.read_body(request, most, seconds, take, "1 MiB for a statement")
        statement, parameters = _statement(body, kind)
        result = await parts.queries.run(statement, lambda: disconnected(request), take, parameters)
        return json_answer(result)


def _statement(body: bytes, kind: str) -> tuple[str, list[Any]]:
    try:
        if kind == "text/plain":
            return body.decode(), []
        found = orjson.loads(body)
    except ValueError as error:
        raise invalid(f"the body is not {'JSON' if 'json' in kind else 'UTF-8'}") from error
    given = found if isinstance(found, dict) else {}
    statement, parameters = given.get("statement"), given.get("parameters", [])
    is_known = given.keys() <= {"statement", "parameters"}
    if not isinstance(statement, str) or not isinstance(parameters, list) or not is_known:
        raise invalid("malformed query", hint='Write {"statement": "SELECT …", "parameters": […]}.')
    return statement, parameters
