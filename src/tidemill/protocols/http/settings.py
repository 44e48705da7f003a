"""The section ``[health]`` of the settings. Must not know a server."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from tidemill.settings.section import ListenerPort, ListenerSection


class HealthListener(ListenerSection):
    """The listener for probes and Prometheus: `/health/live`, `/health/ready`, `/metrics`."""

    key = "health"

    port: ListenerPort = 9464
    enabled: bool = Field(True, description="Whether the broker answers probes.")
    metrics: Literal["loopback", "anywhere", "off"] = Field(
        "loopback",
        description="Who gets /metrics: clients on this machine, all clients that reach the port, "
        "or none. The names of topics and groups are in it.",
    )
