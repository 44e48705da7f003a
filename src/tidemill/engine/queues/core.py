"""The queues of one broker: assembles the parts, starts and stops them.

Shared by all clients; ``queues`` is the part of the door that checks access. Knows no protocol.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Container, Coroutine, Sequence
from functools import partial
from uuid import UUID

import structlog

from tidemill.clock import Clock
from tidemill.engine.errors import BrokerStoppingError
from tidemill.engine.flusher import Flusher, settle
from tidemill.engine.queues.api import Arguments, OnSettled, Owner
from tidemill.engine.queues.declarations import Declarations
from tidemill.engine.queues.disk_space import DiskSpace
from tidemill.engine.queues.errors import InvalidQueueArgumentError
from tidemill.engine.queues.letters import DeadLetters, key_of, origin_of
from tidemill.engine.queues.live.ack_log import AckLog
from tidemill.engine.queues.live.lane import Lane
from tidemill.engine.queues.live.queue import LiveQueue
from tidemill.engine.queues.live.stored import Stored
from tidemill.engine.queues.publish import Batches, LivePublisher
from tidemill.engine.queues.registry import Registry
from tidemill.engine.records.backpressure import Backpressure
from tidemill.engine.records.partitions import Partitions
from tidemill.engine.state_log import StateLog
from tidemill.engine.topics.admin import TopicAdmin
from tidemill.errors import TidemillError
from tidemill.log.names import TopicPartition
from tidemill.log.partition.partition import PartitionLog
from tidemill.state.queues.format import MARKS, decode_offset, encode_offset
from tidemill.state.routing.arguments import Policy
from tidemill.state.routing.table import RoutingTable

TICK_S = 0.5
"""How often queues without use and messages to delete are looked for."""
MOST_NOTICED = 1000
"""Unknown arguments of which a warning is logged."""

logger = structlog.get_logger("tidemill.queues")


class QueueCore:
    """The queues of one broker.

    Attributes:
        table: what is declared.
        registry: the live queues.
        declarations: changes the table.
        owners: the connections of exclusive queues, by queue.
    """

    def __init__(
        self,
        admin: TopicAdmin,
        partitions: Partitions,
        flusher: Flusher,
        clock: Clock,
        declared: StateLog,
        state: StateLog,
        backpressure: Backpressure,
        *,
        strict_arguments: bool,
    ) -> None:
        self.clock = clock
        self._catalog = admin.catalog
        self.table = RoutingTable()
        self.owners: dict[str, Owner] = {}
        self._ack_log = AckLog(state, clock, self._free)
        self.registry = Registry(
            self.table, admin.catalog, partitions, self._ack_log, clock, self._unused
        )
        self.declarations = Declarations(declared, self.table, admin, self.registry)
        self._store = partitions.store
        space = DiskSpace(self._store.path, clock)
        self._batches = Batches(flusher, clock, space)
        self._letters = DeadLetters(self.registry, self._batches, self._ack_log, clock)
        self.registry.letters = self._letters
        self._tasks: set[asyncio.Task[None]] = set()
        self._backpressure = backpressure
        self._unstored: set[asyncio.Future[None]] = set()
        self._is_stopping = False
        self._strict_arguments = strict_arguments
        self._noticed: set[str] = set()

    # --- start and stop --------------------------------------------------------------------------

    async def start(self) -> None:
        """Replay what is stored, and make the queues live."""
        self._ack_log.recover()
        if not self._store.clean_start:
            self.registry.doubt_deliveries(self._store.partitions.values())
        self.declarations.recover()
        await self.declarations.open_queues()
        for name in list(self.table.queues):
            try:
                self.registry.get(name).wake()
            except TidemillError as error:
                logger.error("queue.offline", queue=name, error=str(error), hint=error.hint)
        await self._complete_letters()
        self._ack_log.forget_unused(self.registry.is_known)
        self.registry.created = 0
        self._run(self._tick())

    async def stop(self) -> None:
        """End all consumers, and write what is not written."""
        self._is_stopping = True
        for queue in self.registry.queues.values():
            queue.close("the broker is stopping")
        self._batches.flush()
        self._batches.is_stopped = True
        self._ack_log.stop()
        for stored in self._unstored:
            settle(stored, BrokerStoppingError("the broker is stopping"))
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def check_running(self) -> None:
        """Raise BrokerStoppingError if the broker stops."""
        if self._is_stopping:
            raise BrokerStoppingError("the broker is stopping")

    def check_known(
        self, kind: str, name: str, arguments: Arguments, known: Container[str]
    ) -> None:
        """Warn of the arguments of a declaration that are not known, once for each."""
        for argument in arguments:
            if argument in known:
                continue
            if self._strict_arguments:
                raise InvalidQueueArgumentError(kind, name, argument, "it is unknown", unknown=True)
            if argument not in self._noticed and len(self._noticed) < MOST_NOTICED:
                self._noticed.add(argument)
                logger.warning("queue.unknown_argument", kind=kind, name=name, argument=argument)

    def _run(self, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            now_ms = self.clock.monotonic_ms()
            for queue in list(self.registry.queues.values()):
                limit = queue.policy.expires_ms
                if limit is None or queue.all_consumers:
                    continue
                if now_ms - queue.last_used_ms >= limit:
                    logger.info("queue.expired", queue=queue.name)
                    self._run(self.delete(queue.name))

    # --- events ----------------------------------------------------------------------------------

    def advanced(self, logs: Sequence[PartitionLog]) -> None:
        """Deliver: the ends of logs moved."""
        self.registry.advanced(logs)

    def start_moved(self, tp: TopicPartition) -> None:
        """Drop the messages that a log has not any more: retention or a client deleted them."""
        found = self.registry.lane_at(tp)
        if found is not None:
            found[1].follow_start()
            self._ack_log.changed(found[1])
            found[0].wake()

    def topics_deleted(self, names: Sequence[str]) -> None:
        """End the queues of topics that were deleted."""
        for name in names:
            for queue in self.registry.of_topic(name):
                self._end(queue)
            if not self._is_stopping:
                self._run(self.declarations.topic_deleted(name))

    def _end(self, queue: LiveQueue) -> None:
        """End a queue that is deleted."""
        self.registry.close(queue)
        self.owners.pop(queue.name, None)

    def _unused(self, queue: LiveQueue) -> None:
        definition = self.table.queues.get(queue.name)
        if definition is not None and definition.auto_delete and not self._is_stopping:
            self._run(self.delete(queue.name))

    def _free(self, lane: Lane, end: int) -> None:
        """Delete the segments of a queue's own topic that are below an offset."""
        found = self.registry.lane_at(lane.log.tp)
        if found is not None and found[1] is lane:
            definition = self.table.queues.get(found[0].name)
            if definition is not None and definition.owns_topic:
                delete_done(lane, end, found[0].policy, self.clock.now_ms())

    def _lane_of(self, topic_id: UUID, partition: int) -> tuple[LiveQueue, Lane] | None:
        try:
            topic = self._catalog.topic_by_id(topic_id)
        except TidemillError:
            return None
        found = self.registry.lane_at(TopicPartition(topic.name, partition))
        if found is None and not topic.internal:
            self.registry.get(topic.name)
            found = self.registry.lane_at(TopicPartition(topic.name, partition))
        return found

    async def _complete_letters(self) -> None:
        """Mark the origins of all letters as done, and send letters that are missing."""
        found: dict[tuple[UUID, int, int], tuple[Stored, list[Lane]]] = {}
        targets: list[Lane] = []
        for key, values in self._ack_log.stored_letters():
            place = self._lane_of(key.topic_id, key.partition)
            if place is None:
                self._ack_log.note(key, None)
                continue
            lane = place[1]
            targets.append(lane)
            first = max(decode_offset(values[MARKS]), lane.log.log_start_offset)
            async for _, letter in lane.fetch(first, lane.log.log_end_offset - 1):
                origin = origin_of(letter.headers)
                if origin is not None:
                    found.setdefault(origin, (letter, []))[1].append(lane)
        for (topic_id, partition, offset), (letter, lanes) in found.items():
            place = self._lane_of(topic_id, partition)
            if place is None or not 0 <= offset < place[1].log.log_end_offset:
                continue
            queue, lane = place
            if lane.window.is_done(offset):
                continue
            logger.info("queue.letter_completed", queue=queue.name, offset=offset)
            lane.window.finish(offset)
            lane.sizes.dropped(len(letter.value))
            self._ack_log.changed(lane)
            self._letters.resend(queue, letter, lanes)
        for lane in targets:
            value = encode_offset(lane.log.log_end_offset)
            self._ack_log.after(lane, partial(self._ack_log.note, key_of(lane), value))

    # --- what clients ask for --------------------------------------------------------------------

    async def delete(self, name: str) -> None:
        """Delete a queue. It does not exist for clients from now on."""
        self.registry.deleting.add(name)
        try:
            queue = self.registry.queues.get(name)
            if queue is not None:
                self._end(queue)
            await self.declarations.delete_queue(name)
        finally:
            self.registry.deleting.discard(name)

    def publisher(
        self, on_settled: OnSettled | None, check: Callable[[str, str], None] | None
    ) -> LivePublisher:
        """Return a publisher; see ``LivePublisher``."""
        return LivePublisher(
            self.registry,
            self._batches,
            self.clock,
            on_settled,
            self._letters.refuse,
            check,
            self._backpressure,
        )

    async def stored(self) -> None:
        """Return when everything that was settled so far is on disk."""
        stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._unstored.add(stored)
        self._ack_log.when_stored(partial(settle, stored, None))
        try:
            await stored
        finally:
            self._unstored.discard(stored)

    async def connection_closed(self, owner: Owner) -> None:
        """Cancel a connection's consumers, return what was out, and delete exclusive queues."""
        for queue in list(self.registry.queues.values()):
            for consumer in [each for each in queue.all_consumers if each.spec.owner is owner]:
                consumer.cancel()
                consumer.release_all()
        for name in [name for name, each in self.owners.items() if each is owner]:
            await self.delete(name)


def delete_done(lane: Lane, end: int, policy: Policy, now_ms: int) -> None:
    """Delete the closed segments below a low-water mark.

    ``x-retain`` keeps them for a time after their latest message, or forever.

    Args:
        end: everything below it is done.
    """
    log = lane.log
    if policy.retain_ms < 0 or log.failure is not None or policy.is_stream:
        return
    keep_from = log.log_start_offset
    segments = log.segments
    for segment, following in itertools.pairwise(segments):
        if following.base_offset > end:
            break
        if policy.retain_ms and now_ms - segment.max_timestamp < policy.retain_ms:
            break
        keep_from = following.base_offset
    if keep_from <= log.log_start_offset:
        return
    try:
        log.delete_records_before(keep_from)
    except TidemillError as error:
        logger.error("queue.not_deleted", partition=str(log.tp), error=str(error), hint=error.hint)
