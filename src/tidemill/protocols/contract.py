"""The contract of a protocol: what the broker's process asks of each of them.

``table`` lists the protocols. A module of this kind is imported for the settings alone, so it must
import its server only when it makes one.
"""

from __future__ import annotations

import abc
import typing
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidemill.engine.engine import Engine
    from tidemill.net.budget import Budget
    from tidemill.net.listener import Listener
    from tidemill.protocols.logins.logins import Logins
    from tidemill.settings import Settings
    from tidemill.settings.section import ListenerSection

Address = tuple[str, int]
"""Host and port, as bound."""


class Server(typing.Protocol):
    """The server of one protocol."""

    listener: Listener

    async def start(self) -> Address:
        """Bind the socket; return host and port as bound.

        Raises:
            OSError: the address can't be bound.
            SettingsError: the certificate or the key can't be used.
        """

    async def stop(self, grace_seconds: float) -> None:
        """Accept no more connections, end those that are open, and close."""


class Protocol(abc.ABC):
    """A protocol that the broker serves.

    Attributes:
        section: its section of the settings. Its key is the protocol's name, also in the ready
            event and in the banner.
        port_flag: the flag of the port, if it has one of its own.
        is_needed: whether the broker does not start if the port is in use; else that is a warning.
    """

    section: type[ListenerSection]
    port_flag: str = ""
    is_needed: bool = True

    @property
    def name(self) -> str:
        """The name: the key of its section."""
        return self.section.key

    @property
    def free_port(self) -> str:
        """The flags with which it picks a free port."""
        return f"{self.port_flag} 0" if self.port_flag else f"--set {self.name}.port=0"

    def is_enabled(self, settings: Settings) -> bool:
        """Return whether the broker serves it."""
        return True

    @abc.abstractmethod
    def servers(
        self, engine: Engine, settings: Settings, budget: Budget, logins: Logins
    ) -> Sequence[Server]:
        """Return the servers of all its listeners. The first is that of its own section.

        They are not started. Connections share the budget of all protocols.

        Raises:
            SettingsError: a setting can't be used.
        """

    def unguarded(self, settings: Settings) -> Sequence[tuple[str, str, int]]:
        """Return name, host and port of each listener whose clients need no login."""
        return ()

    def banner(self, settings: Settings, at: Address) -> tuple[str, str]:
        """Return the address for the banner, and a note about it."""
        return address_text(*at), ""

    def examples(self, settings: Settings, at: Address) -> Sequence[str]:
        """Return commands to try, for the banner of ``tidemill dev``."""
        return ()

    def advertised(self, server: Server) -> Address | None:
        """Return the address that clients get from a server that is started; None: they get none.

        Clients continue there after their first question.
        """
        return None

    def client_settings(self, settings: Settings, at: Address) -> Mapping[str, str]:
        """Return the properties with which a Kafka client on this machine reaches the broker.

        They are empty where the protocol is not Kafka's.
        """
        return {}


def address_text(host: str, port: int) -> str:
    """Return ``host:port`` for clients. A wildcard address becomes a loopback address."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
