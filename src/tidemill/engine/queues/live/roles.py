"""The side of a live queue that its consumers and its dispatcher see. Knows no implementation."""

from __future__ import annotations

from typing import Protocol

from tidemill.engine.queues.api import Delivery
from tidemill.engine.queues.live.lane import Lane
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
