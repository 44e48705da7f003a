"""Write what a run has to record: attempts, and dead letters before the attempt that says so.

Must not know: HTTP, or when to retry.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

import structlog

from tidemill.connect.webhooks.attempts import Headers, Recorder, Written, encode_attempt
from tidemill.connect.webhooks.definition import Webhook
from tidemill.connect.webhooks.endpoint import Decision
from tidemill.connect.webhooks.errors import WebhookError
from tidemill.connect.webhooks.lanes import Delivery, Event
from tidemill.connect.webhooks.sender import Answer
from tidemill.connect.webhooks.topics import attempts_topic

_LONGEST_REASON = 500

log = structlog.get_logger("tidemill.webhooks")


class Outbox:
    """The records that one run writes. Use it on the event loop.

    Args:
        written: called with the events of each attempt that is on disk, and with whether they are
            finished.
        failed: called when a record can't be written.

    Attributes:
        topic_id: identifies the topic of the records, once it is known.
        unwritten: records that are not on disk yet.
        end: the end of the topic of attempts, as far as it is known.
    """

    def __init__(
        self,
        webhook: Webhook,
        recorder: Recorder,
        written: Callable[[list[Event], bool], None],
        failed: Callable[[WebhookError], None],
    ) -> None:
        self._webhook = webhook
        self._recorder = recorder
        self._written = written
        self._failed = failed
        self._attempts = attempts_topic(webhook.name)
        self._settled = asyncio.Event()
        self.topic_id = ""
        self.unwritten = 0
        self.end = 0

    def attempt(
        self, delivery: Delivery, message_id: str, answer: Answer, decision: Decision, at_ms: int
    ) -> None:
        """Record an attempt. What it finishes is finished when the record is on disk."""
        value = encode_attempt(
            delivery.events,
            message_id,
            delivery.attempts,
            at_ms,
            answer,
            decision.outcome,
            decision.due_ms,
            delivery.events[0].job,
            # A delivered one has no step for its last attempt.
            delivery.steps if decision.outcome == "retry" else None,
            self.topic_id,
        )

        def written(offset: int) -> None:
            self.end = max(self.end, offset + 1)
            self._written(delivery.events, decision.outcome in ("delivered", "dead"))

        self._write(self._attempts, message_id.encode(), value, written)

    def letters(self, delivery: Delivery, message_id: str, answer: Answer, at_ms: int) -> None:
        """Write dead letters, and the attempt when they are on disk.

        Args:
            answer: to the last attempt, or with the reason as its error.
        """
        reason = answer.error or f"status {answer.status}"
        log.warning(
            "webhook.dead_letter",
            webhook=self._webhook.name,
            id=message_id,
            attempts=delivery.attempts,
            reason=reason,
        )
        left = len(delivery.events)

        def written(offset: int) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                self.attempt(delivery, message_id, answer, Decision("dead"), at_ms)

        for event in delivery.events:
            headers = self._letter_headers(event, delivery.attempts, reason)
            topic = self._webhook.dead_letters_topic
            self._write(topic, event.key, event.value, written, headers)

    async def settle(self, timeout_s: float) -> None:
        """Wait until everything is on disk, at most so long."""
        self._settled.clear()
        if self.unwritten:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._settled.wait(), timeout_s)

    def _write(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        written: Written,
        headers: Headers | None = None,
    ) -> None:
        def done(offset: int) -> None:
            self.unwritten -= 1
            written(offset)
            if self.unwritten == 0:
                self._settled.set()

        self.unwritten += 1
        self._recorder.write(topic, key, value, done, self._failed, headers)

    def _letter_headers(self, event: Event, attempts: int, reason: str) -> Headers:
        added = {
            "error.reason": reason[:_LONGEST_REASON],
            "source.topic": self._webhook.topic,
            "source.partition": str(event.partition),
            "source.offset": str(event.offset),
            "source.timestamp": str(event.timestamp_ms),
            "webhook": self._webhook.name,
            "webhook-id": event.id,
            "attempts": str(attempts),
        }
        return [*event.headers, *((name, text.encode()) for name, text in added.items())]
