"""Reports to the service manager (systemd) that the broker is ready, stops, and is alive.

A service of ``Type=notify`` counts as started when it says so, and ``WatchdogSec=`` restarts it if
it falls silent: the event loop reports, so that a loop that hangs does not. Without a service
manager, nothing is sent. Source: sd_notify(3), sd_watchdog_enabled(3).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import MutableMapping

import structlog

log = structlog.get_logger("tidemill.server")

VARIABLES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")


class ServiceManager:
    """The service manager that has started this process, if there is one.

    Args:
        environ: the environment. What is only for this process is removed, so that workers do not
            report in its name.
    """

    def __init__(self, environ: MutableMapping[str, str] | None = None) -> None:
        environ = os.environ if environ is None else environ
        address, period, process = (environ.pop(name, "") for name in VARIABLES)
        self._address = _address(address)
        self._period_s = 0.0
        if period.isdecimal() and process in ("", str(os.getpid())):
            self._period_s = int(period[:15]) / 2_000_000  # twice as often as it must be
        self._timer: asyncio.TimerHandle | None = None

    def ready(self, status: str) -> None:
        """Report that clients can connect, and report from now on that the loop is alive.

        Args:
            status: one line for ``systemctl status``.
        """
        self._send(f"READY=1\nSTATUS={status}")
        if self._address and self._period_s:
            self._keep_alive()

    def stopping(self) -> None:
        """Report that the broker stops. The watchdog hears of it as long as the loop runs."""
        self._send("STOPPING=1\nSTATUS=Stopping")

    def close(self) -> None:
        """Report nothing any more."""
        if self._timer is not None:
            self._timer.cancel()

    def _keep_alive(self) -> None:
        self._send("WATCHDOG=1")
        self._timer = asyncio.get_running_loop().call_later(self._period_s, self._keep_alive)

    def _send(self, message: str) -> None:
        if not self._address:
            return
        try:
            with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as sender:
                sender.setblocking(False)
                sender.connect(self._address)
                sender.send(message.encode())
        except OSError as error:
            # Not at each sign of life: a full queue of the manager is empty at the next one.
            if not message.startswith("WATCHDOG"):
                log.warning("service_manager.unreachable", error=str(error))


def _address(text: str) -> str:
    """Return the address of the socket; empty if there is none that can be used."""
    if text.startswith("@"):
        return "\0" + text[1:]
    return text if text.startswith("/") else ""
