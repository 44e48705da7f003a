"""Errors of webhooks that go out.

A runner tries again by itself after a ``WebhookError``. After a ``PermanentWebhookError`` it waits
for the user.
"""

from __future__ import annotations

from tidemill.errors import TidemillError


class WebhookError(TidemillError):
    """The runner of a webhook failed. It starts again from the committed position after a pause."""


class MissingTopicError(WebhookError):
    """The topic of a webhook does not exist, or not yet."""

    def __init__(self, topic: str) -> None:
        super().__init__(
            f"topic {topic} does not exist", hint=f"Create it: tidemill topic create {topic}"
        )


class PermanentWebhookError(WebhookError):
    """The runner failed, and would fail in the same way without a change by the user."""


class DefinitionError(PermanentWebhookError):
    """The definition of a webhook is invalid. The user corrects it."""


class FencedError(PermanentWebhookError):
    """Another worker delivers the same webhook, so this one must stop."""


class ExpressionError(DefinitionError):
    """A filter or a path in it is invalid."""


class MessageError(TidemillError):
    """A record can't become a message, for example because it is not JSON. It is dead-lettered."""
