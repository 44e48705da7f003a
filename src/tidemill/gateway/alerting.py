"""The state of alerts, kept for a short time. Must not know: routes, HTML."""

from __future__ import annotations

from tidemill.confluent.clients import Kafka
from tidemill.connect.alerts.desk import Desk
from tidemill.connect.alerts.topics import ALERTS
from tidemill.gateway.kept import Kept
from tidemill.gateway.reach import Reach

KEPT_S = 2.0
"""How long a state is shown again."""


def kept_alerts(kafka: Kafka) -> Kept[Desk]:
    """Return the state of alerts. A look raises a TidemillError if the user must not read it."""
    reach = Reach(kafka)

    def read() -> Desk:
        reach.check(f"read topic {ALERTS}")
        return Desk(kafka)

    return Kept(KEPT_S, read)
