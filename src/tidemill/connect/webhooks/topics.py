"""The topics of webhooks: names and configs. Must not know: a client."""

from __future__ import annotations

from collections.abc import Mapping

WEBHOOKS = "tidemill.webhooks"
"""Definitions, commands and statuses of all webhooks. Compacted, one partition."""
ATTEMPTS_CONFIG: Mapping[str, str] = {
    "cleanup.policy": "delete",
    "retention.ms": str(14 * 86_400_000),
    "segment.bytes": str(64 << 20),
}
"""A new worker reads the attempts of unfinished records. The longest schedule must fit."""
LETTER_BYTES = 17 << 20
"""The largest dead letter: the largest record of a connector, with the headers that are added."""
DEAD_LETTERS_CONFIG: Mapping[str, str] = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "max.message.bytes": str(LETTER_BYTES),
}


def attempts_topic(webhook: str) -> str:
    """Return the topic with each attempt of a webhook, and its events. It has one partition."""
    return f"tidemill.webhook.{webhook}.attempts"


def dead_letters_topic(webhook: str) -> str:
    """Return the topic with the records that a webhook could not deliver."""
    return f"tidemill.webhook.{webhook}.dead-letters"


def group_id(webhook: str) -> str:
    """Return the consumer group that has the position of a webhook."""
    return f"tidemill-webhook-{webhook}"
