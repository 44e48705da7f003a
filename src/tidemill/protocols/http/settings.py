"""The section ``[health]`` of the settings. Must not know a server."""

from __future__ import annotations

from pydantic import Field

from tidemill.settings.section import ListenerPort, ListenerSection


class HealthListener(ListenerSection):
    """The listener for probes: HTTP, with `/health/live` and `/health/ready`."""

    key = "health"

    port: ListenerPort = 9464
    enabled: bool = Field(True, description="Whether the broker answers probes.")
