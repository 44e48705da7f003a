"""``tidemill alert``: lists, acknowledges and silences alerts, tests receivers, runs the worker."""

from __future__ import annotations

import contextlib
import getpass
import secrets
import sys
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidemill.cli import output
from tidemill.cli.client import Cluster
from tidemill.cli.options import LOCAL, Brokers, Config, Json, Set, command_group, pairs
from tidemill.cli.stopping import until_signal
from tidemill.connect.alerts.topics import TEST
from tidemill.errors import TidemillError

if TYPE_CHECKING:
    from tidemill.connect.alerts.desk import Desk

_MOST_PROBLEMS = 20

app = command_group("List, acknowledge and silence alerts.")

WAIT_S = 30.0
"""How long ``test`` waits for the worker."""
NO_WORKER_S = 3.0
"""How long it waits if no worker runs: one may just be starting."""

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
    brokers: Brokers = LOCAL,
) -> None:
    """List the alerts that are pending or fire, with silences and acknowledgements."""
    from tidemill.connect.alerts.desk import labels_text

    desk = _desk(brokers)
    shown = [each for each in desk.alerts() if all_ or each["state"] != "resolved"]
    silences, worker = desk.silences(), desk.worker()
    if as_json:
        output.emit_json({"alerts": shown, "silences": silences, "worker": worker})
        return
    rows = [
        (
            each["id"],
            each["alert"],
            each["shown"],
            f"{each['value']:g}",
            output.duration_text(max(_now_ms() - each["since_ms"], 0)),
            labels_text(each["labels"]) or None,
        )
        for each in shown
    ]
    output.emit_table(("ID", "ALERT", "STATE", "VALUE", "SINCE", "LABELS"), rows)
    if silences:
        print()
        ended = [
            (
                each["id"],
                output.duration_text(max(each["ends_ms"] - _now_ms(), 0)),
                " ".join(each["matchers"]),
                each["by"] or None,
            )
            for each in silences
        ]
        output.emit_table(("SILENCE", "ENDS IN", "MATCHERS", "BY"), ended)
    if worker is None or worker["state"] != "running":
        output.warn("no worker evaluates alerts now")
    warn_of_problems((worker or {}).get("rules", {}))


def warn_of_problems(rules: Mapping[str, Mapping[str, Any]]) -> None:
    """Print which rules can't be evaluated, and how many more there are."""
    problems = [(name, rule) for name, rule in sorted(rules.items()) if rule.get("error")]
    for name, rule in problems[:_MOST_PROBLEMS]:
        output.warn(f"alert {name}: {rule['error']}. {rule.get('hint', '')}".rstrip())
    if (more := len(problems) - _MOST_PROBLEMS) > 0:
        output.warn(f"{more:,} more rules have problems: tidemill alert list --json")


@app.command(short_help="Show an alert, or all of a rule.")
def show(
    name: Annotated[
        str, typer.Argument(metavar="NAME|ID", help="Name of a rule, or id of an alert.")
    ],
    as_json: Json = False,
    brokers: Brokers = LOCAL,
) -> None:
    """Show an alert with its texts and what receivers know of it, or all alerts of a rule."""
    desk = _desk(brokers)
    rule = (desk.worker() or {}).get("rules", {}).get(name)
    alerts = [each for each in desk.alerts() if each["alert"] == name]
    if rule is None and not alerts:
        with _known():
            alerts = [desk.alert(*desk.find(name))]
    if as_json:
        output.emit_json({"rule": rule, "alerts": alerts})
        return
    if rule is not None:
        keys = ("source", "measure", "series", "error", "hint")
        said = [(key, rule[key]) for key in keys if rule.get(key) not in (None, "")]
        output.emit_fields([("name", name), *said])
    for number, alert in enumerate(alerts):
        if number or rule is not None:
            print()
        output.emit_fields(_fields(alert))


@app.command(short_help="Acknowledge an alert: it is not repeated.")
def ack(name: AlertId, comment: Comment = "", by: By = "", brokers: Brokers = LOCAL) -> None:
    """Acknowledge an alert: its notices are not repeated, until it has ended and fires again.

    Its end is sent all the same, and so are other alerts of its group.
    """
    desk = _desk(brokers)
    with _known():
        id_, alert = desk.ack(name, by or _user(), comment)
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
    brokers: Brokers = LOCAL,
) -> None:
    """Hold back the notices of alerts that match all matchers, for some time.

    What still fires when the silence ends is sent then. If an alert ends that a receiver knows to
    fire, it gets that notice in any case. The rule is the label alertname.
    """
    desk = _desk(brokers)
    with _known():
        id_, made, firing = desk.silence(matchers, duration, by or _user(), comment)
    if as_json:
        output.emit_json({"id": id_, "ends_ms": made.ends_ms, "firing": firing})
    else:
        print(f"silence {id_} until {_time(made.ends_ms)}: {output.plural(firing, 'firing alert')}")


@app.command(short_help="End a silence.")
def unsilence(
    name: Annotated[str, typer.Argument(metavar="ID", help="Id of the silence.")],
    brokers: Brokers = LOCAL,
) -> None:
    """End a silence. What still fires is sent now."""
    desk = _desk(brokers)
    with _known():
        desk.unsilence(name)
    print(f"ended silence {name}")


@app.command("test", short_help="Send a test notice to a receiver.")
def send_test(
    receiver: Annotated[str, typer.Argument(metavar="RECEIVER", help="Name of the receiver.")],
    brokers: Brokers = LOCAL,
) -> None:
    """Send a test notice to a receiver, from the worker, which has the secrets.

    The exit code is 1 if the receiver does not get it.
    """
    from tidemill.connect.alerts.model import OrderedTest
    from tidemill.connect.alerts.store import read_alerts, write_orders

    kafka = Cluster.at(brokers).kafka
    worker = _desk(brokers).worker() or {"state": "no worker"}
    known = worker.get("receivers", {})
    if known and receiver not in known:
        raise output.NotFoundError(
            f"there is no receiver {receiver}", hint=f"There are: {', '.join(sorted(known))}"
        )
    key = f"{TEST}/{secrets.token_hex(8)}"
    write_orders(kafka, {key: OrderedTest(receiver, _now_ms())})
    is_running = worker["state"] != "no worker"
    deadline = time.monotonic() + (WAIT_S if is_running else NO_WORKER_S)
    while time.monotonic() < deadline:
        done = read_alerts(kafka).get(key)
        if isinstance(done, OrderedTest) and done.error is not None:
            write_orders(kafka, {key: None})
            if done.error:
                raise TidemillError(f"{receiver} did not get the test notice: {done.error}")
            print(f"{receiver} has the test notice")
            return
        time.sleep(0.2)
    write_orders(kafka, {key: None})
    if not is_running:
        raise TidemillError(
            "no worker evaluates alerts, so no test notice was sent",
            hint="Start one: tidemill serve with [[alert]] in its file, or tidemill alert run.",
        )
    raise TidemillError(
        f"no worker has sent the test notice within {WAIT_S:g} s",
        hint="See: tidemill worker list",
    )


@app.command(short_help="Evaluate alerts in this process.")
def run(config: Config = None, settings: Set = None, brokers: Brokers = LOCAL) -> None:
    """Evaluate the alerts of a settings file in this process, until Ctrl-C or SIGTERM.

    'tidemill dev' and 'tidemill serve' start it by themselves. It also runs in front of Apache
    Kafka: alerts.scrape then names pages of metrics. A second worker takes over from the first.
    """
    from tidemill import telemetry
    from tidemill.cli.metric_names import known_series
    from tidemill.cli.server.settings_file import load
    from tidemill.connect.alerts.definition import AlertEntry, AlertsSection, ReceiverEntry
    from tidemill.connect.alerts.worker import Config, Worker
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
    kafka = Cluster.at(brokers).kafka
    telemetry.configure("info", "auto", color=output.colored(sys.stderr))
    worker = Worker(kafka, Config(loaded.section(AlertsSection), rules, receivers, known_series()))
    until_signal(worker.run)


# --- parts ---------------------------------------------------------------------------------------


def _desk(brokers: Brokers) -> Desk:
    from tidemill.connect.alerts.desk import Desk

    return Desk(Cluster.at(brokers).kafka)


@contextlib.contextmanager
def _known() -> Iterator[None]:
    """Raise errors about what a user has named or written with the exit codes of commands."""
    from tidemill.connect.alerts.errors import MatcherError, NoAlertError

    try:
        yield
    except NoAlertError as error:
        raise output.NotFoundError(str(error), hint=error.hint) from error
    except MatcherError as error:
        raise output.UsageError(str(error), hint=error.hint) from error


def _fields(alert: Mapping[str, Any]) -> list[tuple[str, object]]:
    from tidemill.connect.alerts.desk import labels_text

    acked = alert["acknowledged"]
    more = {
        "fired": _time(alert["fired_ms"]),
        "resolved": _time(alert["resolved_ms"]),
        "silences": ", ".join(alert["silences"]),
        "acknowledged by": f"{acked['by']} {acked['comment']}".strip() if acked else "",
        "sent to": ", ".join(alert["sent_to"]),
    }
    return [
        ("alert", alert["alert"]),
        ("id", alert["id"]),
        ("state", alert["shown"]),
        ("value", f"{alert['value']:g}"),
        ("active since", _time(alert["active_ms"])),
        *((name, value) for name, value in more.items() if value),
        ("labels", labels_text(alert["labels"]) or None),
        *alert["annotations"].items(),
    ]


def _time(ms: int | None) -> str | None:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="seconds") if ms else None


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container without the user
        return ""
