"""Run the bridges that ``tidemill.bridges`` defines. Must not know: a kind of bridge."""

from __future__ import annotations

from collections.abc import Collection

from tidemill.confluent.clients import Kafka
from tidemill.connect.base.keeper import RestartingKeeper
from tidemill.connect.base.manager import Commands, Manager
from tidemill.connect.base.runs import Runs
from tidemill.connect.direct.definition import Definition
from tidemill.connect.direct.errors import BridgeError, PermanentBridgeError
from tidemill.connect.direct.metrics import add_bridges
from tidemill.connect.direct.running import RunningBridge
from tidemill.connect.direct.topics import BRIDGES


def manager(kafka: Kafka, only: Collection[str] | None = None) -> Manager[Definition]:
    """Return what runs bridges until it is stopped.

    Args:
        only: names of the bridges; None: all that are ``managed``. One worker runs a bridge: the
            last one that has begun. It tries again while the other one still has its addresses.

    Raises:
        UnreachableError: no broker answers.
    """

    def keep(definition: Definition, commands: Commands) -> RestartingKeeper:
        runs = Runs(PermanentBridgeError, BridgeError)
        return RestartingKeeper(RunningBridge(definition, kafka), runs, commands)

    return Manager(
        kafka, BRIDGES, "bridge", Definition.decode, keep, only, add_bridges, exclusive=True
    )
