"""Make bodies of notices: Alertmanager's for webhooks and for its API, and text for people.

Sources: https://prometheus.io/docs/alerting/latest/configuration/#webhook_config (version 4) and
https://github.com/prometheus/alertmanager/blob/main/api/v2/openapi.yaml. Must not know: a client.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from tidemill.connect.alerts.machine import Due
from tidemill.connect.alerts.model import Alert

NOT_ENDED = "0001-01-01T00:00:00Z"
"""Go's zero time: Alertmanager writes it as the end of what fires."""
LASTS = 4
"""What fires is valid at Alertmanager for so many intervals after it was sent."""


def time_text(ms: int) -> str:
    """Return a time as RFC 3339 has it."""
    text = datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


def webhook_body(due: Due, external_url: str) -> dict[str, Any]:
    """Return the body of a webhook, as Alertmanager sends it."""
    alerts = due.notice.alerts
    labels = ",".join(f'{name}="{value}"' for name, value in sorted(due.labels.items()))
    return {
        "version": "4",
        "groupKey": f"{due.receiver}:{{{labels}}}",
        "truncatedAlerts": due.notice.more,
        "status": status_of(alerts),
        "receiver": due.receiver,
        "groupLabels": dict(due.labels),
        "commonLabels": _common([each.labels for each in alerts]),
        "commonAnnotations": _common([each.annotations for each in alerts]),
        "externalURL": external_url,
        "alerts": [
            {
                "status": "firing" if each.is_firing else "resolved",
                "labels": each.labels,
                "annotations": each.annotations,
                "startsAt": time_text(each.fired_ms),
                "endsAt": NOT_ENDED if each.is_firing else time_text(each.resolved_ms),
                "generatorURL": _link(external_url, each),
                "fingerprint": each.id,
            }
            for each in alerts
        ],
    }


def api_body(due: Due, external_url: str, repeat_s: float, now_ms: int) -> list[dict[str, Any]]:
    """Return the alerts for Alertmanager's API, ``POST /api/v2/alerts``.

    What fires ends by itself if it is not sent again: so long after the worker is gone.
    """
    lasts_ms = now_ms + int(1000 * LASTS * repeat_s)
    return [
        {
            "labels": each.labels,
            "annotations": each.annotations,
            "startsAt": time_text(each.fired_ms),
            "endsAt": time_text(lasts_ms if each.is_firing else each.resolved_ms),
            **({"generatorURL": link} if (link := _link(external_url, each)) else {}),
        }
        for each in due.notice.alerts
    ]


def subject(due: Due) -> str:
    """Return one line about a notice."""
    alerts = due.notice.alerts
    firing = sum(each.is_firing for each in alerts)
    what = ", ".join(due.labels.values()) or f"{len({each.rule for each in alerts})} rules"
    head = f"FIRING:{firing}" if firing else "RESOLVED"
    # Not only \r and \n: headers of mails refuse all that Unicode breaks into lines.
    return " ".join(f"[{head}] {what}".splitlines())[:200]


def plain_text(due: Due, external_url: str) -> str:
    """Return a notice as text for people."""
    lines: list[str] = []
    for each in due.notice.alerts:
        state = "FIRING since" if each.is_firing else "RESOLVED at"
        at_ms = each.fired_ms if each.is_firing else each.resolved_ms
        lines.append(f"{each.rule}: {state} {time_text(at_ms)}, value {each.value:g}")
        lines += [f"  {text}" for text in each.annotations.values() if text]
        named = [f"{key}={text}" for key, text in each.labels.items() if key != "alertname"]
        lines += ["  " + ", ".join(named)] if named else []
        lines.append("")
    if due.notice.more:
        lines.append(f"and {due.notice.more} more")
    lines += [external_url] if external_url else []
    return "\n".join(lines) + "\n"


def status_of(alerts: Sequence[Alert]) -> str:
    """Return ``firing`` if one of them fires, else ``resolved``."""
    return "firing" if any(each.is_firing for each in alerts) else "resolved"


def _common(found: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Return the pairs that all have."""
    if not found:
        return {}
    first, *others = found
    return {
        key: text for key, text in first.items() if all(each.get(key) == text for each in others)
    }


def _link(external_url: str, alert: Alert) -> str:
    return f"{external_url.rstrip('/')}/console/alerts?q={alert.id}" if external_url else ""
