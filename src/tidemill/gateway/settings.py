"""The section ``[gateway]`` of the settings. Must not know: a server, Kafka."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from tidemill.settings.section import HOST, INT, LONG, Section


class GatewaySettings(Section):
    """The gateway: topics over HTTP, in a worker process."""

    key = "gateway"

    enabled: bool = Field(
        True, description="Whether dev and serve start the gateway as a worker process."
    )
    host: Annotated[str, HOST] = Field(
        "127.0.0.1", description="Address that the gateway listens on."
    )
    port: int = Field(8080, ge=0, le=65535, description="TCP port; 0 picks a free one.")
    allow_remote: bool = Field(
        False,
        description="Whether clients on other machines can use topics. There are no logins, so "
        "each of them can read and write all topics.",
    )
    hosts: str = Field(
        "",
        description="Names, with commas, by which clients reach the gateway, besides localhost and "
        "addresses. A request with another Host is refused, because a web page can give a name of "
        "its own the address of this machine.",
    )
    origins: str = Field(
        "",
        description="Origins of web pages, with commas, that can use the gateway from a browser, "
        "e.g. http://localhost:3000. Pages from elsewhere are refused.",
    )
    body_bytes: int = Field(
        10_485_760,
        ge=1024,
        le=INT,
        description="Largest body of a request in bytes, and the largest line of a stream of "
        "records.",
    )
    inflight_bytes: int = Field(
        67_108_864,
        ge=1024,
        le=LONG,
        description="Largest size of all bodies in memory, and of the records that are not "
        "acknowledged yet, in bytes. Above it, requests are answered with status 503.",
    )
    connections: int = Field(1000, ge=1, le=INT, description="Largest number of open connections.")
    requests_per_second: int = Field(
        0,
        ge=0,
        le=INT,
        description="Most requests of one client address in a second, on average over ten seconds. "
        "Above it, requests are answered with status 429. 0: no limit.",
    )
    slow_client_seconds: int = Field(
        30,
        ge=1,
        le=INT,
        description="How long a client can take to send a body, or to accept a part of an answer, "
        "in seconds. Then its connection is closed.",
    )
    idempotency_seconds: int = Field(
        600,
        ge=1,
        le=86_400,
        description="How long an Idempotency-Key is remembered, in seconds.",
    )
    idempotency_keys: int = Field(
        10_000,
        ge=1,
        le=1_000_000,
        description="Most records with an Idempotency-Key that are remembered for each topic.",
    )

    def names(self) -> frozenset[str]:
        """Return the names of ``hosts`` in lower case."""
        return frozenset(name.strip().lower() for name in self.hosts.split(",") if name.strip())

    def allowed_origins(self) -> frozenset[str]:
        """Return the origins of ``origins`` in lower case, without a slash at the end."""
        found = (origin.strip().lower().rstrip("/") for origin in self.origins.split(","))
        return frozenset(origin for origin in found if origin)
