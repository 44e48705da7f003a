"""Shows webhooks: lists, fields, and attempts. Must not know: a worker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from tidemill.cli import output


def _problem(webhook: Mapping[str, Any]) -> object:
    return next(filter(None, map(webhook.get, ("error", "disabled", "last_error"))), None)


COLUMNS: output.Columns = {
    **output.titled("name", "topic", "state", "lag", "delivered", "waiting", "dead"),
    "ERROR": _problem,
}


def fields_of(webhook: Mapping[str, Any]) -> list[tuple[str, object]]:
    """Return the fields for people that only webhooks have."""
    fields: list[tuple[str, object]] = [
        ("lag", webhook.get("lag")),
        ("delivered", webhook.get("delivered")),
        ("failed attempts", webhook.get("failed")),
        ("dead letters", webhook.get("dead")),
        ("filtered out", webhook.get("filtered")),
        ("waiting", webhook.get("waiting")),
        ("waiting for a retry", webhook.get("retrying")),
        ("next retry", _time(webhook.get("next_retry_ms"))),
        ("circuit breaker", webhook.get("breaker")),
    ]
    if webhook.get("is_full"):
        fields.append(("reading", "waits: max_waiting is reached"))
    fields += [
        ("blocked key", f"{each['key']}: {output.plural(each['behind'], 'record')} behind it")
        for each in webhook.get("blocked") or []
    ]
    fields += [
        ("redelivery", f"{each['id']}: {output.plural(each['sent'], 'record')} so far")
        for each in webhook.get("redeliveries") or []
    ]
    more = {
        "failing since": _time(webhook.get("failing_since_ms")),
        "last error": webhook.get("last_error"),
        "disabled": webhook.get("disabled"),
        "error": webhook.get("error"),
        "hint": webhook.get("hint"),
    }
    return fields + [(name, value) for name, value in more.items() if value]


def emit_attempts(attempts: Sequence[Mapping[str, Any]]) -> None:
    """Print a line per attempt or event."""
    columns = {
        "TIME": lambda each: _time(each.get("at")),
        "ID": lambda each: each.get("id") or each.get("event"),
        **output.titled("attempt", "status", "outcome"),
        "TOOK": lambda each: output.duration_text(each.get("duration_ms")),
        "ERROR": lambda each: each.get("error") or each.get("reason") or None,
    }
    output.emit_columns(columns, attempts)


def _time(ms: int | None) -> str | None:
    if not ms:
        return None
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="seconds")
