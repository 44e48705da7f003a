"""Keep one webhook delivered: runs one after the other, with pauses after failures; and tests.

Must not know: the topic that orders come from.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Collection
from datetime import UTC, datetime
from typing import Any

import orjson
import structlog

from tidemill.confluent.clients import Kafka
from tidemill.connect.base.board import BoardWriter
from tidemill.connect.base.manager import Commands
from tidemill.connect.base.runs import Phase, Runs
from tidemill.connect.base.secrets import redact
from tidemill.connect.webhooks.attempts import Recorder, Written, encode_attempt, encode_event
from tidemill.connect.webhooks.definition import Webhook
from tidemill.connect.webhooks.errors import MissingTopicError, PermanentWebhookError, WebhookError
from tidemill.connect.webhooks.messages import Message, Messages
from tidemill.connect.webhooks.redelivery import Job
from tidemill.connect.webhooks.retries import judge
from tidemill.connect.webhooks.runner import Run, now_ms
from tidemill.connect.webhooks.sender import Answer, Sender
from tidemill.connect.webhooks.topics import ATTEMPTS_CONFIG, attempts_topic
from tidemill.errors import TidemillError

log = structlog.get_logger("tidemill.webhooks")


class Keeper:
    """Delivers a webhook until ``stop``. Create and use it on the event loop.

    Attributes:
        webhook: its definition.
        finished: commands that were carried out, until the manager takes them.
        to_disable: why the endpoint is to be disabled, until the manager stores it.
    """

    def __init__(
        self, webhook: Webhook, kafka: Kafka, recorder: Recorder, commands: Commands
    ) -> None:
        self.webhook = webhook
        self._kafka = kafka
        self._recorder = recorder
        self._commands = commands
        self._resumed = self._id("pause")
        self._changed = asyncio.Event()
        self._stopping = False
        self._run: Run | None = None
        self._runs = Runs(PermanentWebhookError, WebhookError)
        self._was_missing = False
        self._disabled = ""
        self._tests: dict[str, asyncio.Task[None]] = {}
        self.finished: deque[str] = deque()
        self.to_disable = ""

    # --- orders -------------------------------------------------------------------------------

    def order(self, commands: Commands) -> None:
        """Take over the present commands."""
        self._commands = commands
        if self._id("pause") != self._resumed:
            self._disabled = ""
        if self._run is not None:
            self._redeliver(self._run)
            if self._must_rest():
                self._run.stop()
        for name in commands:
            if name.startswith("test/") and name not in self._tests:
                self._tests[name] = asyncio.create_task(self._test(name))
        for job in [] if self._run is None else self._run.finished_jobs():
            self.finished.append(f"redeliver/{job.id}")
            assert self._run is not None
            self._run.forget(job.id)
        self._changed.set()

    def stop(self) -> None:
        """Ask it to end."""
        self._stopping = True
        if self._run is not None:
            self._run.stop()
        self._changed.set()

    def take_finished(self, writer: BoardWriter) -> Collection[str]:
        """Store what was decided, and return the commands that were carried out since."""
        if self.to_disable:
            writer.command(self.webhook.name, "disable", reason=self.to_disable)
            self.to_disable = ""
        finished = list(self.finished)
        self.finished.clear()
        return finished

    def _id(self, command: str) -> str:
        return str(self._commands.get(command, {}).get("id", ""))

    def _must_rest(self) -> Phase | None:
        """Return why nothing is to be delivered now; None: it is."""
        if self._commands.get("pause", {}).get("paused"):
            return "paused"
        return "disabled" if self._disabled or "disable" in self._commands else None

    def _redeliver(self, run: Run) -> None:
        for name, wanted in self._commands.items():
            kind, _, number = name.partition("/")
            if kind == "redeliver" and name not in self.finished:
                run.redeliver(Job(self._kafka, self.webhook, number, wanted))

    # --- runs ---------------------------------------------------------------------------------

    async def run(self) -> None:
        """Deliver until ``stop``."""
        while not self._stopping:
            rest = self._must_rest()
            if rest is None:
                await self._attempt()
                continue
            self._runs.rest(rest)
            await self._wait_for_order()
        self._runs.phase = "stopped"
        await asyncio.gather(*self._tests.values())

    async def _attempt(self) -> None:
        self._resumed = self._id("pause")
        self._runs.begin()
        run = Run(self.webhook, self._kafka, self._recorder, from_beginning=self._was_missing)
        self._redeliver(run)
        self._run = run
        try:
            await run.run(self._is_running)
        except Exception as error:
            self._was_missing = self._was_missing or isinstance(error, MissingTopicError)
            await self._rest_after(error)
        else:
            if run.disabled:
                self._disable(run.disabled)

    def _is_running(self) -> None:
        self._runs.work()
        log.info("webhook.running", webhook=self.webhook.name, topic=self.webhook.topic)

    def _disable(self, reason: str) -> None:
        self._disabled = self.to_disable = reason
        log.error("webhook.disabled", webhook=self.webhook.name, reason=reason)
        self._write(b"event", encode_event("disabled", reason, now_ms()))

    async def _rest_after(self, error: Exception) -> None:
        pause = self._runs.fail(error)
        if pause is None:
            log.error("webhook.failed", webhook=self.webhook.name, **self._runs.said())
        else:
            log.warning("webhook.failed", webhook=self.webhook.name, **self._runs.said())
        await self._wait_for_order(pause)

    async def _wait_for_order(self, timeout_s: float | None = None) -> None:
        """Wait for a resume, a pause or the end, or for so long."""
        before = self._id("pause"), self._must_rest()

        async def changed() -> None:
            while not self._stopping and (self._id("pause"), self._must_rest()) == before:
                self._changed.clear()
                await self._changed.wait()

        try:
            await asyncio.wait_for(changed(), timeout_s)
        except TimeoutError:
            return

    # --- tests --------------------------------------------------------------------------------

    async def _test(self, name: str) -> None:
        """Send a test event, whatever state the webhook is in, and record the attempt."""
        number = name.removeprefix("test/")
        at = now_ms()
        when = datetime.fromtimestamp(at / 1000, UTC).isoformat()
        body = {"type": "webhook.test", "timestamp": when, "data": {"webhook": self.webhook.name}}
        message = Message(f"test_{number}", orjson.dumps(body))
        try:
            topic = attempts_topic(self.webhook.name)
            topics = {topic: (1, ATTEMPTS_CONFIG)}
            await asyncio.to_thread(self._kafka.create_topics, "tidemill-webhooks", topics)
            headers = Messages(self.webhook, "test").headers(message, at // 1000)
            sender = Sender(self.webhook)
            try:
                answer = await sender.post(headers, message.body)
            finally:
                await sender.close()
        except TidemillError as error:
            answer = Answer(None, redact(str(error)))
        outcome = judge(answer.status).value
        value = encode_attempt([], message.id, 1, at, answer, outcome, job=number)
        self._write(message.id.encode(), value, lambda offset: self.finished.append(name))

    def _write(self, key: bytes, value: bytes, written: Written = lambda offset: None) -> None:
        def failed(error: WebhookError) -> None:
            log.error("webhook.not_recorded", webhook=self.webhook.name, error=str(error))

        self._recorder.write(attempts_topic(self.webhook.name), key, value, written, failed)

    # --- status -------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """Return the present status, as JSON values. Any thread can call it."""
        reason = str(self._commands.get("disable", {}).get("reason", ""))
        figures = {} if self._run is None else self._run.figures
        return {**self._runs.status(), "disabled": self._disabled or reason, **figures}
