"""The worker of alerts: reads metrics and topics, stores what the machine decides, sends notices.

Each run reads the state from the topic, so a run after a failure is like one after a restart. Must
not know: what a rule or a silence means.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import structlog

from tidemill import system
from tidemill.confluent.clients import Kafka
from tidemill.confluent.metrics import MetricsPublisher
from tidemill.connect.alerts import metrics
from tidemill.connect.alerts.conditions import MOST_SERIES, MetricCondition, TopicCondition
from tidemill.connect.alerts.definition import AlertEntry, AlertsSection, ReceiverEntry
from tidemill.connect.alerts.errors import AlertError, PermanentAlertError
from tidemill.connect.alerts.machine import Alerting, Changes, Due
from tidemill.connect.alerts.model import Alert, Notice, OrderedTest, Position, WorkerState
from tidemill.connect.alerts.sending import Outgoing
from tidemill.connect.alerts.sources import MetricPages, Scraped, TopicRecords, WorkerMetrics
from tidemill.connect.alerts.store import AlertTopic
from tidemill.connect.alerts.topics import ALERT, POSITION, TEST, WORKER
from tidemill.connect.base.errors import ProducerFencedError
from tidemill.connect.base.runs import Runs
from tidemill.errors import TidemillError
from tidemill.metrics.registry import Family, Registry

TURN_S = 0.1
READ_S = 0.5
"""How long records of topics are read before other work is done."""
STATE_MS = 10_000
"""How often the worker says that it works."""
STOP_S = 8.0
MOST_SENDING = 32
OLD_TEST_MS = 300_000

log = structlog.get_logger("tidemill.alerts")


def now_ms() -> int:
    """Return the time in milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


@dataclass(frozen=True)
class Config:
    """The settings of alerts, with their rules and receivers.

    Attributes:
        known: names of metrics that exist, also while no process has them.
    """

    settings: AlertsSection
    rules: Sequence[AlertEntry]
    receivers: Sequence[ReceiverEntry]
    known: Collection[str] = ()


class Worker:
    """Evaluates rules until it is stopped."""

    def __init__(self, kafka: Kafka, config: Config) -> None:
        self._kafka, self._config = kafka, config
        self._registry = Registry()
        self._current: Run | None = None
        self._registry.collect(self._collect)

    def run(self, stop: threading.Event) -> None:
        """Work until ``stop`` is set."""
        with (
            MetricsPublisher(self._kafka, "alerts", self._registry),
            asyncio.Runner(loop_factory=system.new_event_loop) as runner,
        ):
            runner.run(self._run(stop))

    async def _run(self, stop: threading.Event) -> None:
        runs = Runs(PermanentAlertError, AlertError)
        while not stop.is_set():
            runs.begin()
            self._current = Run(self._kafka, self._config, self._registry, stop)
            try:
                await self._current.run(runs.work)
            except ProducerFencedError as error:
                log.error("alerts.fenced", error=str(error), hint="One worker evaluates alerts.")
                self._current, pause = None, None
            except Exception as error:
                pause = runs.fail(error)
                if pause is None:
                    log.error("alerts.failed", **runs.said())
                else:
                    log.warning("alerts.failed", **runs.said())
            else:
                return
            await asyncio.to_thread(stop.wait, pause)

    def _collect(self) -> Iterator[Family]:
        """Yield what the present run knows. The publisher's thread calls this."""
        run = self._current
        if run is not None:
            yield from run.families


class Run:
    """The work from a start until a failure or the end. It belongs to one event loop."""

    def __init__(
        self, kafka: Kafka, config: Config, registry: Registry, stop: threading.Event
    ) -> None:
        self._kafka, self._config = kafka, config
        settings, rules, receivers = config.settings, config.rules, config.receivers
        self._registry = registry
        self._stop = stop
        self._machine = Alerting(rules, receivers)
        self._on_metrics = {each.name: MetricCondition(each) for each in rules if each.metric}
        self._on_topics = {each.name: TopicCondition(each) for each in rules if each.topic}
        self._wanted = {each.metric for each in rules}
        self._outgoing = {each.name: Outgoing(each, settings.external_url) for each in receivers}
        self._sending: dict[str, asyncio.Task[None]] = {}
        self._results: deque[tuple[str, str, str]] = deque()
        self._positions: dict[str, Position] = {}
        self._tests: dict[str, OrderedTest] = {}
        self._old_tests: dict[str, OrderedTest] = {}
        self._said: dict[str, str] = {}
        self._state: WorkerState | None = None
        self._rule_states: dict[str, dict[str, Any]] = {}
        self.families: list[Family] = []

    def _check_receivers(self) -> None:
        """Report receivers that no notice can reach, before an alert fires."""
        for name, outgoing in self._outgoing.items():
            try:
                outgoing.check()
            except TidemillError as error:
                log.warning(
                    "alert.receiver_invalid", receiver=name, error=str(error), hint=error.hint
                )

    async def run(self, is_running: Callable[[], None]) -> None:
        """Work until the stop.

        Raises:
            ProducerFencedError: another worker has started.
            TidemillError: the brokers do not answer, for example.
        """
        self._topic = await asyncio.to_thread(AlertTopic, self._kafka)
        self._pages = MetricPages(self._config.settings.urls())
        self._workers: WorkerMetrics | None = None
        self._records: TopicRecords | None = None
        try:
            await asyncio.to_thread(self._open)
            is_running()
            log.info(
                "alerts.running", rules=len(self._config.rules), alerts=len(self._machine.alerts)
            )
            self._check_receivers()
            await self._store(self._machine.retire(now_ms()))
            while not self._stop.is_set():
                due = time.monotonic() + self._config.settings.interval_ms / 1000
                await self._evaluate()
                while await self._turn() and time.monotonic() < due:
                    pass
        finally:
            await self._close()

    def _open(self) -> None:
        """Read the state, and what the rules need of the past."""
        for key, value in self._topic.read():
            self._apply(key, value)
        if self._on_metrics:
            self._workers = WorkerMetrics(self._kafka)
            self._workers.catch_up()
        rules = {each.name: each for each in self._config.rules}
        conditions = {name: (rules[name].topic, each) for name, each in self._on_topics.items()}
        for name, (_, condition) in conditions.items():
            of_rule = (each for each in self._machine.alerts.values() if each.rule == name)
            condition.know(each.labels for each in of_rule)
        stored = {name: each.offsets for name, each in self._positions.items()}
        self._records = TopicRecords(self._kafka, conditions, stored)
        self._records.catch_up(lambda: not self._stop.is_set())

    def _apply(self, key: str, value: Any) -> None:
        kind, _, name = key.partition("/")
        if kind == POSITION:
            self._positions[name] = value or Position({})
        elif kind == TEST:
            self._tests.pop(name, None)
            self._old_tests.pop(name, None)
            if value is not None:
                is_new = value.error is None and value.at_ms > now_ms() - OLD_TEST_MS
                (self._tests if is_new else self._old_tests)[name] = value
        else:
            self._machine.replay(key, value)

    async def _close(self) -> None:
        """Wait for notices under way, and close all clients."""
        if self._sending:
            await asyncio.wait(self._sending.values(), timeout=STOP_S)
        for task in self._sending.values():
            task.cancel()
        try:
            if self._stop.is_set():
                await self._store(self._settled())
        except TidemillError as error:  # the notices are sent again, with the same ids
            log.warning("alerts.failed", error=str(error), hint=error.hint, failures=1)
        finally:
            for each in self._outgoing.values():
                await each.close()
            await self._pages.close()
            for client in (self._workers, self._records, self._topic):
                if client is not None:
                    await asyncio.to_thread(client.close)

    async def _store(self, changes: Changes) -> None:
        """Write what was decided, and then let it count."""
        if not changes:
            return
        await asyncio.to_thread(self._topic.write, changes)
        for key, value in changes.items():
            if isinstance(value, Alert):
                self._report(key, value)
            self._apply(key, value)

    def _report(self, key: str, alert: Alert) -> None:
        before = self._machine.alerts.get(key.removeprefix(f"{ALERT}/"))
        if alert.state == "pending" or (before is not None and before.state == alert.state):
            return
        about = {"alert": alert.rule, "id": alert.id, "value": alert.value, "labels": alert.labels}
        if alert.is_firing:
            log.warning("alert.firing", **about)
        else:
            log.info("alert.resolved", **about)

    # --- evaluation ---------------------------------------------------------------------------

    async def _evaluate(self) -> None:
        """Evaluate all rules once."""
        began = time.perf_counter()
        scraped = Scraped()
        if self._on_metrics:
            scraped = await self._pages.scrape(self._wanted)
            assert self._workers is not None
            scraped.add(await asyncio.to_thread(self._workers.page), self._wanted)
            for url in self._config.settings.urls():
                if self._is_new(url, problem := scraped.problems.get(url, "")):
                    log.warning("alert.scrape_failed", url=url, error=problem)
        at_ms = now_ms()
        changes: Changes = {}
        for rule in self._config.rules:
            changes |= self._evaluate_rule(rule, scraped, at_ms)
        changes |= self._machine.clean(at_ms)
        for name, test in self._old_tests.items():
            if test.at_ms < at_ms - OLD_TEST_MS:  # the command that waited for it is gone
                changes[f"{TEST}/{name}"] = None
        changes |= self._heartbeat(at_ms)
        await self._store(changes)
        self.families = self._families(at_ms)
        seconds = time.perf_counter() - began
        self._registry.histogram(metrics.EVALUATION_SECONDS).observe(seconds)

    def _evaluate_rule(self, rule: AlertEntry, scraped: Scraped, at_ms: int) -> Changes:
        changes: Changes = {}
        problem, hint = "", ""
        if rule.metric:
            series = scraped.series.get(rule.metric, [])
            is_complete = not scraped.problems
            readings, is_complete = self._on_metrics[rule.name].read(
                series, at_ms, is_complete=is_complete
            )
            if not series or scraped.problems:
                problem, hint = self._unknown(rule.metric, scraped)
        else:
            assert self._records is not None
            readings, is_complete = self._on_topics[rule.name].read(at_ms)
            problem = self._records.problem_of(rule.topic)
            hint = "It counts as empty." if problem else ""
            if self._on_topics[rule.name].is_events:
                position = Position(self._records.positions(rule.topic))
                if position != self._positions.get(rule.name, Position({})):
                    changes[f"{POSITION}/{rule.name}"] = position
        changes |= self._machine.evaluate(rule, readings, at_ms, is_complete=is_complete)
        condition = self._on_metrics.get(rule.name) or self._on_topics[rule.name]
        limited = self._machine.limited[rule.name]
        if limited or condition.is_full:
            what = f"{limited} sets of labels have no alert"
            problem = what if limited else f"only {MOST_SERIES:,} sets of labels are followed"
            hint = "Use by, or a filter."
        if self._is_new(rule.name, problem):
            log.warning("alert.problem", alert=rule.name, problem=problem, hint=hint)
        self._rule_states[rule.name] = {
            "source": rule.metric or rule.topic,
            "measure": rule.measured,
            "series": len(readings),
            "error": problem,
            "hint": hint,
        }
        return changes

    def _unknown(self, name: str, scraped: Scraped) -> tuple[str, str]:
        """Return what is wrong with the name of a metric that no process has now."""
        if scraped.problems:
            return "not all metrics can be read", "; ".join(sorted(scraped.problems.values()))[:500]
        if name in self._config.known or name in scraped.names:
            return "", ""
        close = get_close_matches(name, [*self._config.known, *scraped.names], 1, 0.7)
        return (
            f"no process has a metric {name}",
            f"Did you mean {close[0]}?" if close else "docs/metrics.md has all names.",
        )

    def _is_new(self, about: str, problem: str) -> bool:
        """Return whether a rule or a URL has a problem that was not logged yet."""
        is_new = self._said.get(about, "") != problem
        self._said[about] = problem
        return is_new and bool(problem)

    def _heartbeat(self, at_ms: int) -> Changes:
        """Return the state of the worker, if it has changed or is old."""
        waiting: dict[str, list[Notice]] = {each.name: [] for each in self._config.receivers}
        for group in self._machine.groups.values():
            if group.notice is not None and group.receiver in waiting:
                waiting[group.receiver].append(group.notice)
        receivers = {
            each.name: {
                "kind": each.kind,
                "waiting": len(waiting[each.name]),
                "error": next((n.error for n in waiting[each.name] if n.error), ""),
            }
            for each in self._config.receivers
        }
        made = WorkerState(
            at_ms,
            f"{socket.gethostname()}:{os.getpid()}",
            self._config.settings.interval_ms,
            dict(self._rule_states),
            receivers,
        )
        last = self._state
        is_same = last is not None and (last.rules, last.receivers) == (made.rules, made.receivers)
        if last is not None and is_same and at_ms - last.updated_ms < STATE_MS:
            return {}
        self._state = made
        return {f"{WORKER}/state": made}

    def _families(self, at_ms: int) -> list[Family]:
        counts: dict[tuple[str, str], int] = {}
        for rule in self._config.rules:
            counts |= {(rule.name, state): 0 for state in ("pending", "firing")}
        for alert in self._machine.alerts.values():
            if (key := (alert.rule, alert.state)) in counts:
                counts[key] += 1
        waiting = sum(each.notice is not None for each in self._machine.groups.values())
        silences = sum(each.covers(at_ms) for each in self._machine.silences.values())
        problems = [((name,), int(bool(each["error"]))) for name, each in self._rule_states.items()]
        return [
            (metrics.ALERTS, list(counts.items())),
            (metrics.PROBLEMS, problems),
            (metrics.WAITING, [((), waiting)]),
            (metrics.SILENCES, [((), silences)]),
        ]

    # --- notices ------------------------------------------------------------------------------

    async def _turn(self) -> bool:
        """Follow orders, and begin to send what is due. Return whether to continue."""
        orders = await asyncio.to_thread(self._collect)
        for key, value in orders:
            self._apply(key, value)
        await self._store(self._settled())
        await self._store(self._machine.mute(now_ms()))
        given_up = self._machine.given_up
        await self._store(self._machine.plan(now_ms()))
        if self._machine.given_up > given_up:
            replaced = self._machine.given_up - given_up
            self._registry.counter(metrics.REPLACED).value += replaced
            log.error("alert.notice_replaced", notices=replaced)
        for due in self._machine.due(now_ms()):
            if due.group not in self._sending and len(self._sending) < MOST_SENDING:
                self._begin(due.group, due)
        for name, test in list(self._tests.items()):
            if f"{TEST}/{name}" not in self._sending:
                self._begin(f"{TEST}/{name}", _test_notice(name, test))
        return not self._stop.is_set()

    def _collect(self) -> list[Any]:
        assert self._records is not None
        orders = self._topic.orders(TURN_S)
        until = time.monotonic() + READ_S
        while self._records.poll() and time.monotonic() < until:
            pass
        return orders

    def _begin(self, key: str, due: Due) -> None:
        self._sending[key] = asyncio.create_task(self._send(key, due), name=f"notice {key}")

    async def _send(self, key: str, due: Due) -> None:
        outgoing = self._outgoing.get(due.receiver)
        if outgoing is None:
            error = f"there is no receiver {due.receiver}"
        else:
            try:
                error = await outgoing.send(due)
            except Exception as failed:  # a bug: the notice is due again, as after any failure
                error = f"{type(failed).__name__}: {failed}"
        about = {"receiver": due.receiver, "notice": due.notice.id}
        if error:
            log.warning(
                "alert.notice_failed", **about, attempt=due.notice.attempts + 1, error=error
            )
        else:
            log.info("alert.notice_sent", **about, alerts=len(due.notice.alerts))
        if outgoing is not None:
            outcome = "failed" if error else "delivered"
            self._registry.counter(metrics.NOTICES, due.receiver, outcome).value += 1
        self._results.append((key, due.notice.id, error))

    def _settled(self) -> Changes:
        """Return what follows from the attempts that have ended."""
        changes: Changes = {}
        while self._results:
            key, notice, error = self._results.popleft()
            self._sending.pop(key, None)
            kind, _, name = key.partition("/")
            if kind == TEST and name:
                test = self._tests.pop(name, None)
                if test is not None:  # else the command does not wait any more
                    changes[key] = OrderedTest(test.receiver, test.at_ms, error)
            elif error:
                changes |= self._machine.failed(key, notice, error, now_ms())
            else:
                changes |= self._machine.delivered(key, notice, now_ms())
        return changes


def _test_notice(name: str, test: OrderedTest) -> Due:
    """Return a notice about an alert that does not exist."""
    labels = {"alertname": "TestAlert", "severity": "none"}
    texts = {"summary": "This is a test of tidemill alert test. Nothing is wrong."}
    at_ms = test.at_ms
    alert = Alert("TestAlert", "firing", labels, 1.0, at_ms, at_ms, annotations=texts)
    notice = Notice(f"test_{name}", at_ms, [alert], {})
    return Due(test.receiver, f"{TEST}/{name}", {"alertname": "TestAlert"}, notice)
