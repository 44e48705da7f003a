"""The section ``[kafka]`` of the settings. Must not know a server."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from tidemill.settings.section import HOST, ListenerPort, SecureSection


class KafkaListener(SecureSection):
    """The listener of the Kafka protocol."""

    key = "kafka"

    port: ListenerPort = 9092
    advertised_host: Annotated[str | None, HOST] = Field(
        None, description="Host that clients connect to; default: the address in `host`."
    )
    advertised_port: int | None = Field(
        None,
        ge=1,
        le=65535,
        description="Port that clients connect to; default: the port it listens on.",
    )
