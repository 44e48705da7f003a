"""The section ``[amqp]`` of the settings. Must not know a server."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from tidemill.settings.section import CertificateFile, KeyFile, ListenerPort, ListenerSection


class AmqpListener(ListenerSection):
    """The listener of AMQP 0-9-1, for queues."""

    key = "amqp"

    port: ListenerPort = 5672
    enabled: bool = Field(True, description="Whether the broker serves AMQP.")
    users_file: Path | None = Field(
        None,
        description="File with a user in each line: name, colon, password. Default: only guest "
        "with the password guest, from the same machine.",
    )
    tls_cert: CertificateFile = None
    tls_key: KeyFile = None
