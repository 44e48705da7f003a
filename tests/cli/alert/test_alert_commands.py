"""``tidemill alert`` over what a worker has stored. The guide runs the commands with a worker."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import CommandLine
from tests.support.broker_process import BrokerProcess
from tidemill.cli import output
from tidemill.cli.alert.commands import WAIT_S, warn_of_problems
from tidemill.confluent.clients import Kafka
from tidemill.connect.alerts.model import Ack, Alert, Silence, Stored, WorkerState
from tidemill.connect.alerts.store import read_alerts, write_orders

pytestmark = pytest.mark.slow


@pytest.fixture
def kafka(broker: BrokerProcess) -> Iterator[Kafka]:
    """A broker with two alerts and a worker. All is deleted behind the test."""
    made, now_ms = Kafka(broker.bootstrap), time.time_ns() // 1_000_000
    firing = Alert("lag", "firing", {"alertname": "lag", "group": "a"}, 61, now_ms, now_ms)
    ended = Alert("disk", "resolved", {"alertname": "disk"}, 1, now_ms, now_ms, now_ms)
    rules = {"lag": {"source": "m", "measure": "value", "series": 0, "error": "broken"}}
    records: dict[str, Stored | None] = {
        f"alert/{firing.id}": firing,
        f"alert/{ended.id}": ended,
        "worker/state": WorkerState(now_ms, "here:1", 1000, rules, {"ops": {"kind": "webhook"}}),
    }
    write_orders(made, records)
    yield made
    write_orders(made, dict.fromkeys(read_alerts(made)))


def test_alerts_are_listed_and_shown(tidemill: CommandLine, kafka: Kafka) -> None:
    listed = tidemill.run("alert", "list")
    assert "group=a" in listed.stdout
    assert "disk" not in listed.stdout
    assert listed.stderr == "warning: alert lag: broken.\n"
    assert "disk" in tidemill.ok("alert", "list", "--all")
    (alert,) = tidemill.json("alert", "list")["alerts"]
    assert (alert["alert"], alert["state"], alert["value"]) == ("lag", "firing", 61.0)
    assert "measure  value\nseries   0\n" in tidemill.ok("alert", "show", "lag")
    assert "labels        group=a" in tidemill.ok("alert", "show", alert["id"][:8])
    assert tidemill.json("alert", "show", alert["id"])["alerts"] == [alert]


def test_alerts_are_acknowledged_and_silenced(tidemill: CommandLine, kafka: Kafka) -> None:
    (alert,) = tidemill.json("alert", "list")["alerts"]
    said = tidemill.ok("alert", "ack", alert["id"], "--by", "ada", "--comment", "on it")
    assert said == f"acknowledged lag {alert['id']}\n"
    acked = read_alerts(kafka)[f"ack/{alert['id']}"]
    assert isinstance(acked, Ack)
    assert (acked.by, acked.active_ms) == ("ada", alert["active_ms"])
    assert "acknowledged by  ada on it" in tidemill.ok("alert", "show", alert["id"])
    made = tidemill.json("alert", "silence", "group=a*", "--for", "1h30m")
    assert made["firing"] == 1
    silence = read_alerts(kafka)[f"silence/{made['id']}"]
    assert isinstance(silence, Silence)
    assert silence.ends_ms - silence.starts_ms == 5_400_000
    assert "group=a*" in tidemill.ok("alert", "list")
    assert tidemill.ok("alert", "unsilence", made["id"]) == f"ended silence {made['id']}\n"
    assert f"silence/{made['id']}" not in read_alerts(kafka)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["show", "nothing"], output.NOT_FOUND, "there is no alert nothing"),
        (["ack", "nothing"], output.NOT_FOUND, "there is no alert nothing"),
        (["unsilence", "nothing"], output.NOT_FOUND, "there is no silence nothing"),
        (["test", "nothing"], output.NOT_FOUND, "there is no receiver nothing"),
        (["silence", "nonsense"], output.USAGE, "invalid matcher 'nonsense'"),
        (["silence", "a=~b"], output.USAGE, "invalid matcher"),
        (["silence", "a=b", "--for", "soon"], output.USAGE, "invalid duration 'soon'"),
        (["silence", "a=b", "--for", "999999999d"], output.USAGE, "invalid duration"),
    ],
)
def test_what_is_wrong_is_said(
    tidemill: CommandLine, kafka: Kafka, arguments: list[str], code: int, said: str
) -> None:
    done = tidemill.run("alert", *arguments)
    assert done.returncode == code
    assert said in done.stderr


@pytest.mark.parametrize("age_ms", [None, 60_000], ids=["none", "silent"])
def test_a_test_notice_without_a_worker_fails_soon(
    tidemill: CommandLine, kafka: Kafka, age_ms: int | None
) -> None:
    state = None
    if age_ms is not None:
        at_ms = time.time_ns() // 1_000_000 - age_ms
        state = WorkerState(at_ms, "here:1", 1000, {}, {"ops": {"kind": "webhook"}})
    write_orders(kafka, {"worker/state": state})
    began = time.monotonic()
    done = tidemill.run("alert", "test", "ops")
    assert time.monotonic() - began < WAIT_S / 2
    assert "no worker evaluates alerts" in done.stderr
    assert "hint: Start one" in done.stderr
    assert done.returncode == output.FAILURE
    assert not [key for key in read_alerts(kafka) if key.startswith("test/")]


def test_an_alert_that_has_ended_can_not_be_acknowledged(
    tidemill: CommandLine, kafka: Kafka
) -> None:
    found = tidemill.json("alert", "list", "--all")["alerts"]
    (ended,) = (each["id"] for each in found if each["state"] == "resolved")
    assert "has ended" in tidemill.run("alert", "ack", ended).stderr


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "the settings file has no [[alert]]"),
        (
            '[[alert]]\nname = "x"\nmetric = "m"\nabove = 1\nreceivers = ["ops"]\n',
            "[[alert]] x: receivers: there is no [[alert_receiver]] ops",
        ),
    ],
)
def test_the_worker_refuses_a_file_without_sense(
    tidemill: CommandLine, tmp_path: Path, text: str, said: str
) -> None:
    file = tmp_path / "tidemill.toml"
    file.write_text(text)
    done = tidemill.run("alert", "run", "--config", str(file))
    assert said in done.stderr
    assert done.returncode == output.USAGE


def test_the_problems_of_many_rules_do_not_fill_the_screen(
    capsys: pytest.CaptureFixture[str],
) -> None:
    broken = {"error": "no process has a metric m", "hint": "See docs/metrics.md."}
    warn_of_problems({"fine": {}, **{f"r{n:04}": broken for n in range(1020)}})
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 21
    assert lines[0] == "warning: alert r0000: no process has a metric m. See docs/metrics.md."
    assert lines[-1].startswith("warning: 1,000 more rules have problems")
