"""The alerts as people see them, and what people order: for commands and for pages.

Must not know: the command line, HTML, the worker.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from tidemill.confluent.clients import Kafka
from tidemill.connect.alerts.errors import MatcherError, NoAlertError
from tidemill.connect.alerts.model import (
    Ack,
    Alert,
    Group,
    Silence,
    WorkerState,
    parse_matchers,
)
from tidemill.connect.alerts.store import read_alerts, write_orders
from tidemill.connect.alerts.topics import ACK, ALERT, SILENCE, WORKER

STALE_MS = 30_000
"""A worker that has said nothing for so long, and an interval, is gone."""
LONGEST_TEXT = 1000
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_LONGEST_S = 366 * 86_400
_ORDER = {"firing": 0, "pending": 1, "resolved": 2}


class Desk:
    """The state of all alerts at one moment, as JSON values.

    Raises:
        UnreachableError: no broker answers.
    """

    def __init__(self, kafka: Kafka) -> None:
        self._kafka = kafka
        self.stored = read_alerts(kafka)
        self._now_ms = _now_ms()
        self._told: dict[tuple[str, int], list[str]] = {}
        for group in (each for each in self.stored.values() if isinstance(each, Group)):
            for occurrence in group.told.items():
                self._told.setdefault(occurrence, []).append(group.receiver)

    # --- reading ------------------------------------------------------------------------------

    def alerts(self) -> list[dict[str, Any]]:
        """Return all alerts: those that fire first, then those that are pending."""
        found = [
            self.alert(_id(key), each)
            for key, each in self.stored.items()
            if isinstance(each, Alert)
        ]
        return sorted(found, key=lambda each: (_ORDER[each["state"]], each["alert"], each["id"]))

    def alert(self, id_: str, alert: Alert) -> dict[str, Any]:
        """Return an alert, with what receivers know of it."""
        acked = self.stored.get(f"{ACK}/{id_}")
        is_acked = isinstance(acked, Ack) and acked.active_ms == alert.active_ms
        more = "silenced" if alert.muted_by else "acknowledged" if is_acked else ""
        return {
            "id": id_,
            "alert": alert.rule,
            "state": alert.state,
            "shown": f"{alert.state}, {more}" if more else alert.state,
            "value": alert.value,
            "labels": alert.labels,
            "annotations": alert.annotations,
            "since_ms": alert.resolved_ms or alert.fired_ms or alert.active_ms,
            "active_ms": alert.active_ms,
            "fired_ms": alert.fired_ms or None,
            "resolved_ms": alert.resolved_ms or None,
            "silences": alert.muted_by,
            "acknowledged": vars(acked) if is_acked else None,
            "receivers": alert.receivers,
            "sent_to": sorted(self._told.get((id_, alert.fired_ms), [])),
        }

    def silences(self) -> list[dict[str, Any]]:
        """Return the silences that have not ended, the first to end first."""
        found = [
            {"id": _id(key), **asdict(each)}
            for key, each in self.stored.items()
            if isinstance(each, Silence) and each.ends_ms > self._now_ms
        ]
        return sorted(found, key=lambda each: each["ends_ms"])

    def worker(self) -> dict[str, Any] | None:
        """Return the last report of the worker, with the rules and the receivers; None: none."""
        state = self.stored.get(f"{WORKER}/state")
        if not isinstance(state, WorkerState):
            return None
        age_ms = self._now_ms - state.updated_ms
        is_gone = age_ms > STALE_MS + state.interval_ms
        return {
            "worker": state.worker,
            "state": "no worker" if is_gone else state.phase,
            "age_ms": age_ms,
            "rules": state.rules,
            "receivers": state.receivers,
        }

    def find(self, name: str) -> tuple[str, Alert]:
        """Return the alert whose id begins so.

        Raises:
            NoAlertError: there is none, or there are several.
        """
        matching = {
            _id(key): each
            for key, each in self.stored.items()
            if isinstance(each, Alert) and key.startswith(f"{ALERT}/{name}") and name
        }
        if len(matching) != 1:
            several = f"{len(matching)} alerts have ids that begin with {name}"
            problem = several if matching else f"there is no alert {name}"
            raise NoAlertError(problem, hint="See: tidemill alert list")
        return next(iter(matching.items()))

    # --- orders -------------------------------------------------------------------------------

    def ack(self, name: str, by: str, comment: str) -> tuple[str, Alert]:
        """Acknowledge the present occurrence of an alert, and return it with its id.

        Raises:
            NoAlertError: there is no such alert, or it has ended.
            UnreachableError: no broker answers.
        """
        id_, alert = self.find(name)
        if alert.state == "resolved":
            raise NoAlertError(f"alert {id_} has ended", hint="See: tidemill alert list")
        made = Ack(alert.active_ms, self._now_ms, by[:LONGEST_TEXT], comment[:LONGEST_TEXT])
        write_orders(self._kafka, {f"{ACK}/{id_}": made})
        return id_, alert

    def silence(
        self, matchers: Sequence[str], duration: str, by: str, comment: str
    ) -> tuple[str, Silence, int]:
        """Begin a silence. Return its id, the silence, and how many alerts that fire it covers.

        Raises:
            MatcherError: a matcher or the duration is invalid.
            UnreachableError: no broker answers.
        """
        parse_matchers(list(matchers))
        ends_ms = self._now_ms + 1000 * seconds_of(duration)
        texts = by[:LONGEST_TEXT], comment[:LONGEST_TEXT]
        made = Silence(list(matchers), self._now_ms, ends_ms, *texts)
        alerts = (each for each in self.stored.values() if isinstance(each, Alert))
        covered = sum(each.is_firing and made.matches(each.labels) for each in alerts)
        id_ = secrets.token_hex(4)
        write_orders(self._kafka, {f"{SILENCE}/{id_}": made})
        return id_, made, covered

    def unsilence(self, id_: str) -> None:
        """End a silence.

        Raises:
            NoAlertError: there is no such silence.
            UnreachableError: no broker answers.
        """
        if f"{SILENCE}/{id_}" not in self.stored:
            raise NoAlertError(f"there is no silence {id_}", hint="See: tidemill alert list")
        write_orders(self._kafka, {f"{SILENCE}/{id_}": None})


def seconds_of(text: str) -> int:
    """Return a duration such as ``1h30m`` in seconds.

    Raises:
        MatcherError: it is not a duration, or longer than a year.
    """
    parts = re.findall(r"(\d{1,9})([smhd])", text[:100])
    total = sum(int(number) * _UNITS_S[unit] for number, unit in parts)
    if "".join(number + unit for number, unit in parts) != text or not 0 < total <= _LONGEST_S:
        raise MatcherError(
            f"invalid duration {text[:100]!r}: expected one up to a year",
            hint="For example 30m, 2h, 1h30m.",
        )
    return total


def labels_text(labels: Mapping[str, str]) -> str:
    """Return labels on one line, without the name of the rule."""
    return " ".join(f"{key}={text}" for key, text in sorted(labels.items()) if key != "alertname")


def _id(key: str) -> str:
    return key.partition("/")[2]


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
