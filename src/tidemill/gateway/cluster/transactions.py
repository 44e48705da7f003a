"""Transactions that are open, what they hold back, and their end (KIP-664).

A look sends a fixed number of requests to each broker, none for a single transaction or partition.
Readers with ``read_committed`` stop at the last stable offset of a partition, which is before the
first open transaction. A write that no coordinator knows hangs: only a marker ends it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from tidemill.confluent.clients import Kafka
from tidemill.errors import StateConflictError
from tidemill.gateway.cluster.asking import requests_to
from tidemill.gateway.cluster.watch import fresh_for_s
from tidemill.gateway.kept import Kept
from tidemill.kafka_client.admin.open_writes import OpenWrite, abort_write, open_writes
from tidemill.kafka_client.admin.partitions import LATEST, offsets
from tidemill.kafka_client.admin.requests import BrokerRequests, Place, by_leader, leaders_in
from tidemill.kafka_client.admin.transactions import (
    OPEN_STATES,
    Description,
    describe_listed,
    describe_transaction,
    fence,
    list_transactions,
)
from tidemill.kafka_client.errors import RefusedError

KEPT_S = 4.0
"""How long a look is shown again; longer, like a snapshot, if it takes long: it asks about all
partitions, twice."""
OPEN_KEPT_S = 20.0
"""How long a list of what is open is shown again."""
HANGS_MS = 60_000
"""A write without a transaction that is older hangs: its coordinator has forgotten it."""
MOST_OPEN = 5000
"""Transactions that are described."""
MOST_HELD = 2000
"""Partitions whose producers are asked for."""


@dataclass(frozen=True, slots=True)
class Look:
    """All of them at one moment, and what could not be found out.

    Attributes:
        open: Transactions that are open or being ended.
        waiting: By transactional id, the records that readers don't get because of it.
        hanging: Writes that no transaction ends.
        held: By partition that has open transactions, the records behind the last stable offset.
    """

    open: Sequence[Description]
    waiting: Mapping[str, int]
    hanging: Sequence[OpenWrite]
    held: Mapping[Place, int]
    problems: Sequence[str] = field(default_factory=tuple)


class Transactions:
    """The transactions of a cluster, as one user sees them."""

    def __init__(self, kafka: Kafka) -> None:
        self._kafka = kafka
        self._look = Kept(KEPT_S, self._look_again, fresh_for_s)
        self._open = Kept(OPEN_KEPT_S, partial(_only_open, kafka))

    async def open(self) -> Sequence[Description]:
        """Return what is open, and not what that holds back: it asks about no partition.

        Raises:
            TidemillError: no broker answers, or it does not report transactions.
        """
        return await self._open.get()

    async def look(self) -> Look:
        """Return what is open.

        Raises:
            TidemillError: no broker answers, or it does not report transactions.
        """
        return await self._look.get()

    def _look_again(self) -> Look:
        found = _look(self._kafka)
        self._open.keep(found.open)
        return found

    async def abort(self, transactional_id: str, producer_id: int) -> None:
        """Abort an open transaction, and fence its producer.

        Args:
            producer_id: the producer that was shown: another transaction is not ended.

        Raises:
            StateConflictError: the transaction has ended.
            RefusedError: the user must not do it, for example.
        """
        await asyncio.to_thread(_abort, self._kafka, transactional_id, producer_id)
        self._look.expire()
        self._open.expire()

    async def abort_hanging(self, topic: str, partition: int, producer_id: int) -> None:
        """Write a marker that ends a hanging write.

        Raises:
            StateConflictError: the write has ended.
            RefusedError: the user must not do it, for example.
        """
        self._look.expire()
        look = await self.look()
        wanted = (topic, partition), producer_id
        found = [each for each in look.hanging if (each.key, each.producer_id) == wanted]
        if not found:
            raise StateConflictError("this write has ended, or does not hang")
        await asyncio.to_thread(_end, self._kafka, found[0])
        self._look.expire()


# --- in a thread ---------------------------------------------------------------------------------


def _look(kafka: Kafka) -> Look:
    problems: list[str] = []
    with requests_to(kafka) as requests:
        found = _open(requests, problems)
        held, ends = _held(requests)
        places = sorted(held)
        if len(places) > MOST_HELD:
            problems.append(f"Only {MOST_HELD} of {len(places)} partitions are looked at.")
        writes = open_writes(requests, places[:MOST_HELD], report=_left_out)
    waiting: dict[str, int] = {}
    for each in writes:
        if each.owner is not None:
            behind = max(0, ends[each.key] - each.first_offset)
            id_ = each.owner.transactional_id
            waiting[id_] = waiting.get(id_, 0) + behind
    hanging = [each for each in writes if each.owner is None and (each.idle_ms or 0) > HANGS_MS]
    return Look(found, waiting, hanging, held, tuple(problems))


def _only_open(kafka: Kafka) -> Sequence[Description]:
    with requests_to(kafka) as requests:
        return _open(requests, [])


def _left_out(_: RefusedError) -> None:
    """Leave a partition out: it moves, or the user must not see it."""


def _open(requests: BrokerRequests, problems: list[str]) -> list[Description]:
    listed = list_transactions(requests, states=OPEN_STATES)
    if len(listed) > MOST_OPEN:
        problems.append(f"Only {MOST_OPEN} of {len(listed)} open transactions are shown.")
    return [each for each in describe_listed(requests, listed[:MOST_OPEN]) if each.is_open]


def _held(requests: BrokerRequests) -> tuple[dict[Place, int], dict[Place, int]]:
    """Return the records behind the last stable offset of partitions, and the ends of all."""
    held: dict[Place, int] = {}
    ends: dict[Place, int] = {}
    for leader, places in by_leader(leaders_in(requests.metadata())).items():
        stable = offsets(requests, leader, places, LATEST, committed=True, report=_left_out)
        ends |= offsets(requests, leader, places, LATEST, report=_left_out)
        for place, offset in stable.items():
            if ends.get(place, -1) > offset >= 0:
                held[place] = ends[place] - offset
    return held, ends


def _abort(kafka: Kafka, transactional_id: str, producer_id: int) -> None:
    with requests_to(kafka) as requests:
        now = describe_transaction(requests, transactional_id)
        if now is None or now.state != "ongoing" or now.producer_id != producer_id:
            raise StateConflictError(f"the transaction of {transactional_id} has ended")
        fence(requests, transactional_id, now.timeout_ms)


def _end(kafka: Kafka, write: OpenWrite) -> None:
    with requests_to(kafka) as requests:
        abort_write(requests, write)
