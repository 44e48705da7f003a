"""Declares and deletes exchanges, queues and bindings: checks, records, topics.

One declaration runs at a time. A queue's record is on disk before its topic is created, and its
topic is deleted before its record is: a start finds a record without a topic, and creates it. Knows
no access rights.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Sequence

from tidemill.engine.api import NewTopic
from tidemill.engine.queues.api import QueueSpec
from tidemill.engine.queues.registry import Registry
from tidemill.engine.state_log import StateLog
from tidemill.engine.topics.admin import TopicAdmin
from tidemill.errors import TidemillError
from tidemill.log.errors import InvalidTopicError
from tidemill.log.names import check_topic_name
from tidemill.state.outcome import StateRecord
from tidemill.state.routing import commands
from tidemill.state.routing.arguments import Policy
from tidemill.state.routing.table import RoutingTable
from tidemill.state.routing.types import (
    EXCHANGE,
    QUEUE,
    Binding,
    Destination,
    ExchangeSpec,
    QueueDefinition,
)

SEGMENT_BYTES = 1 << 24
"""Segments of a queue: what is done is deleted segment by segment."""


class Declarations:
    """Changes the routing table.

    Args:
        table: changed by its records only.
    """

    def __init__(
        self, state_log: StateLog, table: RoutingTable, admin: TopicAdmin, registry: Registry
    ) -> None:
        self._state_log = state_log
        self._table = table
        self._admin = admin
        self._registry = registry
        self._lock = asyncio.Lock()

    def recover(self) -> None:
        """Replay what is stored."""
        records = self._state_log.latest()
        with self._state_log.naming_place():
            for kind in (EXCHANGE, QUEUE, "binding"):
                for key, value in records.items():
                    if value is not None and key.startswith(f'["{kind}"'.encode()):
                        self._table.replay(key, value)

    async def open_queues(self) -> None:
        """Make the queues of the table live, and delete those that do not survive a restart."""
        for definition in list(self._table.queues.values()):
            if not definition.survives:
                await self._delete_queue(definition.name)
                continue
            if definition.topic not in self._admin.catalog and definition.owns_topic:
                await self._create_topic(definition)

    # --- exchanges -------------------------------------------------------------------------------

    async def declare_exchange(self, name: str, new: ExchangeSpec) -> None:
        """Create an exchange, or check that it is the same."""
        async with self._lock:
            records = commands.declare_exchange(self._table, name, new)
            await self._apply(records, stored=new.durable)

    async def delete_exchange(self, name: str, *, if_unused: bool) -> None:
        """Delete an exchange with its bindings, if it exists."""
        async with self._lock:
            if name in self._table.exchanges:
                sources = self._sources(Destination(EXCHANGE, name))
                await self._apply(commands.delete_exchange(self._table, name, if_unused=if_unused))
                await self._delete_unused(sources)

    async def bind(self, binding: Binding) -> None:
        """Create a binding."""
        async with self._lock:
            records = commands.bind(self._table, binding)
            await self._apply(records, stored=self._is_stored(binding))

    async def unbind(self, binding: Binding) -> None:
        """Remove a binding."""
        async with self._lock:
            await self._apply(commands.unbind(self._table, binding))
            await self._delete_unused([binding.source])

    def _is_stored(self, binding: Binding) -> bool:
        """Return whether both ends of a binding survive a restart."""
        if not self._table.exchanges[binding.source].durable:
            return False
        kind, name = binding.destination
        if kind == EXCHANGE:
            return self._table.exchanges[name].durable
        queue = self._table.queues.get(name)
        return queue is None or queue.survives

    def _sources(self, destination: Destination) -> list[str]:
        return [each.source for each in self._table.bindings_to(destination)]

    async def _delete_unused(self, sources: Sequence[str]) -> None:
        """Delete exchanges with auto-delete that have no bindings left."""
        waiting = commands.unused_exchanges(self._table, sources)
        while waiting:
            name = waiting.pop()
            before = self._sources(Destination(EXCHANGE, name))
            await self._apply(commands.delete_exchange(self._table, name, if_unused=False))
            waiting += commands.unused_exchanges(self._table, before)

    # --- queues ----------------------------------------------------------------------------------

    async def declare_queue(self, name: str, spec: QueueSpec, policy: Policy) -> None:
        """Create a queue, or check that it is the same."""
        asked = (spec.durable, spec.exclusive, spec.auto_delete, spec.arguments, policy)
        async with self._lock:
            current = self._table.queues.get(name)
            if current is not None:
                commands.check_same_queue(current, QueueDefinition(name, "", False, *asked))
                return
            commands.check_name(QUEUE, name)
            topic, owns = self._topic_for(name)
            new = QueueDefinition(name, topic, owns, *asked)
            written = asyncio.ensure_future(self._apply(commands.declare_queue(new)))
            try:
                if owns:
                    await self._create_topic(new, written)
                await written
                live = self._registry.queues.get(name)
                if live is not None:  # it was used as a topic
                    live.set_policy(policy)
                else:
                    self._registry.open(name, topic, policy)
            except BaseException:
                await asyncio.gather(written, return_exceptions=True)
                if name in self._table.queues:
                    await self._apply(commands.delete_queue(self._table, name))
                raise

    def _topic_for(self, name: str) -> tuple[str, bool]:
        """Return the topic of a queue, and whether it is created for it."""
        catalog = self._admin.catalog
        if name in catalog:
            return name, False
        try:
            check_topic_name(name)
        except InvalidTopicError:
            return _derived(name), True
        checked = catalog.create([NewTopic(name, 1, 1)], validate_only=True).result[0]
        return (_derived(name) if isinstance(checked, InvalidTopicError) else name), True

    async def _create_topic(
        self, queue: QueueDefinition, written: Awaitable[None] | None = None
    ) -> None:
        """Create the topic of a queue.

        Args:
            written: returns when the queue's own record is on disk. The folders are created
                meanwhile.
        """
        policy = queue.policy
        configs: dict[str, str | None] = {
            "cleanup.policy": "delete",
            "max.message.bytes": str(SEGMENT_BYTES),
            "retention.bytes": "-1",
            "retention.ms": "-1",
            "segment.bytes": str(SEGMENT_BYTES),
        }
        if policy.is_stream:
            configs["retention.bytes"] = str(policy.max_bytes or -1)
            configs["retention.ms"] = str(policy.max_age_ms or -1)
        (created,) = await self._admin.create(
            [NewTopic(queue.topic, policy.max_priority + 1, 1, configs=configs)],
            validate_only=False,
            after=written,
        )
        if isinstance(created, TidemillError):
            raise created

    async def delete_queue(self, name: str) -> None:
        """Delete a queue with its bindings and its topic, if it exists."""
        async with self._lock:
            await self._delete_queue(name)

    async def _delete_queue(self, name: str) -> None:
        definition = self._table.queues.get(name)
        live = self._registry.queues.get(name)
        if live is not None:
            self._registry.close(live)
        if definition is None:
            return
        if definition.owns_topic and definition.topic in self._admin.catalog:
            (error,) = await self._admin.delete([definition.topic])
            if error is not None:
                raise error
        await self._forget_queue(name)

    async def _forget_queue(self, name: str) -> None:
        sources = self._sources(Destination(QUEUE, name))
        await self._apply(commands.delete_queue(self._table, name))
        await self._delete_unused(sources)

    async def topic_deleted(self, topic: str) -> None:
        """Delete the queues and the bindings of a topic that a client deleted."""
        async with self._lock:
            names = [n for n, each in self._table.queues.items() if each.topic == topic]
            for name in dict.fromkeys([*names, topic]):
                if topic not in self._admin.catalog:
                    await self._forget_queue(name)

    # --- records ---------------------------------------------------------------------------------

    async def _apply(self, records: Sequence[StateRecord], *, stored: bool = True) -> None:
        """Write records, and replay them when they are on disk."""

        def ended(error: Exception | None) -> None:
            for record in records if error is None else ():
                self._table.replay(record.key, record.value)

        if stored:
            await self._state_log.write(records, ended, "the declaration was not stored")
        else:
            ended(None)


def _derived(name: str) -> str:
    """Return a valid name of a topic for a queue whose own name is not."""
    kept = "".join(c if c.isascii() and (c.isalnum() or c in "-.") else "-" for c in name)
    return f"queue-{kept[:64]}-{hashlib.sha256(name.encode()).hexdigest()[:16]}"
