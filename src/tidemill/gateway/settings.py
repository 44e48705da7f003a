"""The section ``[gateway]`` of the settings. Must not know: a server, Kafka."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from tidemill.settings.section import HOST, INT, LONG, CertificateFile, KeyFile, Section


def _words(text: str) -> frozenset[str]:
    """Return what a text has between its commas, in lower case."""
    return frozenset(each.strip().lower() for each in text.split(",") if each.strip())


def _schemes(text: str) -> str:
    """Check the schemes of logins.

    Raises:
        ValueError: one of them is not known.
    """
    if unknown := _words(text) - {"basic", "bearer"}:
        raise ValueError(f"unknown login {min(unknown)!r}: expected basic or bearer")
    return text


def _amqp_url(text: str) -> str:
    """Check the address of AMQP.

    Raises:
        ValueError: it is not an address, or has a password, which others would see.
    """
    if not text:
        return text
    parts = urlsplit(text)
    if parts.scheme not in ("amqp", "amqps") or not parts.hostname or not parts.port:
        raise ValueError("expected amqp://HOST:PORT/ or amqps://HOST:PORT/")
    if parts.username is not None or parts.password is not None:
        raise ValueError("it must not have a login; set username and password in [workers.gateway]")
    return text


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
    tls_cert: CertificateFile = None
    tls_key: KeyFile = None
    allow_remote: bool = Field(
        False,
        description="Whether clients on other machines can use topics. Without `logins`, each of "
        "them can read and write all topics.",
    )
    logins: Annotated[str, AfterValidator(_schemes)] = Field(
        "",
        description="Logins of requests, with commas: basic (name and password) and bearer (a "
        "token). The gateway passes them on, and reaches the broker as that user; the broker must "
        "have the mechanism. Empty: no login; requests are the gateway's own.",
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
        "in seconds. Then its connection is closed. A line of a stream waits as long for memory.",
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

    amqp_url: Annotated[str, AfterValidator(_amqp_url)] = Field(
        "",
        description="Address of AMQP of tidemill's broker, amqp://HOST:PORT/ or amqps://. With it, "
        "the gateway has pages of queues and RabbitMQ's management API at /api. dev and serve set "
        "it. The login is that of the request, or the gateway's own.",
    )

    sql_queries: int = Field(
        2, ge=0, le=1000, description="Most queries of SQL at the same time; 0: none is allowed."
    )
    sql_seconds: int = Field(
        30, ge=1, le=3600, description="Time limit of a query of SQL in seconds."
    )
    sql_memory: str = Field(
        "512MB", pattern=r"^\d+ ?[KMG]B$", description="Memory limit of DuckDB for a query of SQL."
    )
    sql_rows: int = Field(
        10_000, ge=1, le=1_000_000, description="Most rows of a result of SQL. Others are cut off."
    )
    sql_read_bytes: int = Field(
        1_073_741_824,
        ge=1,
        le=LONG,
        description="Most bytes that a query of SQL can read from topics.",
    )

    def schemes(self) -> frozenset[str]:
        """Return the schemes of ``logins`` in lower case."""
        return _words(self.logins)

    def names(self) -> frozenset[str]:
        """Return the names of ``hosts`` in lower case."""
        return _words(self.hosts)

    def allowed_origins(self) -> frozenset[str]:
        """Return the origins of ``origins`` in lower case, without a slash at the end."""
        return frozenset(origin.rstrip("/") for origin in _words(self.origins))
