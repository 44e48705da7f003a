"""Shows sources: lists, fields, and the progress of snapshots. Must not know: a worker."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tidemill.cli import output
from tidemill.cli.boards import error_of
from tidemill.cli.source.run import BOARDS

if TYPE_CHECKING:
    from tidemill.confluent.clients import Kafka
    from tidemill.connect.base.board import Board

_LOOK_S = 0.5


COLUMNS: output.Columns = {
    **output.titled("name", "kind", "state"),
    "TABLES": lambda each: len(each["tables"]) if each.get("tables") else None,
    "LAG BYTES": lambda each: output.size_text(each.get("lag_bytes")),
    "LAG TIME": lambda each: output.duration_text(each.get("lag_ms")),
    "ERROR": error_of,
}


def fields_of(source: Mapping[str, Any]) -> list[tuple[str, object]]:
    """Return the fields of a source for people."""
    lag = [
        text
        for text in (
            output.size_text(source.get("lag_bytes")),
            output.duration_text(source.get("lag_ms")),
            None
            if source.get("lag_changes") is None
            else output.plural(source["lag_changes"], "change"),
        )
        if text
    ]
    fields: list[tuple[str, object]] = [
        ("name", source["name"]),
        ("kind", source["kind"]),
        ("state", source["state"]),
        ("worker", source.get("worker")),
        ("status from", _ago(source.get("status_age_ms"))),
        ("position", _compact(source.get("position"))),
        ("lag", ", ".join(lag) or None),
        ("records written", source.get("written")),
    ]
    if source.get("dead_letters"):
        fields.append(("dead letters", source["dead_letters"]))
    if source["declared"]:
        fields.append(("declared in", source["declared"]))
    fields += [
        ("snapshot", f"{each['table']}: {progress_text(each)}{_why(each)}")
        for each in source.get("snapshots") or []
    ]
    topics = source.get("tables") or {}
    fields += [("table", f"{table} -> {topic}") for table, topic in sorted(topics.items())]
    left_out = source.get("left_out") or {}
    fields += [("not captured", f"{table}: {why}") for table, why in sorted(left_out.items())]
    if source.get("error"):
        fields += [("error", source["error"]), ("failures in a row", source.get("attempts"))]
    if source.get("hint"):
        fields.append(("hint", source["hint"]))
    return fields


def progress_text(progress: Mapping[str, Any]) -> str:
    """Return the progress of a table's snapshot."""
    rows, estimate = int(progress.get("rows", 0)), int(progress.get("estimate", 0))
    if not estimate:
        return f"{rows:,} rows"
    share = min(rows / estimate, 1.0)
    return f"{rows:,} of about {estimate:,} rows ({share:.0%})"


def _why(progress: Mapping[str, Any]) -> str:
    why = progress.get("why")
    return f", read again because {why}" if why else ""


def wait_with_progress(kafka: Kafka, name: str) -> Board:
    """Show bars on a terminal until no snapshot is in progress, and return the last board."""
    while True:
        board = BOARDS.read(kafka)
        status = board.statuses.get(name) or {}
        waiting = status.get("snapshots") or []
        settled = status.get("phase") in ("running", "failed", "paused", "stopped")
        if sys.stderr.isatty():
            shown = "; ".join(_bar(each) for each in waiting[:1]) or "no snapshot"
            print(f"\r\x1b[K{shown}", end="", file=sys.stderr, flush=True)
        if settled and not waiting:
            if sys.stderr.isatty():
                print(file=sys.stderr)
            return board
        time.sleep(_LOOK_S)


def _bar(progress: Mapping[str, Any]) -> str:
    estimate = int(progress.get("estimate", 0))
    share = min(int(progress.get("rows", 0)) / estimate, 1.0) if estimate else 0.0
    done = int(share * 30)
    return f"{progress['table']} [{'#' * done}{'.' * (30 - done)}] {progress_text(progress)}"


def _compact(value: object) -> str | None:
    return None if value is None else json.dumps(value, separators=(",", ":"))


def _ago(age_ms: int | None) -> str | None:
    return None if age_ms is None else f"{output.duration_text(age_ms)} ago"
