"""Asks the broker over AMQP to change something, with the login of the request.

Must not know: routes.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from typing import TypeVar
from urllib.parse import quote, urlsplit

from tidemill.amqp_client.connection import AmqpClient
from tidemill.amqp_client.errors import AmqpNotFoundError
from tidemill.amqp_client.moving import Moved, move
from tidemill.confluent.clients import Kafka
from tidemill.errors import TidemillError
from tidemill.gateway.errors import HttpError, from_error
from tidemill.gateway.guard import Turns

T = TypeVar("T")
_AT_ONCE = 4
"""Connections that are open at the same time."""
_WAITING = 20


class AmqpActions:
    """Changes of queues and connections.

    Args:
        url: the address, ``amqp://HOST:PORT/``.
        kafka: the client of the user; the login for AMQP is the same.
    """

    def __init__(self, url: str, kafka: Kafka) -> None:
        self._url, self._kafka = url, kafka
        self._turns = Turns(_AT_ONCE, _WAITING, "changes are under way")

    async def close_connection(self, name: str, reason: str) -> None:
        """Close a client's connection.

        Raises:
            HttpError: it does not exist (404), the user must not do it (403), or no broker answers.
        """
        await self._with(lambda client: client.ask(_closing(name, reason)))

    async def close_connections(self, names: Iterable[str], reason: str) -> None:
        """Close connections of clients; those that have gone meanwhile are left out.

        Raises:
            HttpError: the user must not do it (403), or no broker answers.
        """

        def close(client: AmqpClient) -> None:
            for name in names:
                with contextlib.suppress(AmqpNotFoundError):
                    client.ask(_closing(name, reason))

        await self._with(close)

    async def purge(self, queue: str) -> int:
        """Drop the messages of a queue that are ready; return how many these were.

        Raises:
            HttpError: as ``close_connection``.
        """
        answer = await self._with(lambda client: client.call("queue.purge", queue=queue))
        return answer.number("message_count")

    async def move_back(self, queue: str, most: int, *, dry_run: bool = False) -> Moved:
        """Return dead letters to the queues in which they died.

        Raises:
            HttpError: as ``close_connection``.
        """
        return await self._with(lambda client: move(client, queue, None, most, dry_run=dry_run))

    async def _with(self, work: Callable[[AmqpClient], T]) -> T:
        try:
            async with self._turns.turn():
                return await asyncio.to_thread(self._run, work)
        except TidemillError as error:
            raise from_error(error) from error

    def _run(self, work: Callable[[AmqpClient], T]) -> T:
        ca_file = self._kafka.properties.get("ssl.ca.location")
        with AmqpClient(self._with_login(), ca_file) as client:
            return work(client)

    def _with_login(self) -> str:
        properties = self._kafka.properties
        if "oauth_cb" in properties:
            raise HttpError(
                403, "forbidden", "AMQP needs a login with a password", hint="Log in with basic."
            )
        name = properties.get("sasl.username", "guest")
        password = properties.get("sasl.password", "guest")
        parts = urlsplit(self._url)
        return f"{parts.scheme}://{quote(name, safe='')}:{quote(password, safe='')}@{parts.netloc}/"


def _closing(name: str, reason: str) -> dict[str, object]:
    """Return the question that closes a connection."""
    return {"close": "connection", "name": name, "reason": reason}
