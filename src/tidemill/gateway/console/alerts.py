"""Alerts: what fires, what is silenced and who was sent what; acknowledge and silence them.

Must not know: HTML, how alerts are evaluated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tidemill.connect.alerts.desk import Desk, labels_text
from tidemill.connect.alerts.errors import MatcherError, NoAlertError
from tidemill.connect.alerts.topics import ALERTS
from tidemill.gateway.cluster.state import Snapshot
from tidemill.gateway.console.contract import (
    Attention,
    Data,
    Done,
    Form,
    Page,
    View,
    address,
    command_line,
)
from tidemill.gateway.console.lists import listed

DURATIONS = ("30m", "1h", "2h", "8h", "1d", "7d")
_SHOWN = 20
_LONGEST = 2000
_COLUMNS: Mapping[str, Callable[[dict[str, Any]], Any]] = {
    "alert": lambda each: each["alert"],
    "state": lambda each: each["shown"],
    "value": lambda each: each["value"],
    "since": lambda each: -each["since_ms"],
}


async def data(view: View) -> Data:
    """Return the alerts, the silences, and the last report of the worker."""
    desk = await view.parts.alerts.get()
    alerts = desk.alerts()
    for each in alerts:
        each["labels_text"] = labels_text(each["labels"])
        each["matchers"] = "\n".join(f"{name}={text}" for name, text in each["labels"].items())
    found = listed(
        view,
        alerts,
        _COLUMNS,
        search=lambda each: " ".join(
            (each["id"], each["alert"], each["shown"], each["labels_text"])
        ),
    )
    return {
        "alerts": found,
        "counts": {
            state: sum(each["state"] == state for each in alerts)
            for state in ("firing", "pending", "resolved")
        },
        "silences": desk.silences(),
        "worker": desk.worker(),
        "durations": DURATIONS,
        "matchers": view.text("matchers")[:_LONGEST],
    }


async def acknowledge(view: View, form: Form) -> Done:
    """Acknowledge an alert."""

    def order(desk: Desk) -> str:
        _, alert = desk.ack(form.needed("id"), view.user, form.get("comment", ""))
        return f"{alert.rule} is acknowledged: it is not repeated."

    return await _order(view, order)


async def silence(view: View, form: Form) -> Done:
    """Begin a silence."""

    def order(desk: Desk) -> str:
        lines = [each.strip() for each in form.needed("matchers").splitlines()]
        matchers = [each for each in lines if each]
        who = form.get("by", "").strip() or view.user
        texts = who, form.get("comment", "").strip()
        _, _, firing = desk.silence(matchers, form.needed("duration"), *texts)
        return f"The silence covers {firing} alerts that fire now."

    return await _order(view, order)


async def unsilence(view: View, form: Form) -> Done:
    """End a silence."""

    def order(desk: Desk) -> str:
        desk.unsilence(form.needed("id"))
        return "The silence has ended. What still fires is sent now."

    return await _order(view, order)


async def _order(view: View, order: Callable[[Desk], str]) -> Done:
    """Carry out an order, and return to the page."""

    def run() -> Done:
        try:
            return Done(address(PAGE.address), order(Desk(view.parts.kafka)))
        except (MatcherError, NoAlertError) as error:
            return Done(view.url(), f"{error}. {error.hint}", is_problem=True)

    done = await asyncio.to_thread(run)
    view.parts.alerts.expire()
    return done


async def check(view: View, snapshot: Snapshot) -> Sequence[Attention]:
    """Find the alerts that fire, and a worker that is gone."""
    if ALERTS not in snapshot.topics:
        return []
    desk = await view.parts.alerts.get()
    found: list[Attention] = []
    for each in desk.alerts():
        if each["shown"] == "firing":
            said = each["annotations"].get("summary") or labels_text(each["labels"])
            text = f"Alert {each['alert']} fires. {said}".rstrip()
            command = command_line("alert", "show", name=each["id"])
            found.append(Attention("problem", text, command, address(PAGE.address, q=each["id"])))
    worker = desk.worker()
    if worker is not None and worker["state"] == "no worker":
        text = "No worker evaluates alerts now."
        found.append(Attention("warning", text, "tidemill worker list", address(PAGE.address)))
    return found[:_SHOWN]


PAGE = Page(
    address="alerts",
    about="What fires and what is pending; silences and acknowledgements; rules and receivers.",
    data=data,
    actions={"ack": acknowledge, "silence": silence, "unsilence": unsilence},
    section="Cluster",
    live_s=5.0,
)
