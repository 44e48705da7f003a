"""Look up the addresses of an endpoint's host. Must not know: what is sent there."""

from __future__ import annotations

import asyncio
import errno
import socket
import threading
from concurrent.futures import Future

from aiohttp.abc import AbstractResolver, ResolveResult

_NUMERIC = socket.NI_NUMERICHOST | socket.NI_NUMERICSERV


class Names(AbstractResolver):
    """Looks up each name in a thread of its own. aiohttp asks for one name once at a time.

    An event loop has few threads for this: four of libuv, or six of Python. Some names whose
    servers don't answer would take them all for many seconds, and hold up all other endpoints.
    """

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """Return the addresses of a host.

        Raises:
            OSError: it has none, or no server of names answers.
        """
        found: Future[list[ResolveResult]] = Future()
        found.set_running_or_notify_cancel()  # its result is set even if no caller waits any more

        def run() -> None:
            try:
                result = _look_up(host, port, family)
            except Exception as error:
                found.set_exception(error)
            else:
                found.set_result(result)

        # A daemon: the program does not wait for it when it ends.
        thread = threading.Thread(target=run, name=f"look up {host}", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # the system has no more threads
            raise OSError(errno.EAGAIN, str(error)) from error
        return await asyncio.wrap_future(found)

    async def close(self) -> None:
        """Do nothing: a lookup under way ends by itself."""


def _look_up(host: str, port: int, family: socket.AddressFamily) -> list[ResolveResult]:
    entries = socket.getaddrinfo(host, port, family, socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)
    results = []
    for kind, _, protocol, _, address in entries:
        number, service = socket.getnameinfo(address, _NUMERIC)  # with the scope of a local one
        results.append(
            ResolveResult(
                hostname=host,
                host=number,
                port=int(service),
                family=kind,
                proto=protocol,
                flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
            )
        )
    return results
