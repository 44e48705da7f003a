"""The state machine of alerts: what is pending, fires and is resolved, and who is sent what.

A command returns what is to be stored (``Changes``); the caller writes it, and then ``replay``s it.
A start replays the topic. So a crash at any point is a shorter topic, and what was decided is not
decided a second time. No I/O, no clock.

The rules of notices are Alertmanager's (https://prometheus.io/docs/alerting/latest/alertmanager/):
a group waits for more, is sent again when it changes, and is repeated. A silence holds notices
back. Here, what still fires when it ends is sent immediately, and the end of an alert that the
receiver knows to fire is sent even if a silence covers it.
"""

from __future__ import annotations

import hashlib
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

from tidemill.connect.alerts.definition import ALL_LABELS, AlertEntry, ReceiverEntry
from tidemill.connect.alerts.model import (
    MOST_LABELS,
    Ack,
    Alert,
    Group,
    Labels,
    Notice,
    Silence,
    Stored,
    fingerprint,
    labels_of,
)
from tidemill.connect.alerts.topics import ACK, ALERT, GROUP, SILENCE
from tidemill.connect.webhooks.template import parse_template

MOST_ALERTS = 1000
"""Alerts of one rule that are pending or fire. The condition is not followed for more."""
MOST_ACTIVE = 10_000
"""The same for all rules together."""
MOST_RESOLVED = 1000
LONGEST_TEXT = 2000
MOST_IN_NOTICE = 200
"""Alerts that a notice names; it has the number of the others."""
MOST_NOTICE_BYTES = 2 << 20
KEPT_MS = 24 * 3_600_000
"""How long what has ended is kept."""
VALUE_MS = 60_000
"""How often the value of an alert that stays as it is is stored."""
GIVE_UP_MS = 3_600_000
"""A notice that no attempt could deliver is replaced by one about the present state."""
FIRST_RETRY_MS, LONGEST_RETRY_MS = 1000, 300_000
NEVER = 1 << 62
_LARGEST = sys.float_info.max

S = TypeVar("S", bound=Stored)
Changes = dict[str, Stored | None]
"""Values by keys; None: it is deleted."""


class Reading(NamedTuple):
    """A measured value of a rule, for one set of labels."""

    labels: Labels
    value: float
    is_active: bool


@dataclass(frozen=True, slots=True)
class Due:
    """A notice that is to be sent now."""

    receiver: str
    group: str
    labels: Mapping[str, str]
    notice: Notice


class Alerting:
    """The state of all alerts, and what follows from it.

    Args:
        rules: the rules; alerts of others are resolved by ``retire``.
        receivers: where notices go.

    Attributes:
        alerts: by id, also those that were resolved a short time ago.
        limited: by rule, for how many sets of labels no alert was made at the last evaluation.
        given_up: notices that were replaced, since the start.
    """

    def __init__(self, rules: Sequence[AlertEntry], receivers: Sequence[ReceiverEntry]) -> None:
        self._rules = {each.name: each for each in rules}
        self._receivers = {each.name: each for each in receivers}
        self.alerts: dict[str, Alert] = {}
        self.groups: dict[str, Group] = {}
        self.silences: dict[str, Silence] = {}
        self.acks: dict[str, Ack] = {}
        self.limited: dict[str, int] = {}
        self.given_up = 0
        self._of_rule: dict[str, set[str]] = defaultdict(set)
        self._active = 0
        self._mute_at = self._plan_at = 0

    def replay(self, key: str, value: Stored | None) -> None:
        """Take over a record that is stored."""
        kind, _, name = key.partition("/")
        if kind == ALERT:
            self._replay_alert(name, value if isinstance(value, Alert) else None)
        elif kind == GROUP:
            _set(self.groups, name, value if isinstance(value, Group) else None)
        elif kind == SILENCE:
            _set(self.silences, name, value if isinstance(value, Silence) else None)
            self._mute_at = 0
        elif kind == ACK:
            _set(self.acks, name, value if isinstance(value, Ack) else None)
        self._plan_at = 0

    def _replay_alert(self, name: str, alert: Alert | None) -> None:
        before = self.alerts.pop(name, None)
        if before is not None:
            self._of_rule[before.rule].discard(name)
            self._active -= before.state != "resolved"
        if alert is not None:
            self.alerts[name] = alert
            self._of_rule[alert.rule].add(name)
            self._active += alert.state != "resolved"
        if before is None or alert is None or before.state != alert.state:
            self._mute_at = 0

    # --- conditions ---------------------------------------------------------------------------

    def evaluate(
        self, rule: AlertEntry, readings: Iterable[Reading], now_ms: int, *, is_complete: bool
    ) -> Changes:
        """Take over what a rule has measured.

        Args:
            is_complete: whether what is not in ``readings`` is not active. Otherwise it is unknown,
                and its alerts stay as they are.
        """
        changes: Changes = {}
        own = {**rule.labels, "alertname": rule.name}
        most = MOST_LABELS - len(own)  # so that none of its own is cut off
        limited, seen = 0, set[str]()
        count = sum(self.alerts[name].state != "resolved" for name in self._of_rule[rule.name])
        total = self._active
        for reading in readings:
            labels = labels_of({**dict(reading.labels[:most]), **own})
            name = fingerprint(labels)
            if name in seen:
                continue
            alert = self.alerts.get(name)
            seen.add(name)
            if not reading.is_active:
                changes |= self._end(name, alert, now_ms)
                continue
            if alert is None or alert.state == "resolved":
                if count >= MOST_ALERTS or total >= MOST_ACTIVE:
                    limited += 1
                    continue
                count, total = count + 1, total + 1
            changes |= self._hold(rule, name, alert, reading.value, labels, now_ms)
        if is_complete:
            for name in self._of_rule[rule.name] - seen:
                changes |= self._end(name, self.alerts[name], now_ms)
        self.limited[rule.name] = limited
        return changes

    def _hold(
        self,
        rule: AlertEntry,
        name: str,
        alert: Alert | None,
        value: float,
        labels: Labels,
        now_ms: int,
    ) -> Changes:
        """Return what changes because the condition holds."""
        if alert is None or alert.state == "resolved":
            alert = Alert(rule.name, "pending", dict(labels), value, now_ms)
        if alert.state == "pending" and now_ms - alert.active_ms >= 1000 * rule.for_s:
            made = replace(alert, state="firing", fired_ms=now_ms)
        elif self.alerts.get(name) is alert and now_ms - alert.updated_ms < VALUE_MS:
            return {}
        else:
            made = alert
        value = min(max(value, -_LARGEST), _LARGEST)  # JSON has no infinity
        texts = texts_of(rule, dict(labels), value)
        receivers = rule.receivers or list(self._receivers)
        made = replace(made, value=value, updated_ms=now_ms, annotations=texts, receivers=receivers)
        return {f"{ALERT}/{name}": made}

    def _end(self, name: str, alert: Alert | None, now_ms: int) -> Changes:
        """Return what changes because the condition does not hold."""
        if alert is None or alert.state == "resolved":
            return {}
        ended: Changes = {f"{ACK}/{name}": None} if name in self.acks else {}
        # A receiver that knows the occurrence before it to fire is to be sent its end.
        if alert.state == "pending" and not any(name in g.told for g in self.groups.values()):
            return {f"{ALERT}/{name}": None, **ended}
        made = replace(alert, state="resolved", resolved_ms=now_ms, updated_ms=now_ms)
        return {f"{ALERT}/{name}": replace(made, muted_by=[]), **ended}

    def retire(self, now_ms: int) -> Changes:
        """Return what changes because rules and receivers are gone from the settings."""
        changes: Changes = {}
        for name, alert in self.alerts.items():
            if alert.rule not in self._rules:
                changes |= self._end(name, alert, now_ms)
        for name, group in self.groups.items():
            if group.receiver not in self._receivers:
                changes[f"{GROUP}/{name}"] = None
        return changes

    # --- silences -----------------------------------------------------------------------------

    def mute(self, now_ms: int) -> Changes:
        """Return what silences change now: which alerts they hold back. Call it before ``plan``."""
        if now_ms < self._mute_at:
            return {}
        covering = {name: each for name, each in self.silences.items() if each.covers(now_ms)}
        changes: Changes = {}
        for name, alert in self.alerts.items():
            if alert.state == "resolved":
                continue
            by = sorted(key for key, each in covering.items() if each.matches(alert.labels))
            if by == alert.muted_by:
                continue
            ended = alert.is_firing and not by
            unmuted_ms = now_ms if ended else alert.unmuted_ms
            changes[f"{ALERT}/{name}"] = replace(alert, muted_by=by, unmuted_ms=unmuted_ms)
        if not changes:
            edges = (time for each in self.silences.values() for time in _edges(each, now_ms))
            self._mute_at = min(edges, default=NEVER)
        return changes

    # --- notices ------------------------------------------------------------------------------

    def plan(self, now_ms: int) -> Changes:
        """Return the notices that are to be sent now, and what groups know otherwise."""
        if now_ms < self._plan_at:
            return {}
        changes: Changes = {}
        next_ms = NEVER
        for receiver in self._receivers.values():
            for group, members in self._groups_of(receiver):
                planned, due_ms = self._plan_group(receiver, group, members, now_ms)
                if planned is not None:
                    changes[f"{GROUP}/{group.id}"] = planned if _is_needed(planned) else None
                next_ms = min(next_ms, due_ms)
        if not changes:
            self._plan_at = next_ms
        return changes

    def _groups_of(self, receiver: ReceiverEntry) -> Iterator[tuple[Group, dict[str, Alert]]]:
        """Yield each group of a receiver with its alerts, also a group whose alerts have ended."""
        members: dict[str, dict[str, Alert]] = defaultdict(dict)
        groups: dict[str, Group] = {}
        for name, alert in self.alerts.items():
            if alert.state == "pending" or receiver.name not in alert.receivers:
                continue
            by = group_labels(receiver, alert.labels)
            group = Group(receiver.name, by)
            groups.setdefault(group.id, group)
            members[group.id][name] = alert
        groups |= {key: each for key, each in self.groups.items() if each.receiver == receiver.name}
        for name, group in groups.items():
            yield group, members[name]

    def _plan_group(
        self, receiver: ReceiverEntry, group: Group, members: dict[str, Alert], now_ms: int
    ) -> tuple[Group | None, int]:
        """Return the group if it changes, and when it is to be looked at again."""
        if group.notice is not None:
            gives_up_ms = group.notice.planned_ms + GIVE_UP_MS
            if now_ms < gives_up_ms:
                return None, gives_up_ms
            self.given_up += 1
            return replace(group, notice=None), now_ms
        firing = {name: each for name, each in members.items() if each.is_firing}
        loud = {name: each for name, each in firing.items() if not each.muted_by}
        ended = [
            name
            for name, fired_ms in group.told.items()
            if name not in firing or firing[name].fired_ms != fired_ms
        ]
        told = {name: at for name, at in group.told.items() if name not in ended}
        new = [each for name, each in loud.items() if told.get(name) != each.fired_ms]
        due_ms = self._due(receiver, group, loud, new, bool(ended), now_ms)
        if due_ms > now_ms:
            if ended and not receiver.send_resolved:
                return replace(group, told=told), now_ms
            return None, due_ms
        told |= {name: each.fired_ms for name, each in loud.items()}
        copies = self._copies(receiver, loud, {name: group.told[name] for name in ended})
        if not copies:
            return replace(group, told=told), now_ms
        shown = list(_fitting(copies, receiver))
        number = hashlib.sha256(f"{group.id}/{now_ms}/{sorted(told.items())}".encode()).hexdigest()
        notice = Notice(
            f"alert_{number[:32]}", now_ms, shown, told, len(copies) - len(shown), next_ms=now_ms
        )
        return replace(group, notice=notice), now_ms

    def _due(
        self,
        receiver: ReceiverEntry,
        group: Group,
        loud: dict[str, Alert],
        new: list[Alert],
        has_ended: bool,
        now_ms: int,
    ) -> int:
        """Return when the next notice of a group is due."""
        if any(each.unmuted_ms > group.sent_ms for each in loud.values()):
            return now_ms
        due_ms = NEVER
        if new or (has_ended and receiver.send_resolved):
            if group.told:
                due_ms = group.sent_ms + int(1000 * self._interval_s(receiver))
            elif new:
                wait_s = 0.0 if receiver.keeps_state else receiver.group_wait_s
                due_ms = min(each.fired_ms for each in new) + int(1000 * wait_s)
        repeats = receiver.keeps_state or any(not self.is_acked(name) for name in loud)
        if loud and not new and repeats:
            due_ms = min(due_ms, group.sent_ms + int(1000 * receiver.repeat_s))
        return due_ms

    def _interval_s(self, receiver: ReceiverEntry) -> float:
        return 0.0 if receiver.keeps_state else receiver.group_interval_s

    def _copies(
        self, receiver: ReceiverEntry, loud: dict[str, Alert], ended: Mapping[str, int]
    ) -> list[Alert]:
        """Return copies of the alerts that fire, and of those that have ended."""
        copies = sorted(loud.values(), key=lambda each: (each.fired_ms, each.id))
        for name, fired_ms in ended.items() if receiver.send_resolved else ():
            alert = self.alerts.get(name)
            if alert is None or alert.is_firing:
                continue
            # It is possibly of another occurrence, which the receiver does not know.
            ended_ms = alert.resolved_ms or alert.active_ms
            made = replace(alert, state="resolved", fired_ms=fired_ms, resolved_ms=ended_ms)
            copies.append(replace(made, muted_by=[]))
        return copies

    def is_acked(self, name: str) -> bool:
        """Return whether the present occurrence of an alert is acknowledged."""
        alert, ack = self.alerts.get(name), self.acks.get(name)
        if alert is None or ack is None or alert.state == "resolved":
            return False
        return ack.active_ms == alert.active_ms

    def due(self, now_ms: int) -> list[Due]:
        """Return the notices whose next attempt is due."""
        return [
            Due(group.receiver, name, group.labels, group.notice)
            for name, group in self.groups.items()
            if group.notice is not None
            and group.notice.next_ms <= now_ms
            and group.receiver in self._receivers
        ]

    def delivered(self, group_id: str, notice_id: str, now_ms: int) -> Changes:
        """Return what changes because a receiver has a notice."""
        group = self.groups.get(group_id)
        if group is None or group.notice is None or group.notice.id != notice_id:
            return {}
        made = replace(group, told=group.notice.told, sent_ms=now_ms, notice=None)
        return {f"{GROUP}/{group_id}": made if _is_needed(made) else None}

    def failed(self, group_id: str, notice_id: str, error: str, now_ms: int) -> Changes:
        """Return what changes because an attempt has failed."""
        group = self.groups.get(group_id)
        if group is None or group.notice is None or group.notice.id != notice_id:
            return {}
        attempts = group.notice.attempts + 1
        pause_ms = min(FIRST_RETRY_MS << min(attempts - 1, 20), LONGEST_RETRY_MS)
        made = replace(
            group.notice, attempts=attempts, next_ms=now_ms + pause_ms, error=error[:500]
        )
        return {f"{GROUP}/{group_id}": replace(group, notice=made)}

    # --- what has ended -----------------------------------------------------------------------

    def clean(self, now_ms: int) -> Changes:
        """Return the deletion of what has ended long ago, and of acknowledgements of the past."""
        told = {name for group in self.groups.values() for name in group.told}
        resolved = [
            (each.resolved_ms, name)
            for name, each in self.alerts.items()
            if each.state == "resolved" and name not in told
        ]
        resolved.sort()
        excess = max(len(resolved) - MOST_RESOLVED, 0)
        changes: Changes = {
            f"{ALERT}/{name}": None
            for number, (at_ms, name) in enumerate(resolved)
            if number < excess or at_ms + KEPT_MS < now_ms
        }
        for name, silence in self.silences.items():
            if silence.ends_ms + KEPT_MS < now_ms:
                changes[f"{SILENCE}/{name}"] = None
        for name in self.acks:
            if not self.is_acked(name):
                changes[f"{ACK}/{name}"] = None
        return changes


def group_labels(receiver: ReceiverEntry, labels: Mapping[str, str]) -> dict[str, str]:
    """Return the labels that name the group of an alert at a receiver."""
    if receiver.keeps_state:
        return {"alertname": labels["alertname"]}
    if ALL_LABELS in receiver.group_by:
        return dict(labels)
    return {name: labels[name] for name in receiver.group_by if name in labels}


def texts_of(rule: AlertEntry, labels: Mapping[str, str], value: float) -> dict[str, str]:
    """Return the texts of a rule for one of its alerts."""
    texts = {**rule.annotations, **({"summary": rule.summary} if rule.summary else {})}
    scope = _Texts(labels, value)
    made = {name: parse_template(text)(scope) for name, text in texts.items()}
    return {name: str("" if text is None else text)[:LONGEST_TEXT] for name, text in made.items()}


class _Texts:
    """The names that texts of a rule can use (``expression.Scope``)."""

    def __init__(self, labels: Mapping[str, str], value: float) -> None:
        self._labels, self._value = labels, value

    def root(self, name: str) -> object:
        """Return a label, or the value."""
        if name == "value":
            return f"{self._value:.6g}"
        return self._labels.get(name, "")


def _fitting(copies: list[Alert], receiver: ReceiverEntry) -> Iterator[Alert]:
    """Yield as many alerts as a notice can have."""
    most = MOST_ALERTS if receiver.keeps_state else MOST_IN_NOTICE
    size = 0
    for alert in copies[:most]:
        size += len(alert.encode())
        if size > MOST_NOTICE_BYTES:
            return
        yield alert


def _is_needed(group: Group) -> bool:
    return bool(group.told or group.notice)


def _edges(silence: Silence, now_ms: int) -> Iterator[int]:
    yield from (time for time in (silence.starts_ms, silence.ends_ms) if time > now_ms)


def _set(table: dict[str, S], name: str, value: S | None) -> None:
    if value is None:
        table.pop(name, None)
    else:
        table[name] = value
