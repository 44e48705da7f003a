"""Deliver the webhooks that ``tidemill.webhooks`` defines. Must not know: HTTP."""

from __future__ import annotations

import functools
from collections.abc import Collection

from tidemill.confluent.clients import Kafka
from tidemill.connect.base.manager import Commands, Manager
from tidemill.connect.webhooks.attempts import Recorder
from tidemill.connect.webhooks.definition import Webhook
from tidemill.connect.webhooks.keeper import Keeper
from tidemill.connect.webhooks.metrics import add_webhooks
from tidemill.connect.webhooks.topics import WEBHOOKS


def manager(kafka: Kafka, only: Collection[str] | None = None) -> Manager[Webhook]:
    """Return what delivers webhooks until it is stopped.

    Args:
        only: names of the webhooks; None: all that are ``managed``.

    Raises:
        UnreachableError: no broker answers.
    """

    @functools.cache
    def recorder() -> Recorder:
        return Recorder(kafka)  # all share it; it belongs to the event loop

    def keep(webhook: Webhook, commands: Commands) -> Keeper:
        return Keeper(webhook, kafka, recorder(), commands)

    return Manager(kafka, WEBHOOKS, "webhook", Webhook.decode, keep, only, add_webhooks)
