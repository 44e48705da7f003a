"""The result of the demo: as lines for a terminal, and as JSON.

This module must not print it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from rich.text import Text

from tidemill.cli.demo.lines import labelled

if TYPE_CHECKING:
    from tidemill.demo.check import Check, Identity
    from tidemill.demo.progress import DemoReport

_SHOWN_DIFFERENCES = 5


def result_lines(report: DemoReport) -> Iterable[Text]:
    """Yield the lines with the result: whether all records are equal, and the differences."""
    yield labelled("Log", f"{sum(report.stored.values()):,} records stored")
    for topic, count in report.sent.items():
        if (found := report.stored.get(topic, 0)) != count:
            yield labelled("", f"{topic}: {count:,} were sent, {found:,} are stored", "red")
    batches = sum(status.batch + 1 for status in report.queries)
    yield labelled(
        "Pipeline",
        f"{batches:,} batches; {report.late_rows:,} reports came too late",
        "red" if report.late_rows else "",
    )
    label = "Check"
    for check in report.checks:
        style = "green" if check.ok else "bold red"
        yield labelled(
            label, f"{check.query:<19}{check.equal:>7,} of {check.expected:,} equal", style
        )
        label = ""
        for line in differences(check):
            yield labelled("", f"  {line}", "red")
    equal = sum(check.equal for check in report.checks)
    yield labelled(
        "",
        f"{'all':<19}{equal:>7,} of {report.expected:,} equal, in all fields, exactly",
        "bold green" if report.ok else "bold red",
    )
    if not report.ok:
        yield labelled("", f"logs and data are in {report.folder}")
    yield labelled("Time", f"{report.seconds:.0f} s")


def differences(check: Check) -> Iterable[str]:
    """Yield the first differences of each kind, and their number."""
    kinds: tuple[tuple[str, Sequence[tuple[Identity, object]]], ...] = (
        ("unequal", list(check.unequal.items())),
        ("missing", list(check.missing.items())),
        ("unexpected", list(check.unexpected.items())),
        ("published again", [(identity, "") for identity in check.repeated]),
    )
    for what, found in kinds:
        for identity, record in found[:_SHOWN_DIFFERENCES]:
            yield f"{what}: {' '.join(identity)} {record}".rstrip()
        if len(found) > _SHOWN_DIFFERENCES:
            yield f"... {len(found):,} {what} in all"


def json_report(report: DemoReport) -> dict[str, Any]:
    """Return the report for machines."""
    return {
        "ok": report.ok,
        "bootstrap_servers": report.bootstrap_servers,
        "from": report.stretch.first.isoformat(),
        "days": report.stretch.days,
        "database": report.database,
        "edits": report.edits.delivered,
        "queries": {check.query: _check_json(check) for check in report.checks},
        "late_dropped": report.late_rows,
        "batches": {status.query: status.batch + 1 for status in report.queries},
        "sent": dict(report.sent),
        "stored": dict(report.stored),
        "replay_seconds": round(report.replay.seconds, 3),
        "seconds": round(report.seconds, 3),
        "folder": None if report.ok else str(report.folder),
    }


def _check_json(check: Check) -> dict[str, Any]:
    return {
        "expected": check.expected,
        "equal": check.equal,
        "unequal": _names(check.unequal),
        "missing": _names(check.missing),
        "unexpected": _names(check.unexpected),
        "repeated": _names(check.repeated),
    }


def _names(identities: Iterable[Identity]) -> list[str]:
    return ["|".join(identity) for identity in identities]
