"""Heartbeats of a connection: sends them, and closes the connection if the client is silent.

Knows time and one link; no channel.
"""

from __future__ import annotations

import asyncio

import structlog

from tidemill.net.link import Link

log = structlog.get_logger("tidemill.amqp")

FRAME = b"\x08\x00\x00\x00\x00\x00\x00\xce"
MISSED = 2
"""A client is gone if nothing arrives for this many intervals."""


class Heartbeat:
    """The heartbeats of one connection.

    Args:
        seconds: the interval that was negotiated.
    """

    def __init__(self, link: Link, seconds: int) -> None:
        self._link = link
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(seconds / 2, self._beat)

    def stop(self) -> None:
        """Send no more."""
        self._timer.cancel()

    def _beat(self) -> None:
        link = self._link
        silent = self._loop.time() - link.last_receipt
        if silent > MISSED * self._seconds and not link.is_held:
            log.warning(
                "connection.closed",
                peer=link.peer,
                why="missed heartbeats from the client",
                seconds=round(silent),
            )
            link.abort()
            return
        if not link.is_congested:
            link.write([FRAME])
        self._timer = self._loop.call_later(self._seconds / 2, self._beat)
