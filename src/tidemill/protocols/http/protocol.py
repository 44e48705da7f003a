"""Declares the listener for probes in the table of protocols. Must not import its server early."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemill.protocols.contract import Address, Protocol, address_text
from tidemill.protocols.http.settings import HealthListener

if TYPE_CHECKING:
    from tidemill.engine.engine import Engine
    from tidemill.protocols.http.server import HealthServer
    from tidemill.settings import Settings


class HealthProtocol(Protocol):
    """HTTP for probes."""

    section = HealthListener
    is_needed = False

    def is_enabled(self, settings: Settings) -> bool:
        """Return whether the settings switch it on."""
        return settings.section(HealthListener).enabled

    def servers(self, engine: Engine, settings: Settings, *_: object) -> list[HealthServer]:
        """Return the server. It has a budget of its own, so that clients can't use it up."""
        from tidemill.protocols.http.server import HealthServer

        return [HealthServer(engine, settings)]

    def banner(self, settings: Settings, at: Address) -> tuple[str, str]:
        """Return the URL of the readiness probe."""
        return f"http://{address_text(*at)}/health/ready", ""


PROTOCOL = HealthProtocol()
