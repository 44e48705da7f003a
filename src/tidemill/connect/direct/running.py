"""Run one bridge, as what ``connect/base/keeper`` keeps running.

Must not know: orders, pauses, the topic that they come from.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import structlog

from tidemill.confluent.clients import Kafka
from tidemill.connect.base.keeper import RestartingKeeper
from tidemill.connect.direct.contract import Bridge, Place
from tidemill.connect.direct.definition import Definition
from tidemill.connect.direct.errors import BridgeError
from tidemill.connect.direct.registry import make_bridge

log = structlog.get_logger("tidemill.bridges")


class RunningBridge:
    """A bridge, each of whose runs is a new object (``Work`` of the keeper)."""

    def __init__(self, definition: Definition, kafka: Kafka) -> None:
        self._definition = definition
        self._place = Place(definition.name, definition.topic, definition.partitions, kafka)
        self._bridge: Bridge | None = None

    async def run(self, keeper: RestartingKeeper) -> None:
        """Run the bridge until it fails or is cancelled."""

        def is_running() -> None:
            keeper.works()
            log.info("bridge.running", bridge=self._place.name, kind=self._definition.kind)

        self._bridge = make_bridge(self._definition, self._place)
        await self._bridge.run(is_running)
        raise BridgeError(f"bridge {self._place.name} has ended by itself")

    def failed(self, pause_s: float | None, said: Mapping[str, Any]) -> None:
        """Log a failure."""
        if pause_s is None:
            log.error("bridge.failed", bridge=self._place.name, **said)
        else:
            log.warning("bridge.failed", bridge=self._place.name, **said)

    def figures(self) -> dict[str, Any]:
        """Return what the bridge has counted. A kind that fails here fails for itself only."""
        if self._bridge is None:
            return {}
        try:
            found = {**asdict(self._bridge.counts()), "details": self._bridge.details()}
            json.dumps(found)
        except Exception as error:
            return {"details": {"unknown": f"{type(error).__name__}: {error}"}}
        return found
