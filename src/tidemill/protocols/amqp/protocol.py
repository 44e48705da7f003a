"""Declares AMQP 0-9-1 for the table of protocols. Must not import its server early."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidemill.protocols.amqp.settings import AmqpListener
from tidemill.protocols.contract import Address, Protocol, address_text
from tidemill.protocols.listeners import AMQP_PROTOCOLS, NamedListener

if TYPE_CHECKING:
    from tidemill.engine.engine import Engine
    from tidemill.net.budget import Budget
    from tidemill.protocols.amqp.server import AmqpServer
    from tidemill.protocols.logins.logins import Logins
    from tidemill.settings import Settings


class AmqpProtocol(Protocol):
    """AMQP 0-9-1."""

    section = AmqpListener

    def is_enabled(self, settings: Settings) -> bool:
        """Return whether the settings switch it on."""
        return settings.section(AmqpListener).enabled

    def servers(
        self, engine: Engine, settings: Settings, budget: Budget, logins: Logins
    ) -> list[AmqpServer]:
        """Return the servers of ``[amqp]`` and of the listeners for AMQP clients."""
        from tidemill.protocols.amqp.server import AmqpServer

        first = AmqpServer(engine, settings, budget=budget, logins=logins)
        shared: dict[str, Any] = {"budget": budget, "logins": logins, "beside": first}
        return [first] + [
            AmqpServer(engine, settings, section=section, **shared)
            for section in settings.entries(NamedListener)
            if section.protocol in AMQP_PROTOCOLS
        ]

    def banner(self, settings: Settings, at: Address) -> tuple[str, str]:
        """Return the URL for clients, without the passwords of a file."""
        amqp = settings.section(AmqpListener)
        scheme = "amqp" if amqp.tls_cert is None else "amqps"
        user = "guest:guest@" if amqp.users_file is None else ""
        return f"{scheme}://{user}{address_text(*at)}/", ""


PROTOCOL = AmqpProtocol()
