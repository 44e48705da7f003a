"""The live queues and the routes to them.

A declared queue is live from its declaration on. A topic that no queue is declared on becomes a
queue of its name when a client uses it as one. Knows no access rights.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence

import structlog

from tidemill.clock import Clock
from tidemill.engine.queues.live.ack_log import AckLog
from tidemill.engine.queues.live.dispatch import FIRST_OWNER
from tidemill.engine.queues.live.lane import Lane
from tidemill.engine.queues.live.queue import Letters, LiveQueue
from tidemill.engine.records.partitions import Partitions
from tidemill.log.names import TopicPartition
from tidemill.log.partition.partition import PartitionLog
from tidemill.state.catalog.catalog import Catalog
from tidemill.state.internal_topics import is_internal
from tidemill.state.queues.format import (
    DOUBT,
    SIZES,
    Kind,
    StateKey,
    decode_offset,
    decode_waiting,
    encode_offset,
)
from tidemill.state.queues.window import AckWindow
from tidemill.state.routing.arguments import Policy
from tidemill.state.routing.errors import UnknownExchangeError, UnknownQueueError
from tidemill.state.routing.table import RoutingTable

MOST_ROUTES = 10_000
"""Pairs of exchange and key whose queues are kept. Above it all are forgotten."""

HeaderSource = Callable[[], Mapping[str, object]] | None

logger = structlog.get_logger("tidemill.queues")


class Registry:
    """Finds live queues.

    Args:
        on_unused: called with a queue whose last consumer went.

    Attributes:
        queues: by name.
        letters: sends dead letters. Set before the first queue is opened.
        deleting: queues that do not exist for clients any more, and whose deletion is on its way.
    """

    letters: Letters

    def __init__(
        self,
        table: RoutingTable,
        catalog: Catalog,
        partitions: Partitions,
        ack_log: AckLog,
        clock: Clock,
        on_unused: Callable[[LiveQueue], None],
    ) -> None:
        self.table = table
        self.queues: dict[str, LiveQueue] = {}
        self.deleting: set[str] = set()
        self.created = self.deleted = 0
        self._catalog = catalog
        self._partitions = partitions
        self._ack_log = ack_log
        self._clock = clock
        self._on_unused = on_unused
        self._by_log: dict[PartitionLog, tuple[LiveQueue, Lane]] = {}
        self._doubtful_ends: dict[PartitionLog, int] = {}
        self._owners = itertools.count(FIRST_OWNER)
        self._routes: dict[tuple[str, str], tuple[LiveQueue, ...]] = {}
        self._routes_version = -1

    def doubt_deliveries(self, logs: Iterable[PartitionLog]) -> None:
        """Mark all messages so far as redelivered, as RabbitMQ does after an unclean stop.

        What was delivered is written before the delivery and not synced, so a power cut can take
        it.
        """
        self._doubtful_ends = {log: log.log_end_offset for log in logs if log.log_end_offset}

    # --- queues ----------------------------------------------------------------------------------

    def get(self, name: str) -> LiveQueue:
        """Return a live queue. A topic that is not a queue yet becomes one."""
        if name in self.deleting:
            raise UnknownQueueError(name)
        queue = self.queues.get(name)
        if queue is not None:
            return queue
        definition = self.table.queues.get(name)
        if definition is not None:
            return self.open(name, definition.topic, definition.policy)
        if name not in self._catalog or is_internal(name):
            raise UnknownQueueError(name)
        return self.open(name, name, Policy())

    def exists(self, name: str) -> bool:
        """Return whether there is a queue or a topic of this name."""
        if name in self.deleting:
            return False
        if name in self.queues:
            return True
        definition = self.table.queues.get(name)
        if definition is not None:  # while it is declared, its topic is missing
            return definition.topic in self._catalog
        return name in self._catalog and not is_internal(name)

    def open(self, name: str, topic: str, policy: Policy) -> LiveQueue:
        """Make a queue live."""
        if topic not in self._catalog:
            raise UnknownQueueError(name)
        info = self._catalog.topic(topic)
        logs = [self._partitions.log(topic, number) for number in range(info.partitions)]
        lanes = []
        for log in logs:
            key = StateKey(Kind.QUEUE, name, info.topic_id, log.tp.partition)
            stored = dict(self._ack_log.stored(key))
            waiting = stored.pop(SIZES, None)
            doubtful_end = self._doubtful_end(log, key, stored.pop(DOUBT, None))
            window = AckWindow.recover(stored, log.log_end_offset)
            window.truncate(log.log_start_offset)
            lane = Lane(log, window, doubtful_end)
            if policy.max_bytes is not None:
                lane.count_bytes(None if waiting is None else decode_waiting(waiting))
            self._ack_log.add(lane, key)
            lanes.append(lane)
        lanes.reverse()  # the highest priority is the last partition
        queue = LiveQueue(
            name,
            policy,
            lanes,
            clock=self._clock,
            ack_log=self._ack_log,
            letters=self.letters,
            new_owner=lambda: next(self._owners) & 0xFFFFFFFF,
            on_unused=self._on_unused,
        )
        for lane in lanes:
            self._by_log[lane.log] = (queue, lane)
        self.queues[name] = queue
        self.created += 1
        self._routes.clear()
        return queue

    def _doubtful_end(self, log: PartitionLog, key: StateKey, stored: bytes | None) -> int:
        """Return the offset below which each message was possibly delivered, and store it."""
        known = 0 if stored is None else decode_offset(stored)
        end = self._doubtful_ends.get(log, 0)
        if end > known:
            self._ack_log.note(key._replace(block=DOUBT), encode_offset(end))
        return max(end, known)

    def close(self, queue: LiveQueue) -> None:
        """End a live queue and delete what is stored of it."""
        if self.queues.pop(queue.name, None) is not None:
            self.deleted += 1
        self._routes.clear()
        for lane in queue.lanes:
            self._by_log.pop(lane.log, None)
            self._ack_log.remove(lane)
        queue.close("the queue was deleted")

    def is_known(self, key: StateKey) -> bool:
        """Return whether a stored window belongs to a queue or a topic that exists."""
        definition = self.table.queues.get(key.owner)
        topic = key.owner if definition is None else definition.topic
        return topic in self._catalog and self._catalog.topic(topic).topic_id == key.topic_id

    def advanced(self, logs: Sequence[PartitionLog]) -> None:
        """Deliver: the ends of logs moved."""
        by_log = self._by_log
        if by_log:
            for log in logs:
                if log in by_log:
                    by_log[log][0].wake()

    def lane_at(self, tp: TopicPartition) -> tuple[LiveQueue, Lane] | None:
        """Return the live queue of a partition, or None."""
        log = self._partitions.store.partitions.get(tp)
        return None if log is None else self._by_log.get(log)

    def of_topic(self, topic: str) -> list[LiveQueue]:
        """Return the live queues that a topic stores."""
        return [each for each in self.queues.values() if each.lanes[0].log.tp.topic == topic]

    # --- routes ----------------------------------------------------------------------------------

    def routes(
        self,
        exchange: str,
        routing_key: str,
        headers: HeaderSource,
        more_keys: Sequence[str],
    ) -> Sequence[LiveQueue]:
        """Return the queues of a message.

        Args:
            more_keys: routing keys that the message has beside the first one.
        """
        if self._routes_version != self.table.version:
            self._routes.clear()
            self._routes_version = self.table.version
        if more_keys:
            return self._find(exchange, (routing_key, *more_keys), headers)
        found = self._routes.get((exchange, routing_key))
        return self._find(exchange, (routing_key,), headers) if found is None else found

    def _find(
        self, exchange: str, keys: tuple[str, ...], headers: HeaderSource
    ) -> tuple[LiveQueue, ...]:
        names, is_fixed = tuple(dict.fromkeys(keys)), True
        if exchange:
            if exchange not in self.table.exchanges:
                raise UnknownExchangeError(exchange)
            names, is_fixed = self.table.route(exchange, keys, headers)
        queues = tuple(self.get(each) for each in names if self.exists(each))
        if is_fixed and len(queues) == len(names) and len(keys) == 1:
            if len(self._routes) >= MOST_ROUTES:
                self._routes.clear()
            self._routes[exchange, keys[0]] = queues
        return queues
