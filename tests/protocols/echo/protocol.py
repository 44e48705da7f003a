"""Declares and serves the protocol ``echo``: each line comes back."""

from __future__ import annotations

from tidemill.engine.engine import Engine
from tidemill.net.budget import Budget
from tidemill.net.link import Link
from tidemill.net.listener import Listener
from tidemill.protocols.contract import Protocol
from tidemill.protocols.logins.logins import Logins
from tidemill.settings import Settings
from tidemill.settings.section import ListenerPort, ListenerSection


class EchoListener(ListenerSection):
    """The listener of the protocol that echoes lines."""

    key = "echo"
    port: ListenerPort = 7


class EchoSession:
    def __init__(self, link: Link) -> None:
        self._link = link
        self._buffer = bytearray(4096)
        self._line = bytearray()
        self.is_busy = self.is_partial = False
        self.stop = link.close

    def get_buffer(self) -> memoryview:
        return memoryview(self._buffer)

    def received(self, count: int) -> None:
        *lines, self._line = (self._line + self._buffer[:count]).split(b"\n")
        self.is_partial = bool(self._line)
        self._link.write([bytes(line) + b"\n" for line in lines])

    def writable(self) -> None: ...

    def closed(self) -> None: ...


class EchoServer:
    def __init__(self, settings: Settings, budget: Budget) -> None:
        section = settings.section(EchoListener)
        self.listener = Listener(settings, section, EchoSession, budget=budget)
        self.start, self.stop = self.listener.start, self.listener.stop


class Echo(Protocol):
    section = EchoListener

    def servers(
        self, engine: Engine, settings: Settings, budget: Budget, logins: Logins
    ) -> list[EchoServer]:
        return [EchoServer(settings, budget)]


PROTOCOL = Echo()
