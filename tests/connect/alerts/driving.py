"""Drives the state machine of alerts as the worker does: a change counts when it is stored."""

from __future__ import annotations

from typing import Any

from tidemill.connect.alerts.definition import AlertEntry, ReceiverEntry
from tidemill.connect.alerts.machine import Alerting, Changes, Due, Reading
from tidemill.connect.alerts.model import Ack, Silence, labels_of
from tidemill.connect.alerts.store import decode


def rule(name: str = "lag", **more: Any) -> AlertEntry:
    return AlertEntry.model_validate({"name": name, "metric": "lag", "above": 10, **more})


def receiver(name: str = "ops", **more: Any) -> ReceiverEntry:
    times = {"group_wait_s": 0, "group_interval_s": 60, "repeat_interval_s": 3600}
    given = {"name": name, "url": "http://ops.example.com", **times, **more}
    return ReceiverEntry.model_validate(given)


class Driver:
    """The machine, the topic that it is stored in, and receivers that count what they get.

    Attributes:
        topic: the encoded records, by key.
        sent: the notices that were delivered, in order.
        now_ms: the time.
    """

    def __init__(self, rules: list[AlertEntry], receivers: list[ReceiverEntry]) -> None:
        self._given = rules, receivers
        self.rules = {each.name: each for each in rules}
        self.machine = Alerting(rules, receivers)
        self.topic: dict[str, bytes] = {}
        self.sent: list[Due] = []
        self.now_ms = 1_000_000

    def store(self, changes: Changes) -> None:
        for key, value in changes.items():
            if value is None:
                self.topic.pop(key, None)
            else:
                self.topic[key] = value.encode()
            record = decode(key.encode(), self.topic.get(key))
            assert record is not None, key
            self.machine.replay(*record)

    def measure(
        self, values: dict[str, float], name: str = "lag", *, complete: bool = True
    ) -> None:
        """Evaluate a rule on the lag of groups."""
        one = self.rules[name]
        assert one.above is not None
        readings = [
            Reading(labels_of({"group": group}), value, value > one.above)
            for group, value in values.items()
        ]
        self.store(self.machine.evaluate(one, readings, self.now_ms, is_complete=complete))

    def wait(self, seconds: float) -> None:
        self.now_ms += int(1000 * seconds)

    def turn(self, *, answers: bool = True) -> list[Due]:
        """Plan, and deliver what is due. Return it."""
        self.store(self.machine.mute(self.now_ms))
        self.store(self.machine.plan(self.now_ms))
        due = self.machine.due(self.now_ms)
        for each in due:
            if answers:
                self.sent.append(each)
                self.store(self.machine.delivered(each.group, each.notice.id, self.now_ms))
            else:
                self.store(self.machine.failed(each.group, each.notice.id, "refused", self.now_ms))
        return due

    def said(self) -> list[list[str]]:
        """Plan and deliver, and return for each notice its groups with their states."""
        return [
            [f"{each.labels['group']} {each.state}" for each in due.notice.alerts]
            for due in self.turn()
        ]

    def silence(self, name: str, *matchers: str, seconds: float = 600) -> None:
        ends_ms = self.now_ms + int(1000 * seconds)
        self.store({f"silence/{name}": Silence(list(matchers), self.now_ms, ends_ms)})

    def ack(self, group: str) -> None:
        found = {a.labels["group"]: (key, a) for key, a in self.machine.alerts.items()}
        key, alert = found[group]
        self.store({f"ack/{key}": Ack(alert.active_ms, self.now_ms)})

    def crash(self) -> None:
        """Start again from the topic."""
        self.machine = Alerting(*self._given)
        for key, value in self.topic.items():
            record = decode(key.encode(), value)
            assert record is not None
            self.machine.replay(*record)
        self.store(self.machine.retire(self.now_ms))

    def states(self) -> dict[str, str]:
        return {each.labels["group"]: each.state for each in self.machine.alerts.values()}
