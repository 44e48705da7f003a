"""Chooses how many partitions a shuffle has, from the cores that run its tasks.

Spark's default of 200 partitions makes each batch of a query with state write 200 state stores. A
query keeps the number of its first start in its checkpoint, so other cores later change nothing for
it. Must not know: sessions, Spark's classes, streams.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping

SETTING = "spark.sql.shuffle.partitions"

MAX_LOCAL = 4
"""On one machine, more state stores than this make batches slower."""
MAX_CLUSTER = 200
"""Spark's own default."""
UNKNOWN_CLUSTER = 16
"""For a cluster that has given no cores in time."""

_REGISTRATION_S = 10.0
_QUIET_S = 1.0
_PAUSE_S = 0.1
_NO_LIMIT = 2**31 - 1


def local_partitions(master: str) -> int:
    """Return the number of shuffle partitions for a local master.

    The forms are ``local``, ``local[n]``, ``local[n,retries]``, ``local[*]`` and
    ``local-cluster[workers,cores,MiB]``.
    """
    numbers = [int(each) for each in re.findall(r"\d+", master)]
    if master.startswith("local-cluster"):
        count = numbers[0] * numbers[1] if len(numbers) > 1 else 1
    elif "*" in master:
        count = os.cpu_count() or 1
    else:
        count = numbers[0] if numbers else 1
    return max(1, min(count, MAX_LOCAL))


def cluster_partitions(
    settings: Mapping[str, str],
    registered_cores: Callable[[], int],
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Return the number of shuffle partitions for a cluster: one for each core.

    The cores are those that the settings ask for. If these set no number, they are those of the
    executors that register within ten seconds; a cluster needs about two to start its executors.

    Args:
        settings: Settings of the Spark context.
        registered_cores: Returns the cores of the executors that have registered so far.
    """
    cores = _configured_cores(settings)
    if cores is None:
        cores = _wait_for_cores(registered_cores, clock, sleep) or UNKNOWN_CLUSTER
    return max(1, min(cores, MAX_CLUSTER))


def _configured_cores(settings: Mapping[str, str]) -> int | None:
    """Return the cores that the settings ask for; None if they leave it to the cluster."""
    for key in ("spark.default.parallelism", "spark.cores.max"):
        if (cores := _number(settings, key)) is not None:
            return cores
    executors = _number(settings, "spark.executor.instances")
    if settings.get("spark.dynamicAllocation.enabled", "false") == "true":
        executors = _number(settings, "spark.dynamicAllocation.maxExecutors")
    each = _number(settings, "spark.executor.cores")
    return None if executors is None or each is None else executors * each


def _number(settings: Mapping[str, str], key: str) -> int | None:
    text = settings.get(key, "").strip()
    number = int(text) if text.isdecimal() else 0
    return number if 0 < number < _NO_LIMIT else None


def _wait_for_cores(
    registered: Callable[[], int], clock: Callable[[], float], sleep: Callable[[float], None]
) -> int:
    """Return the registered cores when their number no longer changes; 0 if there are none."""
    began = changed = clock()
    cores = registered()
    while (now := clock()) - began < _REGISTRATION_S:
        if (new := registered()) != cores:
            cores, changed = new, now
        elif cores and now - changed >= _QUIET_S:
            break
        sleep(_PAUSE_S)
    return cores
