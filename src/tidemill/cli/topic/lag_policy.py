"""Tells which answer a topic gives to producers that outrun a group, and whether it is at work.

Asks the broker with a Kafka client. This must not print.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidemill.cli.client import Cluster, PartitionOffsets, TopicPartitionKey
from tidemill.cli.group.lag import PartitionLag, partition_lags
from tidemill.cli.group.requests import committed_offsets

UNITS = ("records", "bytes", "ms")
WORDS = {
    "throttle": "producers are held back",
    "drop": "the oldest records are dropped",
    "alert": "the broker logs a warning",
}


def lag_policy(
    cluster: Cluster,
    configs: Mapping[str, str],
    offsets: Mapping[TopicPartitionKey, PartitionOffsets],
    sizes: Mapping[int, int],
) -> dict[str, Any] | None:
    """Return a topic's policy and the lag of its group now; None for a topic without a policy.

    The lag in bytes is an estimate: the partition's size times the share of unread records.
    """
    policy, group = configs.get("lag.policy", "buffer"), configs.get("lag.group", "")
    if policy == "buffer" or not group:
        return None
    stored = committed_offsets(cluster, group)
    committed = {key: stored.get(key, each.start) for key, each in offsets.items()}
    lags = partition_lags(cluster, committed, [])
    limits = {unit: int(configs.get(f"lag.max.{unit}", "-1")) for unit in UNITS}
    now = {
        "records": max((lag.lag or 0 for lag in lags), default=0),
        "bytes": max((_bytes_behind(lag, sizes) for lag in lags), default=0),
        "ms": max((lag.lag_ms or 0 for lag in lags), default=0),
    }
    return {
        "policy": policy,
        "group": group,
        "limits": {unit: limit for unit, limit in limits.items() if limit >= 0},
        "largest_lag": now,
        "lost": sum(lag.lost for lag in lags),
        "at_work": any(0 <= limits[unit] < now[unit] for unit in limits),
    }


def _bytes_behind(lag: PartitionLag, sizes: Mapping[int, int]) -> int:
    count = (lag.end or 0) - (lag.start or 0)
    return sizes.get(lag.partition, 0) * (lag.lag or 0) // count if count else 0


def policy_text(state: Mapping[str, Any]) -> str:
    """Return one line about what ``lag_policy`` found."""
    limits = " or ".join(f"{limit:,} {unit}" for unit, limit in state["limits"].items())
    if not limits:
        return f"{state['policy']}, but without effect: set lag.max.records, .bytes or .ms"
    what = f"{state['policy']} when group {state['group']} is over {limits} behind"
    largest = ", ".join(f"{state['largest_lag'][unit]:,} {unit}" for unit in state["limits"])
    effect = f": {WORDS[state['policy']]}" if state["at_work"] else ""
    lost = f"; {state['lost']:,} records were deleted unread" if state["lost"] else ""
    return f"{what} (now {largest}{effect}{lost})"
