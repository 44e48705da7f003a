"""The section ``[amqp]`` of the settings. Must not know a server."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from tidemill.settings.section import (
    INT,
    ListenerPort,
    SecureSection,
)


class AmqpListener(SecureSection):
    """The listener of AMQP 0-9-1, for queues."""

    key = "amqp"

    port: ListenerPort = 5672
    enabled: bool = Field(True, description="Whether the broker serves AMQP.")
    users_file: Path | None = Field(
        None,
        description="File with a user in each line: name, colon, password. Default: only guest "
        "with the password guest, from the same machine.",
    )
    consumer_timeout_ms: int = Field(
        1_800_000,
        ge=0,
        le=INT,
        description="How long a client can keep a message without settling it, in milliseconds. "
        "After it, the channel is closed and the message returns to its queue. 0 switches that "
        "off.",
    )
