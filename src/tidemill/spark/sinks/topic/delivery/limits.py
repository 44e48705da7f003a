"""Time limits and texts that both editions share. Must not know: clients, Spark."""

from __future__ import annotations

TRANSACTION_TIMEOUT_MS = 120_000
"""The broker aborts the transaction of a dead task after this time, and readers continue. The next
attempt of the task aborts it immediately."""
REQUEST_S = 30.0
"""Seconds to wait for one response."""
ABORT_S = 5.0
"""Seconds to wait for the abort of a failed transaction. The next attempt aborts it, too."""
PAUSE_S = 0.02
"""Seconds between a temporary failure and the next attempt."""
ALL_OR_NONE = (
    "Readers of committed records see all rows of the task or none. A restart writes what is "
    "missing."
)
"""The hint of an error of a transaction."""
