"""Moves messages between queues. This module must not print."""

from __future__ import annotations

from dataclasses import dataclass, field

from tidemill.amqp_client.connection import AmqpClient, Message
from tidemill.amqp_client.errors import AmqpNotFoundError
from tidemill.protocols.amqp.codec.properties import with_headers


@dataclass
class Moved:
    """The result of a move.

    Attributes:
        targets: how many messages went, or would go, to each queue.
        stayed: messages that stay, because they have no queue to go back to.
    """

    targets: dict[str, int] = field(default_factory=dict)
    stayed: int = 0


def move(
    client: AmqpClient,
    source: str,
    to: str | None = None,
    most: int | None = None,
    *,
    dry_run: bool = False,
) -> Moved:
    """Move the messages that are ready: each is on disk in its new queue before it leaves the old.

    A crash in between can leave a message in both queues, and never in none.

    Args:
        source: the queue that has the messages.
        to: the queue that gets them; None: each dead letter goes to the queue where it died last.
        most: the most messages; None for all.
        dry_run: count, and change nothing.

    Raises:
        AmqpNotFoundError: a queue does not exist.
        QueueRefusedError: the broker refuses.
        UnreachableError: the connection broke.
    """
    found = Moved()
    kept: list[int] = []
    client.call("confirm.select")
    ready = client.call("queue.declare", queue=source, passive=True).number("message_count")
    for _ in range(min(ready, most or ready)):
        message = client.get(source)
        if message is None:
            break
        target = to if to is not None else _origin(message)
        if target is None:
            found.stayed += 1
        if target is None or dry_run:
            kept.append(message.delivery_tag)
        elif client.publish("", target, message.body, data=_living(message)) is not None:
            for tag in [*kept, message.delivery_tag]:
                client.settle(tag, requeue=True)
            raise AmqpNotFoundError(f"there is no queue {target!r}")
        else:
            client.settle(message.delivery_tag)
        if target is not None:
            found.targets[target] = found.targets.get(target, 0) + 1
    for tag in kept:
        client.settle(tag, requeue=True)
    return found


def _origin(message: Message) -> str | None:
    """Return the queue in which a message died last."""
    deaths = message.properties.headers.get("x-death")
    if isinstance(deaths, list) and deaths and isinstance(deaths[0], dict):
        queue = deaths[0].get("queue")
        return queue if isinstance(queue, str) else None
    return None


def _living(message: Message) -> bytes:
    """Return the properties of a message without an expiration, of which it possibly died."""
    return with_headers(message.properties.data, {}, expires=False)
