"""Decide how much of a run can be appended as it is: ordinary batches for known partitions.

Native code does this for a run in one call, where the extension was built, with the same results.
Knows targets and logs. ``runs`` looks partitions up and appends.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

from tidemill import native
from tidemill.engine.runs import RunWrite, Target
from tidemill.log.names import TopicPartition
from tidemill.log.partition.partition import PartitionLog

_native: Any = native.load()


def is_current(
    target: Target, logs: Mapping[TopicPartition, PartitionLog], hidden: Set[TopicPartition]
) -> bool:
    """Return whether clients can still write to what was found out about a partition."""
    log = target.log
    return (
        log is not None
        and log.config is target.config
        and logs.get(target.tp) is log
        and not (hidden and target.tp in hidden)
    )


def admit(
    run: list[RunWrite],
    logs: Mapping[TopicPartition, PartitionLog],
    hidden: Set[TopicPartition],
    now_ms: int,
) -> tuple[int, dict[Target, list[int]], int]:
    """Return what can be appended of a run.

    Args:
        run: the run.
        logs: the logs.
        hidden: the partitions that clients must not see yet.
        now_ms: the broker's time.

    Returns:
        The number of batches at the front that can be appended, their places for each target, and
        their bytes. The batch behind them is not ordinary for its topic, or its target is not
        current.
    """
    if _native is not None:
        admitted: tuple[int, dict[Target, list[int]], int]
        admitted = _native.admit_run(run, logs, hidden, now_ms)
        return admitted
    found: dict[Target, list[int]] = {}
    count = size = 0
    for target, data, (_, latest, earliest, without_key, _) in run:
        places = found.get(target)
        limits = target.limits
        if (
            (places is None and not is_current(target, logs, hidden))
            or limits is None
            or len(data) > limits.most_bytes
            or latest - now_ms > limits.ahead_ms
            or now_ms - earliest > limits.behind_ms
            or (without_key and limits.needs_keys)
        ):
            break
        if places is None:
            found[target] = [count]
        else:
            places.append(count)
        count += 1
        size += len(data)
    return count, found, size
