"""The records of the topic of alerts: alerts, groups with notices, silences, acknowledgements.

Each is one record: its key names it, and its value is a JSON object. What is read may be from any
program, so ``decode`` checks it. Must not know: a client, a clock.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, Literal, Self

from pydantic import NonNegativeInt, TypeAdapter, ValidationError

from tidemill.connect.alerts.errors import MatcherError

LONGEST_VALUE = 256
"""Characters of a label's value; the rest is cut off."""
MOST_LABELS = 64
MOST_MATCHERS = 30

Labels = tuple[tuple[str, str], ...]
"""Pairs of name and value, in the order of the names."""
State = Literal["pending", "firing", "resolved"]
Matcher = tuple[str, bool, re.Pattern[str]]

_MATCHER = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(!=|=)(.*)", re.DOTALL)


def labels_of(values: Mapping[str, object]) -> Labels:
    """Return labels in the order of their names. Long values are cut, and empty ones left out."""
    found = ((name, str(value)[:LONGEST_VALUE]) for name, value in values.items())
    return tuple(sorted((name, value) for name, value in found if value)[:MOST_LABELS])


def fingerprint(labels: Labels) -> str:
    """Return the id of the alert with these labels: 16 hexadecimal digits."""
    return hashlib.sha256(json.dumps(labels).encode()).hexdigest()[:16]


class Stored:
    """A record's value."""

    def encode(self) -> bytes:
        """Return the value as JSON."""
        return json.dumps(asdict(self), separators=(",", ":")).encode()  # type: ignore[call-overload]

    @classmethod
    def decode(cls, value: bytes | None) -> Self | None:
        """Return what a value has; None if it is deleted, or not one of ours."""
        try:
            made: Self = _adapter(cls).validate_json(value or b"null", strict=True)
        except (ValidationError, MatcherError):
            return None
        return made


_adapters: dict[type[Stored], TypeAdapter[Any]] = {}


def _adapter(kind: type[Stored]) -> TypeAdapter[Any]:
    if kind not in _adapters:
        _adapters[kind] = TypeAdapter(kind)
    return _adapters[kind]


@dataclass
class Alert(Stored):
    """An alert: a rule with one set of labels.

    Attributes:
        rule: the name of the rule.
        labels: all labels, with ``alertname``.
        active_ms: since when the condition holds.
        fired_ms: since when it fires, or has fired; 0 while it is pending.
        resolved_ms: since when it does not hold any more; 0 before.
        muted_by: ids of the silences that hold its notices back.
        unmuted_ms: when the last silence ended while it fired; 0: never.
    """

    rule: str
    state: State
    labels: dict[str, str]
    value: float
    active_ms: int
    fired_ms: int = 0
    resolved_ms: int = 0
    updated_ms: int = 0
    annotations: dict[str, str] = field(default_factory=dict)
    receivers: list[str] = field(default_factory=list)
    muted_by: list[str] = field(default_factory=list)
    unmuted_ms: int = 0

    @property
    def id(self) -> str:
        """Its id: the same at each occurrence."""
        return fingerprint(labels_of(self.labels))

    @property
    def is_firing(self) -> bool:
        """Whether it fires now."""
        return self.state == "firing"


@dataclass
class Notice(Stored):
    """A message to a receiver. It is stored before the first attempt.

    Attributes:
        id: the same at each attempt, also of later processes.
        alerts: copies of the alerts as they were, those that fire first.
        more: how many alerts are left out of ``alerts``.
        told: what the receiver knows to fire after it, as for a group.
        next_ms: when the next attempt is due.
    """

    id: str
    planned_ms: int
    alerts: list[Alert]
    told: dict[str, int]
    more: int = 0
    attempts: int = 0
    next_ms: int = 0
    error: str = ""


@dataclass
class Group(Stored):
    """The alerts of a receiver that are sent together.

    Attributes:
        labels: the labels that they have in common, by ``group_by``.
        told: what the receiver knows to fire: by the ids of alerts, since when (``fired_ms``).
        sent_ms: when the last notice was delivered; 0: none was since nothing fired.
        notice: what is to be delivered.
    """

    receiver: str
    labels: dict[str, str]
    told: dict[str, int] = field(default_factory=dict)
    sent_ms: int = 0
    notice: Notice | None = None

    @property
    def id(self) -> str:
        """Identifies the group in keys."""
        return fingerprint((("", self.receiver), *labels_of(self.labels)))


@dataclass
class Silence(Stored):
    """Holds back notices of the alerts that match, from a time until another.

    Attributes:
        matchers: texts such as ``group=billing*`` or ``severity!=critical``; all must match.

    Raises:
        MatcherError: a matcher is invalid, or there is none.
    """

    matchers: list[str]
    starts_ms: int
    ends_ms: int
    by: str = ""
    comment: str = ""

    def __post_init__(self) -> None:
        parse_matchers(self.matchers)

    @cached_property
    def _parsed(self) -> list[Matcher]:
        return parse_matchers(self.matchers)

    def covers(self, now_ms: int) -> bool:
        """Return whether it is in force at a time."""
        return self.starts_ms <= now_ms < self.ends_ms

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Return whether all its matchers match."""
        return all(
            (pattern.fullmatch(labels.get(name, "")) is not None) is wanted
            for name, wanted, pattern in self._parsed
        )


@dataclass
class Ack(Stored):
    """An acknowledgement of one occurrence of an alert: it is not repeated any more."""

    active_ms: int
    at_ms: int
    by: str = ""
    comment: str = ""


def parse_matchers(texts: list[str]) -> list[Matcher]:
    """Return matchers: the label, whether it must match, and the pattern.

    Args:
        texts: ``LABEL=PATTERN`` or ``LABEL!=PATTERN``; ``*`` stands for any text. A label that is
            missing is an empty text.

    Raises:
        MatcherError: one is invalid, or there is none.
    """
    if not isinstance(texts, list) or not 0 < len(texts) <= MOST_MATCHERS:
        raise MatcherError(f"a silence has 1 to {MOST_MATCHERS} matchers")
    found: list[Matcher] = []
    for text in texts:
        parts = _MATCHER.fullmatch(text) if isinstance(text, str) and len(text) < 1000 else None
        if parts is None or parts[3].startswith("~"):
            raise MatcherError(
                f"invalid matcher {str(text)[:100]!r}: use LABEL=PATTERN or LABEL!=PATTERN",
                hint="* stands for any text: group=billing*",
            )
        # Each star is possessive up to the next literal, so that no pattern takes long.
        pieces = [re.escape(each) for each in re.split(r"\*+", parts[3])]
        pattern = "".join([pieces[0], *(f"(?>.*?{each})" for each in pieces[1:-1])])
        if len(pieces) > 1:
            pattern += ".*" + pieces[-1]
        found.append((parts[1], parts[2] == "=", re.compile(pattern, re.DOTALL)))
    return found


@dataclass
class Position(Stored):
    """The position of a rule in a topic whose records are alerts: offsets by partition."""

    offsets: dict[str, NonNegativeInt]


@dataclass
class OrderedTest(Stored):
    """An order to send a test notice, and what came of it.

    Attributes:
        error: why it could not be sent; empty: it was; None: it was not tried yet.
    """

    receiver: str
    at_ms: int
    error: str | None = None


@dataclass
class WorkerState(Stored):
    """The last report of the worker.

    Attributes:
        rules: by name: ``source``, ``measure``, ``series`` and, if something is wrong, ``error``
            and ``hint``.
    """

    updated_ms: int
    worker: str
    interval_ms: int
    rules: dict[str, dict[str, Any]]
    receivers: dict[str, dict[str, Any]]
    phase: str = "running"
