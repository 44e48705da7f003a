"""The transactions of a channel: tx.select, tx.commit, tx.rollback.

What is published and settled is kept until the commit. A commit is answered when all messages and
acknowledgements are on disk. As in RabbitMQ, a crash in the middle of a commit can leave a part of
it. The dead letters of what was rejected follow.
"""

from __future__ import annotations

import asyncio

from tidemill.protocols.amqp.channels.consuming import Consuming, Entry, Settlement
from tidemill.protocols.amqp.channels.publishing import Publishing
from tidemill.protocols.amqp.codec.frames import PublishHead
from tidemill.protocols.amqp.error_codes import precondition
from tidemill.protocols.amqp.messages import Published

ENTRY_BYTES = 256
"""Bytes that a kept message or settlement counts for besides its own."""


class Transaction:
    """The messages and settlements of a channel since the last commit."""

    def __init__(self, publishing: Publishing, consuming: Consuming) -> None:
        self._publishing = publishing
        self._consuming = consuming
        self._published: list[tuple[PublishHead, Published, bytes]] = []
        self._settled: list[tuple[Settlement, int, Entry]] = []
        self.pending_bytes = 0
        """Bytes that wait for the commit."""
        self._waiting: set[int] = set()
        self._refused = 0
        self._done: asyncio.Future[None] | None = None
        publishing.observer = self._on_settled

    @property
    def published_count(self) -> int:
        """The number of messages that wait for the commit."""
        return len(self._published)

    @property
    def settled_count(self) -> int:
        """The number of deliveries that are settled when the transaction commits."""
        return len(self._settled)

    def publish(self, head: PublishHead, properties: bytes, body: bytes) -> None:
        """Keep a message for the commit."""
        self._published.append((head, self._publishing.check(head, properties), body))
        self.pending_bytes += len(body) + len(properties) + ENTRY_BYTES

    def settle(self, how: Settlement, tag: int, multiple: bool) -> None:
        """Keep a settlement for the commit."""
        tags = self._consuming.tags_up_to(tag) if multiple else [tag]
        taken = self._consuming.take(tag, multiple)
        self._settled += [(how, tag, entry) for tag, entry in zip(tags, taken, strict=True)]

    async def commit(self) -> None:
        """Publish and settle what was kept; return when that is on disk.

        What was settled is kept until the messages are on disk: a channel that is closed before
        returns it to its queues.
        """
        published, self._published = self._published, []
        self.pending_bytes = 0
        await self._publish(published)
        settled, self._settled = self._settled, []
        for how in ("acknowledge", "release", "reject"):
            entries = [entry for kind, _, entry in settled if kind == how]
            if entries:
                self._consuming.settle(how, entries)
        if settled:
            await self._consuming.stored()

    async def _publish(self, published: list[tuple[PublishHead, Published, bytes]]) -> None:
        # Messages from before tx.select have the tag 0.
        for tag, (head, message, body) in enumerate(published, 1):
            if self._publishing.route(tag, head, message, body):
                self._waiting.add(tag)
        if self._waiting:
            self._done = asyncio.get_running_loop().create_future()
            await self._done
        if self._refused:
            count, self._refused = self._refused, 0
            raise precondition(f"partial tx completion: {count} messages were refused")

    def _on_settled(self, ok: list[int], refused: list[int]) -> None:
        self._refused += len(self._waiting.intersection(refused))
        self._waiting.difference_update(ok, refused)
        if not self._waiting and self._done is not None and not self._done.done():
            self._done.set_result(None)

    def rollback(self) -> None:
        """Forget the messages; what was settled is unsettled again."""
        self._published.clear()
        self.pending_bytes = 0
        self._consuming.restore([(tag, entry) for _, tag, entry in self._settled])
        self._settled.clear()

    def close(self) -> None:
        """Return everything: the channel is closed."""
        self.rollback()
        if self._done is not None:
            self._done.cancel()
