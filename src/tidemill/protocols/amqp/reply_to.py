"""Direct reply-to: a reply goes straight to the channel that asked, without a queue or a log.

A client consumes from the pseudo-queue ``amq.rabbitmq.reply-to`` and publishes with that name as
``reply_to``. The broker replaces it by a name that only this channel has, and routes what is
published to that name with the default exchange to the channel. Replies are not stored.

Source: https://www.rabbitmq.com/docs/direct-reply-to
"""

from __future__ import annotations

import secrets
from typing import Protocol

PSEUDO_QUEUE = "amq.rabbitmq.reply-to"
PREFIX = PSEUDO_QUEUE + "."


class ReplyTarget(Protocol):
    """A channel that waits for replies."""

    def deliver_reply(self, exchange: str, key: bytes, properties: bytes, body: bytes) -> bool:
        """Send a reply; return False if the client does not read, so that the reply is dropped."""


class Replies:
    """The channels of a server that wait for replies, by their names."""

    def __init__(self) -> None:
        self._targets: dict[str, ReplyTarget] = {}

    def open(self, target: ReplyTarget) -> str:
        """Return a new name for a channel. It can't be guessed."""
        name = PREFIX + secrets.token_urlsafe(18)
        self._targets[name] = target
        return name

    def close(self, name: str) -> None:
        """Forget a name."""
        self._targets.pop(name, None)

    def find(self, name: str) -> ReplyTarget | None:
        """Return the channel with this name, if it is still open."""
        return self._targets.get(name)
