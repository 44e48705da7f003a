"""``tidemill alert``: lists, acknowledges and silences alerts, tests receivers, runs the worker."""

from __future__ import annotations

import getpass
import re
import secrets
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidemill.cli import output
from tidemill.cli.boards import STALE_MS, until_signal
from tidemill.cli.client import Cluster
from tidemill.cli.options import (
    BOOTSTRAP_DEFAULT,
    Bootstrap,
    Config,
    Json,
    Property,
    Set,
    command_group,
    pairs,
)
from tidemill.connect.alerts.topics import ACK, ALERT, SILENCE, TEST, WORKER
from tidemill.errors import TidemillError

if TYPE_CHECKING:
    from tidemill.confluent.clients import Kafka
    from tidemill.connect.alerts.model import Alert, Stored

app = command_group("List, acknowledge and silence alerts.")

WAIT_S = 30.0
"""How long ``test`` waits for the worker."""
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}

AlertId = Annotated[
    str, typer.Argument(metavar="ID", help="Id of the alert, or enough of its beginning.")
]
Comment = Annotated[str, typer.Option("--comment", metavar="TEXT", help="Why, for others.")]
By = Annotated[str, typer.Option("--by", metavar="NAME", help="Who; default: your user's name.")]


@app.command("list", short_help="List the alerts that are pending or fire.")
def list_alerts(
    all_: Annotated[
        bool, typer.Option("--all", help="Also those that were resolved in the last day.")
    ] = False,
    as_json: Json = False,
    servers: Bootstrap = BOOTSTRAP_DEFAULT,
    properties: Property = None,
) -> None:
    """List the alerts that are pending or fire, with silences and acknowledgements."""
    found = _read(_kafka(servers, properties))
    shown = [each for each in _alerts(found) if all_ or each["state"] != "resolved"]
    silences = _silences(found)
    if as_json:
        output.emit_json({"alerts": shown, "silences": silences, "worker": _worker(found)})
        return
    rows = [
        (
            each["id"],
            each["alert"],
            each["shown"],
            f"{each['value']:g}",
            _age(each["since_ms"]),
            _labels_text(each["labels"]),
        )
        for each in shown
    ]
    output.emit_table(("ID", "ALERT", "STATE", "VALUE", "SINCE", "LABELS"), rows)
    if silences:
        print()
        ended = [(s["id"], _left(s["ends_ms"]), " ".join(s["matchers"]), s["by"]) for s in silences]
        output.emit_table(("SILENCE", "ENDS IN", "MATCHERS", "BY"), ended)
    worker = _worker(found)
    if worker is None or worker["state"] != "running":
        output.warn("no worker evaluates alerts now")
    for name, rule in sorted((worker or {}).get("rules", {}).items()):
        if rule.get("error"):
            output.warn(f"alert {name}: {rule['error']}. {rule.get('hint', '')}".rstrip())


@app.command(short_help="Show an alert, or all of a rule.")
def show(
    name: Annotated[
        str, typer.Argument(metavar="NAME|ID", help="Name of a rule, or id of an alert.")
    ],
    as_json: Json = False,
    servers: Bootstrap = BOOTSTRAP_DEFAULT,
    properties: Property = None,
) -> None:
    """Show an alert with its texts and what receivers know of it, or all alerts of a rule."""
    found = _read(_kafka(servers, properties))
    rules = (_worker(found) or {}).get("rules", {})
    alerts = [each for each in _alerts(found) if each["alert"] == name]
    if name in rules or alerts:
        if as_json:
            output.emit_json({"rule": rules.get(name), "alerts": alerts})
            return
        rule = rules.get(name, {})
        keys = ("source", "measure", "series", "error", "hint")
        output.emit_fields([("name", name), *((k, rule[k]) for k in keys if rule.get(k))])
    else:
        alerts = [_alert_dict(*_find(found, name), found)]
        if as_json:
            output.emit_json(alerts[0])
            return
    for number, alert in enumerate(alerts):
        if number or name in rules:
            print()
        output.emit_fields(_fields(alert))


@app.command(short_help="Acknowledge an alert: it is not repeated.")
def ack(
    name: AlertId,
    comment: Comment = "",
    by: By = "",
    servers: Bootstrap = BOOTSTRAP_DEFAULT,
    properties: Property = None,
) -> None:
    """Acknowledge an alert: its notices are not repeated, until it has ended and fires again.

    Its end is sent all the same, and so are other alerts of its group.
    """
    from tidemill.connect.alerts.model import Ack

    kafka = _kafka(servers, properties)
    id_, alert = _find(_read(kafka), name)
    if alert.state == "resolved":
        raise output.NotFoundError(f"alert {id_} has ended", hint="See: tidemill alert list")
    _write(kafka, {f"{ACK}/{id_}": Ack(alert.active_ms, _now_ms(), by or _user(), comment)})
    print(f"acknowledged {alert.rule} {id_}")


@app.command(short_help="Hold back the notices of alerts that match.")
def silence(
    matchers: Annotated[
        list[str],
        typer.Argument(
            metavar="LABEL=PATTERN",
            help="What labels must be, or with != must not be; * stands for any text.",
        ),
    ],
    duration: Annotated[
        str, typer.Option("--for", metavar="TIME", help="How long: 30m, 2h, 1d, 1h30m.")
    ] = "2h",
    comment: Comment = "",
    by: By = "",
    as_json: Json = False,
    servers: Bootstrap = BOOTSTRAP_DEFAULT,
    properties: Property = None,
) -> None:
    """Hold back the notices of alerts that match all matchers, for some time.

    What still fires when the silence ends is sent then. If an alert ends that a receiver knows to
    fire, it gets that notice in any case. The rule is the label alertname.
    """
    from tidemill.connect.alerts.model import Silence, parse_matchers

    parse_matchers(matchers)
    now_ms = _now_ms()
    ends_ms = now_ms + 1000 * _seconds(duration)
    id_ = secrets.token_hex(4)
    made = Silence(matchers, now_ms, ends_ms, by or _user(), comment)
    kafka = _kafka(servers, properties)
    found = _alerts(_read(kafka))
    _write(kafka, {f"{SILENCE}/{id_}": made})
    firing = sum(each["state"] == "firing" and made.matches(each["labels"]) for each in found)
    if as_json:
        output.emit_json({"id": id_, "ends_ms": ends_ms, "firing": firing})
    else:
        print(f"silence {id_} until {_time(ends_ms)}: {output.plural(firing, 'firing alert')}")


@app.command(short_help="End a silence.")
def unsilence(
    name: Annotated[str, typer.Argument(metavar="ID", help="Id of the silence.")],
    servers: Bootstrap = BOOTSTRAP_DEFAULT,
    properties: Property = None,
) -> None:
    """End a silence. What still fires is sent now."""
    kafka = _kafka(servers, properties)
    found = _read(kafka)
    if f"{SILENCE}/{name}" not in found:
        raise output.NotFoundError(f"there is no silence {name}", hint="See: tidemill alert list")
    _write(kafka, {f"{SILENCE}/{name}": None})
    print(f"ended silence {name}")


@app.command("test", short_help="Send a test notice to a receiver.")
def send_test(
    receiver: Annotated[str, typer.Argument(metavar="RECEIVER", help="Name of the receiver.")],
    servers: Bootstrap = BOOTSTRAP_DEFAULT,
    properties: Property = None,
) -> None:
    """Send a test notice to a receiver, from the worker, which has the secrets.

    The exit code is 1 if the receiver does not get it.
    """
    from tidemill.connect.alerts.model import OrderedTest

    kafka = _kafka(servers, properties)
    worker = _worker(_read(kafka)) or {}
    known = worker.get("receivers", {})
    if known and receiver not in known:
        raise output.NotFoundError(
            f"there is no receiver {receiver}", hint=f"There are: {', '.join(sorted(known))}"
        )
    key = f"{TEST}/{secrets.token_hex(8)}"
    _write(kafka, {key: OrderedTest(receiver, _now_ms())})
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        done = _read(kafka).get(key)
        if isinstance(done, OrderedTest) and done.error is not None:
            _write(kafka, {key: None})
            if done.error:
                raise TidemillError(f"{receiver} did not get the test notice: {done.error}")
            print(f"{receiver} has the test notice")
            return
        time.sleep(0.2)
    _write(kafka, {key: None})
    raise TidemillError(
        f"no worker has sent the test notice within {WAIT_S:g} s",
        hint="See: tidemill worker list",
    )


@app.command(short_help="Evaluate alerts in this process.")
def run(
    config: Config = None,
    settings: Set = None,
    servers: Bootstrap = BOOTSTRAP_DEFAULT,
    properties: Property = None,
) -> None:
    """Evaluate the alerts of a settings file in this process, until Ctrl-C or SIGTERM.

    'tidemill dev' and 'tidemill serve' start it by themselves. It also runs in front of Apache
    Kafka: alerts.scrape then names pages of metrics. A second worker takes over from the first.
    """
    from tidemill import telemetry
    from tidemill.cli.metric_names import known_series
    from tidemill.cli.server.settings_file import load
    from tidemill.connect.alerts.definition import AlertEntry, AlertsSection, ReceiverEntry
    from tidemill.connect.alerts.worker import Worker
    from tidemill.errors import SettingsError

    flags: dict[str, tuple[str, object]] = {
        key: ("--set", value) for key, value in pairs(settings, "--set").items()
    }
    loaded = load(config, flags=flags).settings
    rules, receivers = loaded.entries(AlertEntry), loaded.entries(ReceiverEntry)
    if not rules:
        raise SettingsError(
            "the settings file has no [[alert]]", hint="See docs/guide-alerts.md, or use --config."
        )
    names = {each.name for each in receivers}
    for rule in rules:
        if unknown := sorted(set(rule.receivers) - names):
            raise SettingsError(
                f"[[alert]] {rule.name}: there is no receiver {unknown[0]}",
                hint=f"There are: {', '.join(sorted(names)) or 'none'}.",
            )
    kafka = _kafka(servers, properties)
    telemetry.configure("info", "auto", color=output.colored(sys.stderr))
    worker = Worker(kafka, loaded.section(AlertsSection), rules, receivers, known_series())
    until_signal(worker.run)


# --- reading and writing -------------------------------------------------------------------------


def _kafka(servers: str, properties: list[str] | None) -> Kafka:
    from tidemill.confluent.clients import Kafka

    cluster = Cluster.at(servers, properties)
    return Kafka(cluster.servers, cluster.properties)


def _read(kafka: Kafka) -> dict[str, Stored]:
    from tidemill.connect.alerts.store import read_alerts

    return read_alerts(kafka)


def _write(kafka: Kafka, orders: Mapping[str, Stored | None]) -> None:
    from tidemill.connect.alerts.store import write_orders

    write_orders(kafka, orders)


def _find(found: Mapping[str, Stored], name: str) -> tuple[str, Alert]:
    """Return the alert whose id begins so.

    Raises:
        NotFoundError: there is none, or there are several.
    """
    from tidemill.connect.alerts.model import Alert

    matching = {
        key.partition("/")[2]: each
        for key, each in found.items()
        if isinstance(each, Alert) and key.startswith(f"{ALERT}/{name}") and name
    }
    if len(matching) != 1:
        several = f"{len(matching)} alerts have ids that begin with {name}"
        raise output.NotFoundError(
            several if matching else f"there is no alert {name}", hint="See: tidemill alert list"
        )
    return next(iter(matching.items()))


# --- showing -------------------------------------------------------------------------------------


def _alert_dict(id_: str, alert: Alert, found: Mapping[str, Stored]) -> dict[str, Any]:
    """Return an alert as JSON values."""
    from tidemill.connect.alerts.model import Ack, Group

    acked = found.get(f"{ACK}/{id_}")
    is_acked = isinstance(acked, Ack) and acked.active_ms == alert.active_ms
    told = [
        each.receiver
        for each in found.values()
        if isinstance(each, Group) and each.told.get(id_) == alert.active_ms
    ]
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
        "sent_to": sorted(told),
    }


def _alerts(found: Mapping[str, Stored]) -> list[dict[str, Any]]:
    from tidemill.connect.alerts.model import Alert

    alerts = [
        _alert_dict(key.partition("/")[2], each, found)
        for key, each in found.items()
        if isinstance(each, Alert)
    ]
    order = {"firing": 0, "pending": 1, "resolved": 2}
    return sorted(alerts, key=lambda each: (order[each["state"]], each["alert"], each["id"]))


def _silences(found: Mapping[str, Stored]) -> list[dict[str, Any]]:
    """Return the silences that have not ended, the first to end first."""
    from tidemill.connect.alerts.model import Silence

    silences = [
        {"id": key.partition("/")[2], "matchers": each.matchers, "starts_ms": each.starts_ms}
        | {"ends_ms": each.ends_ms, "by": each.by, "comment": each.comment}
        for key, each in found.items()
        if isinstance(each, Silence) and each.ends_ms > _now_ms()
    ]
    return sorted(silences, key=lambda each: each["ends_ms"])


def _worker(found: Mapping[str, Stored]) -> dict[str, Any] | None:
    from tidemill.connect.alerts.model import WorkerState

    state = found.get(f"{WORKER}/state")
    if not isinstance(state, WorkerState):
        return None
    age_ms = _now_ms() - state.updated_ms
    is_stale = age_ms > STALE_MS + state.interval_ms
    return {
        "worker": state.worker,
        "state": "no worker" if is_stale else state.phase,
        "age_ms": age_ms,
        "rules": state.rules,
        "receivers": state.receivers,
    }


def _fields(alert: Mapping[str, Any]) -> list[tuple[str, object]]:
    acked = alert["acknowledged"]
    more = {
        "fired": _time(alert["fired_ms"]),
        "resolved": _time(alert["resolved_ms"]),
        "silences": ", ".join(alert["silences"]),
        "acknowledged by": f"{acked['by']} {acked['comment']}".rstrip() if acked else "",
        "sent to": ", ".join(alert["sent_to"]),
    }
    return [
        ("alert", alert["alert"]),
        ("id", alert["id"]),
        ("state", alert["shown"]),
        ("value", f"{alert['value']:g}"),
        ("active since", _time(alert["active_ms"])),
        *((name, value) for name, value in more.items() if value),
        ("labels", _labels_text(alert["labels"])),
        *alert["annotations"].items(),
    ]


def _labels_text(labels: Mapping[str, str]) -> str | None:
    return (
        " ".join(f"{key}={text}" for key, text in sorted(labels.items()) if key != "alertname")
        or None
    )


def _seconds(text: str) -> int:
    """Return a duration such as ``1h30m`` in seconds.

    Raises:
        UsageError: it is not a duration, or longer than a year.
    """
    parts = re.findall(r"(\d{1,9})([smhd])", text)
    total = sum(int(number) * _UNITS_S[unit] for number, unit in parts)
    if "".join(number + unit for number, unit in parts) != text or not 0 < total <= 366 * 86_400:
        raise output.UsageError(
            f"--for {text}: expected a duration up to a year", hint="For example 30m, 2h, 1h30m."
        )
    return total


def _age(ms: int) -> str | None:
    return output.duration_text(max(_now_ms() - ms, 0))


def _left(ms: int) -> str | None:
    return output.duration_text(max(ms - _now_ms(), 0))


def _time(ms: int | None) -> str | None:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="seconds") if ms else None


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container without the user
        return ""
