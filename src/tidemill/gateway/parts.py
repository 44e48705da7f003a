"""The parts that all requests share. Must not know: routes."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from tidemill.confluent.clients import Kafka
from tidemill.gateway.guard import Budget
from tidemill.gateway.idempotency import Keys
from tidemill.gateway.settings import GatewaySettings
from tidemill.gateway.topics import Catalog
from tidemill.gateway.writing import Writer


@dataclass
class Parts:
    """Kafka clients and limits that serve requests. It belongs to one event loop.

    Attributes:
        budget: The memory of bodies and of records that are not acknowledged yet.
        stopping: Set when the gateway stops: long answers end.
    """

    kafka: Kafka
    settings: GatewaySettings
    budget: Budget
    writer: Writer
    catalog: Catalog
    keys: Keys
    stopping: asyncio.Event = field(default_factory=asyncio.Event)

    @classmethod
    def start(cls, kafka: Kafka, settings: GatewaySettings) -> Parts:
        """Return the parts, in a running event loop."""
        budget = Budget(settings.inflight_bytes)
        writer = Writer(kafka, budget)
        return cls(kafka, settings, budget, writer, Catalog(kafka), Keys(kafka, writer, settings))

    async def close(self) -> None:
        """End what runs. Records under way get a few seconds."""
        await self.writer.close()
