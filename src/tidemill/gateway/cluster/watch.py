"""Keeps the snapshot: asks for a new one while someone looks, and takes a sample a minute.

It belongs to one event loop. Must not know: pages.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import replace

import structlog

from tidemill.confluent.clients import Kafka
from tidemill.errors import TidemillError
from tidemill.gateway.cluster.history import PERIOD_S, History
from tidemill.gateway.cluster.requests import Cluster
from tidemill.gateway.cluster.state import GroupState, Snapshot

FRESH_S = 4.5
"""A snapshot that is older is asked for again when it is looked at. Pages look each 5 seconds."""
QUICK_S = 0.02
"""One that takes longer is asked for half as often. That one takes so long for about a thousand
partitions; half of it is the broker's."""
_SHARE = 20
"""Asking takes at most this part of the time: a large cluster is asked less often."""
_STALE = 2
"""A snapshot that is so many times older than a fresh one is not shown: the page waits for a new
one."""
_WHOLE_S = 60.0
"""How often first offsets and sizes on disk are asked for: they change slowly."""

log = structlog.get_logger("tidemill.gateway")


class Watch:
    """The snapshot of a cluster, as one user sees it.

    Args:
        history: The history of another one, which sees all of the cluster. By default, it has its
            own.
    """

    def __init__(self, kafka: Kafka, history: History | None = None) -> None:
        self._kafka = kafka
        self._cluster: Cluster | None = None
        self._latest: Snapshot | None = None
        self._latest_s = self._whole_s = 0.0
        self._is_expired = self._has_failed = False
        self._asking: asyncio.Task[Snapshot] | None = None
        self._sampling: asyncio.Task[None] | None = None
        self._has_own = history is None
        self.history = history or History()

    async def snapshot(self) -> Snapshot:
        """Return the snapshot: a recent one, or a new one if that is too old.

        After a failure there is none until the brokers answer again.

        Raises:
            UnreachableError: no broker answers.
            TidemillError: the login is not one that snapshots understand, or is refused.
        """
        latest, age_s = self._latest, time.monotonic() - self._latest_s
        fresh_s = fresh_for_s(0.0 if latest is None else latest.took_s)
        is_valid = not (self._is_expired or self._has_failed)
        if latest is not None and is_valid and age_s < _STALE * fresh_s:
            if age_s > fresh_s:
                self._begin().add_done_callback(_ignore)
            return latest
        if self._is_expired and self._asking is not None:
            await asyncio.wait([self._asking])  # it may have begun before what was changed
        return await asyncio.shield(self._begin())

    def expire(self) -> None:
        """Ask again at the next look: something was changed here."""
        self._is_expired = True

    def start_sampling(self) -> None:
        """Take a sample each minute, also while no one looks."""
        if self._sampling is None:
            self._sampling = asyncio.get_running_loop().create_task(self._sample())

    async def close(self) -> None:
        """End what runs, and close the connections."""
        if self._sampling is not None:
            self._sampling.cancel()
        if self._asking is not None:
            with contextlib.suppress(Exception):
                await self._asking
        if self._cluster is not None:
            await asyncio.to_thread(self._cluster.close)

    def _begin(self) -> asyncio.Task[Snapshot]:
        if self._asking is None or self._asking.done():
            self._asking = asyncio.get_running_loop().create_task(self._ask())
        return self._asking

    async def _ask(self) -> Snapshot:
        self._is_expired = False
        if self._cluster is None:
            self._cluster = Cluster(self._kafka)
        began = time.monotonic()
        whole = began - self._whole_s > _WHOLE_S
        try:
            found = await asyncio.to_thread(self._new, self._cluster, whole)
        except TidemillError:
            self._has_failed = True
            raise
        self._has_failed = False
        if whole:
            self._whole_s = began
        self._latest, self._latest_s = found, time.monotonic()
        if self._has_own:
            self.history.take(self._latest)
        return self._latest

    def _new(self, cluster: Cluster, whole: bool) -> Snapshot:
        """Return a new snapshot with what follows from it. It runs in a thread."""
        return self._with_lags(self._with_rates(cluster.snapshot(whole=whole)))

    def _with_rates(self, found: Snapshot) -> Snapshot:
        """Add what was written and read since the snapshot before, unless that is too old."""
        before = self._latest
        seconds = 0.0 if before is None else (found.at_ms - before.at_ms) / 1000
        if before is None or not 0.5 < seconds < 2 * PERIOD_S:
            return found
        rates = {
            name: max(0, sum(topic.ends) - sum(before.topics[name].ends)) / seconds
            for name, topic in found.topics.items()
            if name in before.topics and before.topics[name].partitions == topic.partitions
        }
        read_rates = {
            name: max(0, group.read - before.groups[name].read) / seconds
            for name, group in found.groups.items()
            if name in before.groups
        }
        return replace(found, rates=rates, read_rates=read_rates)

    def _with_lags(self, found: Snapshot) -> Snapshot:
        groups: dict[str, GroupState] = {}
        by_topic: dict[str, dict[str, int]] = {}
        topics = dict(found.topics)
        for name, group in found.groups.items():
            lags = {topic: sum(each.values()) for topic, each in group.lags(topics).items()}
            for topic, lag in lags.items():
                by_topic.setdefault(topic, {})[name] = lag
            lag_s, is_older = self.history.lag_s(group, topics, found.at_ms / 1000)
            groups[name] = replace(group, lag=sum(lags.values()), lag_s=lag_s, is_older=is_older)
        return replace(found, groups=groups, lags=by_topic)

    async def _sample(self) -> None:
        is_reported = False
        while True:
            try:
                if self._latest is None or time.monotonic() - self._latest_s > PERIOD_S / 2:
                    await asyncio.shield(self._begin())
                is_reported = False
            except TidemillError as error:
                if not is_reported:  # not each minute while a broker is away
                    is_reported = True
                    log.info("console.not_sampled", error=str(error), hint=error.hint)
            await asyncio.sleep(PERIOD_S)


def fresh_for_s(took_s: float) -> float:
    """Return how long a snapshot is fresh, in seconds.

    Args:
        took_s: how long it took.
    """
    return max(FRESH_S if took_s < QUICK_S else 2 * FRESH_S, _SHARE * took_s)


def _ignore(task: asyncio.Task[Snapshot]) -> None:
    """Look at the result, so that asyncio does not warn: the next look asks again and waits."""
    if not task.cancelled():
        task.exception()
