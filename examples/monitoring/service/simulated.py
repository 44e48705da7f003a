"""Simulate three instances of a web service, minute by minute, as metrics and log lines.

A quiet service is not a silent one: traffic follows the hours, a backup slows it down each night, a
garbage collection does so at any time, deployments restart instances, and each request can fail.
"""

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

MINUTE_MS, DAY_MINUTES, SLOT_MINUTES = 60_000, 1440, 720
START_MS = 1_772_409_600_000  # 2026-03-02T00:00:00Z, a Monday
INSTANCES = ("web-1", "web-2", "web-3")


@dataclass(frozen=True)
class Fault:
    """A fault, from minute ``first`` on and before minute ``end``.

    Attributes:
        kind: a key of ``FAULTS``.
        where: the instances that have it.
        is_planned: whether people know of it before, so that they silence its alerts.
    """

    kind: str
    where: tuple[str, ...]
    first: int
    end: int
    is_planned: bool = False


FAULTS = {
    "crash loop": 60,
    "high latency": 90,
    "disk full": 120,
    "failing requests": 60,
    "no traffic": 45,
}
"""How many minutes each kind lasts."""


@dataclass(frozen=True)
class Minute:
    """A minute of an instance. Without metrics, the instance is down.

    Attributes:
        at: its end, in milliseconds since 1970.
        metrics: (name, StatsD's type, value).
        lines: (milliseconds, level, message) of the log.
    """

    at: int
    instance: str
    metrics: tuple[tuple[str, str, float], ...]
    lines: tuple[tuple[int, str, str], ...]


class Service:
    """Args: a seed for all that is random, and the days to simulate. Each day has two faults."""

    def __init__(self, seed: int, days: int = 3) -> None:
        self._chance = random.Random(seed)
        self.minutes = days * DAY_MINUTES
        self.faults = self._faults()
        self._disk = {name: 40 + 5.0 * number for number, name in enumerate(INSTANCES)}

    def _faults(self) -> list[Fault]:
        """One fault in each twelve hours: all kinds in turns. One disk is filled on purpose."""
        chance, faults = self._chance, []
        kinds: list[str] = []
        for slot in range(0, self.minutes, SLOT_MINUTES):
            if not kinds:
                kinds = list(FAULTS)
                chance.shuffle(kinds)
            kind, first = kinds.pop(), slot + chance.randint(60, 480)
            where = INSTANCES if kind == "no traffic" else (chance.choice(INSTANCES),)
            planned = kind == "disk full" and not any(each.is_planned for each in faults)
            faults.append(Fault(kind, where, first, first + FAULTS[kind], planned))
        return faults

    def usual(self) -> dict[str, int]:
        """Requests of an instance in ten minutes, by the hour of the day, in a week before."""
        return {f"{hour:02}": round(10 * self._rate(hour * 60 + 30)) for hour in range(24)}

    def run(self) -> Iterator[list[Minute]]:
        """Yield each minute of all instances."""
        for minute in range(self.minutes):
            yield [self._minute(minute, name) for name in INSTANCES]

    def _rate(self, minute: int) -> float:
        """Requests in a minute at one instance: few at night, many in the evening."""
        return 40 * (0.6 - 0.4 * math.cos((minute % DAY_MINUTES - 240) / DAY_MINUTES * 2 * math.pi))

    def _minute(self, minute: int, instance: str) -> Minute:
        chance, at = self._chance, START_MS + (minute + 1) * MINUTE_MS
        faults = {
            each.kind
            for each in self.faults
            if instance in each.where and each.first <= minute < each.end
        }
        lines: list[tuple[int, str, str]] = []

        def log(level: str, message: str) -> None:
            lines.append((at - chance.randrange(1, MINUTE_MS), level, message))

        rate, failing, latency = self._rate(minute), 0.004, 80 * chance.lognormvariate(0, 0.15)
        if minute % DAY_MINUTES in range(150, 175):  # the backup
            latency *= 2.4
        if chance.random() < 0.004:  # a garbage collection
            latency *= 6
        if chance.random() < 1 / DAY_MINUTES:
            log("INFO", "started")  # a deployment
        if "crash loop" in faults:
            rate, failing = rate / 3, 0.4
            if minute % 3 == 0:
                log("ERROR", "out of memory")
                log("INFO", "started")
        if "high latency" in faults:
            latency *= 4
        if "failing requests" in faults:
            failing = 0.15
        if "no traffic" in faults:
            rate *= 0.05
        requests = max(0, round(chance.gauss(rate, math.sqrt(rate))))
        errors = sum(chance.random() < failing for _ in range(requests))
        for _ in range(errors):
            log("ERROR", "500")
        log("INFO", f"served {requests} requests")
        metrics = (
            ("requests", "c", float(requests)),
            ("errors", "c", float(errors)),
            ("latency_ms", "g", float(round(latency))),
            ("disk_percent", "g", self._fill_disk(minute, instance, "disk full" in faults)),
        )
        return Minute(at, instance, metrics, tuple(sorted(lines)))

    def _fill_disk(self, minute: int, instance: str, is_filling: bool) -> float:
        """Fill the disk a little. It is emptied at four, and at the end of a fault."""
        full = self._disk[instance]
        full = min(98.0, full + 1) if is_filling else full + 0.015
        if not is_filling and (minute % DAY_MINUTES == 240 or full > 80):
            full = 40.0
        self._disk[instance] = full
        return float(round(full))
