"""The topic of alerts: its name, its config and its keys. Must not know: a client."""

from __future__ import annotations

from collections.abc import Mapping

ALERTS = "tidemill.alerts"
"""Alerts, groups of notices, silences and acknowledgements. Compacted, one partition."""
ALERTS_CONFIG: Mapping[str, str] = {
    "cleanup.policy": "compact",
    "segment.ms": "3600000",
    "max.message.bytes": str(8 << 20),
}

ALERT, GROUP, SILENCE, ACK = "alert", "group", "silence", "ack"
POSITION, TEST, WORKER = "position", "test", "worker"
"""The first parts of keys; the second part, behind a slash, is an id or a name."""
TRANSACTIONAL_ID = "tidemill-alerts"
"""The worker's: a second worker fences the first one."""
