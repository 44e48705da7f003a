"""The pipelines and programs in ``examples/`` run as they are, and write what they say."""

from __future__ import annotations

import json
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer

from tests.support.broker_process import BrokerProcess
from tidemill.cli.pipeline.file import load_pipeline

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_the_examples_write_what_they_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tidemill.spark.pipelines.runner import Runner, RunOptions

    monkeypatch.chdir(tmp_path)
    with BrokerProcess(tmp_path / "broker") as broker:
        send(broker.bootstrap, ORDERS, READINGS, CUSTOMERS)
        options = RunOptions(broker.bootstrap, tmp_path / "pipelines", until_caught_up=True)
        for name in ("orders", "machines"):
            statuses = Runner(load_pipeline(EXAMPLES / f"{name}.py"), options).run()
            assert {status.state for status in statuses} == {"done"}, statuses
        revenue = [json.loads(value) for value in values(broker.bootstrap, "revenue", 2)]
        dead = values(broker.bootstrap, "orders.dlq", 1)
    figures = {(r.get("country"), r["orders"], r["cents"]) for r in revenue}
    assert figures == {("NL", 2, 350), (None, 1, 999)}
    assert {r["window"]["start"] for r in revenue} == {"2026-03-01T12:00:00.000Z"}
    assert dead == [b'{"id": 4, "cents": "a lot"}']
    with sqlite3.connect(tmp_path / "machines.db") as db:
        rows = db.execute("SELECT machine, degrees FROM hottest ORDER BY since").fetchall()
    assert rows == [("boiler", 79.0), ("boiler", 75.0)]


def order(number: int, customer: str, cents: int, clock: str) -> tuple[str, None, bytes]:
    value = {"id": number, "customer": customer, "cents": cents, "at": f"2026-03-01T{clock}Z"}
    return "orders", None, json.dumps(value).encode()


def reading(degrees: float, clock: str) -> tuple[str, None, bytes]:
    value = {"machine": "boiler", "degrees": degrees, "at": f"2026-03-01T{clock}Z"}
    return "readings", None, json.dumps(value).encode()


CUSTOMERS = [("customers", "ada", b'{"customer": "ada", "country": "NL"}')]
ORDERS = [
    order(1, "ada", 100, "12:00:01"),
    order(2, "ada", 250, "12:00:59"),
    order(3, "unknown", 999, "12:00:30"),
    ("orders", None, b'{"id": 4, "cents": "a lot"}'),
    order(5, "ada", 1, "12:05:00"),
]
READINGS = [reading(71, "12:01:00"), reading(79, "12:05:59"), reading(99, "12:08:00")]
READINGS += [reading(75, "12:10:00")]


def send(bootstrap: str, *records: Iterable[tuple[str, str | None, bytes]]) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for each in records:
        for topic, key, value in each:
            producer.produce(topic, value, key)
    assert producer.flush(60) == 0


def values(bootstrap: str, topic: str, count: int) -> list[Any]:
    """The first values of a topic, committed ones only."""
    settings = {"group.id": "test", "auto.offset.reset": "earliest"}
    consumer = Consumer({"bootstrap.servers": bootstrap, **settings})
    try:
        consumer.subscribe([topic])
        return [message.value() for message in consumer.consume(count, 120)]
    finally:
        consumer.close()


def output_of(name: str, *arguments: str) -> str:
    """Run the program of an example, and return what it prints."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name / f"{name}.py"), *arguments],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.nightly
def test_buffer_keeps_throttle_holds_back_and_drop_loses() -> None:
    printed = output_of("backpressure", "--records", "4000", "--limit", "400", "--rate", "2000")
    rows = re.findall(r"^(\w+) +([\d,]+) +([\d,]+) +([\d.]+) s", printed, re.MULTILINE)
    numbers = {name: [float(each.replace(",", "")) for each in rest] for name, *rest in rows}
    (lost, behind, _), buffered_s = numbers["buffer"], numbers["buffer"][2]
    assert lost == 0
    assert behind > 400
    lost, behind, produced_s = numbers["throttle"]
    assert lost == 0
    assert behind < numbers["buffer"][1]
    assert produced_s > buffered_s
    assert numbers["drop"][0] > 0


@pytest.mark.nightly
def test_direct_writes_differ_and_capture_agrees(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "broker") as broker:
        printed = output_of("dual_writes", "-b", broker.bootstrap)
    direct, captured = (int(each) for each in re.findall(r"(\d+) of 100 articles", printed))
    assert direct > 0
    assert captured == 0
    delay = re.search(r"p50 (\d+) ms, p99 (\d+) ms", printed)
    assert delay is not None
    assert int(delay[1]) < 5_000, printed


@pytest.mark.nightly
def test_a_bare_post_loses_events_and_a_webhook_does_not() -> None:
    printed = output_of("webhooks", "--events", "90")
    rows = re.findall(r"^(bare POST|webhook) +(\d+) +(\d+) +(\d+) +(\d+)$", printed, re.MULTILINE)
    (bare, arrived, lost, _, _), (hook, *found) = rows
    assert (bare, hook) == ("bare POST", "webhook")
    assert int(arrived) + int(lost) == 90
    assert int(lost) > 0
    assert (found[0], found[1], found[3]) == ("90", "0", "0")


@pytest.mark.nightly
def test_bare_multicast_loses_messages_and_a_stream_of_a_log_does_not() -> None:
    printed = output_of("direct", "--messages", "300")
    rows = re.findall(r"^(bare UDP|with a log) +(\d+) +(\d+)  (yes|no)$", printed, re.MULTILINE)
    (bare, _, lost, _), (log, *found) = rows
    assert (bare, log) == ("bare UDP", "with a log")
    assert int(lost) > 0
    assert found == ["300", "0", "yes"]
    assert "StatsD: 300 counted by the program" in printed


@pytest.mark.slow
def test_the_bank_checks_its_figures() -> None:
    printed = output_of("bank")
    assert "paid, once" in printed
    assert printed.endswith("All checks passed.\n")


@pytest.mark.slow
def test_the_shop_checks_its_figures(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "broker") as broker:
        printed = output_of("cart", "-b", broker.bootstrap)
    assert "1 can use it" in printed
    assert printed.endswith("All checks passed.\n")
