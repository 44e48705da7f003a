"""Sends the broker's metrics to a StatsD server over UDP, and never waits for it. Must not print.

What the socket does not take is dropped, and counted in a metric.
"""

from __future__ import annotations

import asyncio
import socket

import structlog

from tidemill.metrics.definition import counter
from tidemill.metrics.registry import Registry
from tidemill.metrics.statsd import StatsdLines
from tidemill.settings.broker import STATSD_PORT, Telemetry
from tidemill.settings.section import host_and_port

DROPPED = counter(
    "tidemill_statsd_dropped_total", "Packets of metrics that could not be sent to StatsD."
)
_PACKET_BYTES = 1400
"""So that a packet is not split by IP on the way (Ethernet's MTU)."""
_SLICE = 100
"""Lines that are made in one turn of the event loop."""
_RESOLVE_S = 60.0

log = structlog.get_logger("tidemill.telemetry")


class StatsdSender:
    """Sends the metrics of a registry to one server.

    Args:
        registry: the metrics.
        settings: where to, and in which form.
    """

    def __init__(self, registry: Registry, settings: Telemetry) -> None:
        self._settings = settings
        self._address = host_and_port(settings.statsd, STATSD_PORT)
        self._lines = StatsdLines(registry, settings.statsd_prefix, tags=settings.statsd_tags)
        self._dropped = registry.counter(DROPPED)
        self._socket: socket.socket | None = None
        self._place: object = None
        self._resolved_at = float("-inf")
        self._reported = ""

    async def run(self) -> None:
        """Send in each interval, until the task is cancelled."""
        try:
            while True:
                await asyncio.sleep(self._settings.statsd_interval_ms / 1000)
                await self._resolve()
                await self._send()
        finally:
            if self._socket is not None:
                self._socket.close()

    async def _send(self) -> None:
        packet = ""
        for number, line in enumerate(self._lines.lines()):
            if packet and len(packet) + 1 + len(line) > _PACKET_BYTES:
                self._send_packet(packet)
                packet = ""
            packet = f"{packet}\n{line}" if packet else line
            if number % _SLICE == _SLICE - 1:
                await asyncio.sleep(0)
        if packet:
            self._send_packet(packet)

    def _send_packet(self, packet: str) -> None:
        if self._socket is None:
            return
        try:
            self._socket.send(packet.encode(errors="replace"))
        except OSError:  # the buffer is full, or no server listens
            self._dropped.value += 1

    async def _resolve(self) -> None:
        """Connect to what the name stands for now: it can get another address."""
        loop = asyncio.get_running_loop()
        if loop.time() - self._resolved_at < _RESOLVE_S:
            return
        self._resolved_at = loop.time()
        try:
            found = await loop.getaddrinfo(*self._address, type=socket.SOCK_DGRAM)
            family, *_, place = found[0]
            if place != self._place:
                made = socket.socket(family, socket.SOCK_DGRAM)
                made.setblocking(False)
                made.connect(place)
                if self._socket is not None:
                    self._socket.close()
                self._socket, self._place = made, place
        except OSError as error:
            if str(error) != self._reported:
                self._reported = str(error)
                log.warning("telemetry.not_sent", to=self._settings.statsd, error=self._reported)
