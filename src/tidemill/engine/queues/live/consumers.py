"""The consumers of a queue, and what they hold.

A holder settles deliveries in the windows of its queue. Knows neither dispatching nor protocols.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

from tidemill.engine.queues.api import ConsumerSpec, Delivery, Recipient
from tidemill.engine.queues.live.lane import Lane
from tidemill.state.errors import NotAcquiredError
from tidemill.state.routing.arguments import Policy


class Settling(Protocol):
    """Settles what consumers hold."""

    policy: Policy
    lanes: list[Lane]
    is_deleted: bool

    def acknowledge(self, owner: int, partition: int, first: int, last: int) -> None:
        """Mark messages as done."""

    def release(self, owner: int, partition: int, first: int, last: int) -> None:
        """Return messages to their places."""

    def reject(self, owner: int, partition: int, first: int, last: int) -> None:
        """Dead-letter messages, or drop them."""

    def reject_delivery(self, owner: int, delivery: Delivery) -> None:
        """Dead-letter a message whose contents are at hand."""

    def wake(self) -> None:
        """Look for messages to deliver in the next turn."""


Settle = Callable[[int, int, int, int], None]
MayRead = Callable[[], bool]
"""Returns whether a client may still read a queue."""
REVOKED = "the client must not read the queue any more"


class LiveHolder:
    """Holds deliveries of one queue and settles them. See ``api.Holder``.

    Attributes:
        number: the owner in the windows.
        unacknowledged: how many deliveries are out.
    """

    __slots__ = ("_queue", "number", "unacknowledged")

    def __init__(self, queue: Settling, number: int) -> None:
        self._queue = queue
        self.number = number
        self.unacknowledged = 0

    def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        """Mark them as done."""
        self._settle(deliveries, self._queue.acknowledge)

    def release(self, deliveries: Sequence[Delivery]) -> None:
        """Return them to their places in the queue."""
        self._settle(deliveries, self._queue.release)

    def reject(self, deliveries: Sequence[Delivery]) -> None:
        """Dead-letter them, or drop them if the queue has no dead-letter exchange."""
        queue = self._queue
        at_hand: list[Delivery] = []
        if queue.policy.dead_letter_exchange is not None and not queue.is_deleted:
            at_hand = [each for each in deliveries if not each.is_dropped]
            deliveries = [each for each in deliveries if each.is_dropped]
        self._settle(deliveries, queue.reject)
        for delivery in at_hand:
            self.unacknowledged -= 1
            with suppress(NotAcquiredError):
                queue.reject_delivery(self.number, delivery)
        queue.wake()

    def _settle(self, deliveries: Sequence[Delivery], settle: Settle) -> None:
        queue = self._queue
        if queue.is_deleted or not deliveries:
            return
        at = 0
        count = len(deliveries)
        try:
            while at < count:
                delivery = deliveries[at]
                partition = delivery.partition
                first = last = delivery.offset
                at += 1
                while (
                    at < count
                    and deliveries[at].offset == last + 1
                    and deliveries[at].partition == partition
                ):
                    last += 1
                    at += 1
                self._settle_range(settle, partition, first, last)
        finally:
            self.unacknowledged -= count
            queue.wake()

    def _settle_range(self, settle: Settle, partition: int, first: int, last: int) -> None:
        try:
            settle(self.number, partition, first, last)
        except NotAcquiredError:
            # The log begins behind some of them since: retention or a client deleted records.
            for offset in range(first, last + 1) if first < last else ():
                with suppress(NotAcquiredError):
                    settle(self.number, partition, offset, offset)


class LiveConsumer(LiveHolder):
    """A consumer of one queue. See ``api.Consumer``.

    Attributes:
        spec: its wishes.
        recipient: the protocol's side.
        priority: a higher one gets messages first.
        credit: how many messages it takes, while messages are dispatched.
        is_cancelled: whether it gets no messages any more.
        may_read: returns whether its client may still read; None: always.
    """

    __slots__ = (
        "_on_cancelled",
        "credit",
        "is_cancelled",
        "may_read",
        "priority",
        "recipient",
        "spec",
    )

    def __init__(
        self,
        queue: Settling,
        number: int,
        spec: ConsumerSpec,
        recipient: Recipient,
        priority: int,
        on_cancelled: Callable[[LiveConsumer], None],
        may_read: MayRead | None,
    ) -> None:
        super().__init__(queue, number)
        self.may_read = may_read
        self.spec = spec
        self.recipient = recipient
        self.priority = priority
        self.credit = 0
        self._on_cancelled = on_cancelled
        self.is_cancelled = False

    def wake(self) -> None:
        """Look for messages: the recipient's credit possibly grew."""
        self._queue.wake()

    def cancel(self) -> None:
        """Stop delivering."""
        if not self.is_cancelled:
            self.is_cancelled = True
            self._on_cancelled(self)

    def revoke(self) -> None:
        """End it because its client must not read any more. What it holds stays out."""
        if not self.is_cancelled:
            self.cancel()
            self.recipient.cancelled(REVOKED)

    def release_all(self) -> None:
        """Return everything that it holds: its connection is gone."""
        queue = self._queue
        for lane in () if queue.is_deleted else queue.lanes:
            for first, last in lane.window.held(self.number):
                queue.release(self.number, lane.number, first, last)
        self.unacknowledged = 0
        queue.wake()
