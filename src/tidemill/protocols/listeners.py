"""The sections ``[listeners.NAME]`` of the settings: more listeners. Must not know a server."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from tidemill.settings.section import HOST, ListenerPort, SecureSection

KAFKA_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
AMQP_PROTOCOLS = ("AMQP", "AMQPS")
RESERVED = frozenset({"amqp", "data_dir", "event", "gateway", "health", "kafka", "pid"})
"""Names that the event of the start has for something else."""


class NamedListener(SecureSection):
    """Another listener, besides that of `[kafka]` and that of `[amqp]`."""

    key = "listeners"
    is_repeated = True
    is_named = True

    name: str = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$",
        description="The name, as in [listeners.NAME].",
    )
    protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL", "AMQP", "AMQPS"] = Field(
        description="PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL for Kafka clients (their "
        "security.protocol), AMQP or AMQPS."
    )
    port: ListenerPort
    host: Annotated[str | None, HOST] = Field(
        None, description="Address to listen on; default: the setting `host`."
    )
    advertised_host: Annotated[str | None, HOST] = Field(
        None, description="Host that Kafka clients connect to; default: the address in `host`."
    )
    advertised_port: int | None = Field(
        None,
        ge=1,
        le=65535,
        description="Port that Kafka clients connect to; default: the port it listens on.",
    )

    @model_validator(mode="after")
    def _fits(self) -> Self:
        """Check that the keys fit to the protocol."""
        if self.name.lower() in RESERVED:
            raise ValueError(f"the name {self.name} is reserved: choose another one")
        if self.protocol in ("SSL", "SASL_SSL", "AMQPS"):
            if self.tls_cert is None:
                raise ValueError(f"the protocol {self.protocol} needs tls_cert")
        elif self.tls_cert is not None:
            raise ValueError(f"the protocol {self.protocol} has no TLS, and tls_cert is set")
        if self.protocol in ("PLAINTEXT", "SSL") and self.mechanisms:
            raise ValueError(f"the protocol {self.protocol} has no logins: remove mechanisms")
        return self

    @property
    def label(self) -> str:
        """The name of its table, for errors."""
        return f"{self.key}.{self.name}"

    def bind_host(self, default: str) -> str:
        """Return the address to listen on."""
        return self.host or default

    def mechanism_names(self) -> tuple[str, ...]:
        """Return the mechanisms; without any in the settings, those that send no password."""
        names = super().mechanism_names()
        if not names and self.protocol.startswith("SASL_"):
            return ("SCRAM-SHA-256", "SCRAM-SHA-512")
        return names
