"""Declares the Kafka protocol for the table of protocols. Must not import its server early."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tidemill.protocols.contract import Address, Protocol, Server, address_text
from tidemill.protocols.kafka.settings import KafkaListener
from tidemill.protocols.listeners import KAFKA_PROTOCOLS, NamedListener

if TYPE_CHECKING:
    from tidemill.engine.engine import Engine
    from tidemill.net.budget import Budget
    from tidemill.protocols.kafka.server import KafkaServer
    from tidemill.protocols.logins.logins import Logins
    from tidemill.settings import Settings

_BEST = ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN")
"""Mechanisms with a password, the best first: SCRAM sends none, and SHA-512 takes longer."""
DEFAULT_ADDRESS = "localhost:9092"


class KafkaProtocol(Protocol):
    """The Kafka protocol."""

    section = KafkaListener
    port_flag = "--kafka-port"

    def servers(
        self, engine: Engine, settings: Settings, budget: Budget, logins: Logins
    ) -> list[KafkaServer]:
        """Return the servers of ``[kafka]`` and of the listeners for Kafka clients."""
        from tidemill.protocols.kafka.server import KafkaServer

        first = KafkaServer(engine, settings, budget=budget, logins=logins)
        shared: dict[str, Any] = {"budget": budget, "logins": logins, "beside": first}
        return [first] + [
            KafkaServer(engine, settings, section=section, **shared) for section in _named(settings)
        ]

    def unguarded(self, settings: Settings) -> list[tuple[str, str, int]]:
        """Return the listeners with neither mechanisms nor certificates that clients must have."""
        return [
            (each.label, each.bind_host(settings.host), each.port)
            for each in (settings.section(KafkaListener), *_named(settings))
            if not each.mechanism_names() and each.tls_client_auth != "required"
        ]

    def banner(self, settings: Settings, at: Address) -> tuple[str, str]:
        """Return the address, and that it is ``bootstrap.servers``."""
        return _shown(at), "(bootstrap.servers)"

    def examples(self, settings: Settings, at: Address) -> Sequence[str]:
        """Return commands that create, write and read a topic."""
        to = "" if _shown(at) == DEFAULT_ADDRESS else f" -b {_shown(at)}"
        return (
            f"tidemill topic create hello --partitions 3{to}",
            f'echo "hello, world" | tidemill topic produce hello{to}',
            f"tidemill topic consume hello --from beginning{to}",
        )

    def advertised(self, server: Server) -> Address | None:
        """Return the address in metadata, if it is not the one that the server is bound to."""
        from tidemill.protocols.kafka.server import KafkaServer

        assert isinstance(server, KafkaServer)
        node = server.node
        return (node.host, node.port) if server.is_advertised_elsewhere else None

    def client_settings(self, settings: Settings, at: Address) -> Mapping[str, str]:
        """Return the address, and how to reach it with TLS and a login."""
        found = {"bootstrap.servers": address_text(*at)}
        section = settings.section(KafkaListener)
        protocol, certificate = section.security_protocol(), section.tls_cert
        if protocol != "PLAINTEXT":
            found["security.protocol"] = protocol
        with_password = [each for each in _BEST if each in section.mechanism_names()]
        if with_password:
            found["sasl.mechanism"] = with_password[0]
        if certificate is not None:
            # The address is our own listener, whatever name its certificate is for.
            found["ssl.ca.location"] = str(certificate)
            found["ssl.endpoint.identification.algorithm"] = "none"
        return found


def _named(settings: Settings) -> list[NamedListener]:
    return [each for each in settings.entries(NamedListener) if each.protocol in KAFKA_PROTOCOLS]


def _shown(at: Address) -> str:
    address = address_text(*at)
    return f"localhost:{at[1]}" if address.startswith("127.0.0.1:") else address


PROTOCOL = KafkaProtocol()
