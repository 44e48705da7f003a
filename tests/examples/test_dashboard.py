"""The dashboard: its tables are those of the list of events, whatever happens meanwhile."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.examples.running import load, output_of, program, run
from tests.support import environment
from tests.support.apache_kafka import ApacheKafka
from tests.support.apache_kafka_tests import apache, on_apache_kafka  # noqa: F401
from tests.support.broker_process import BrokerProcess

BEGIN = datetime(2026, 3, 6, 17, tzinfo=UTC)
PLACES = [(topic, number) for topic in ("shop.visits", "shop.orders") for number in (0, 1)]
Partitions = dict[tuple[str, int], list[tuple[dict[str, Any], datetime]]]


def in_partitions(events: list[Any]) -> Partitions:
    found: Partitions = {place: [] for place in PLACES}
    for event in events:
        found[event.topic, int(event.visitor[1:]) % 2].append((event.value(), event.arrives))
    return found


def counted(partitions: Partitions, broken: str | None, seed: int) -> dict[str, Any]:
    """Run the board over partitions at different speeds, and kill it a few times.

    A transaction has the rows that changed and the positions, as in the pipeline.
    """
    pipeline, dice = load("dashboard", "pipeline"), random.Random(seed)
    committed: dict[tuple[str, str], Any] = {}
    positions = dict.fromkeys(PLACES, 0)
    saved = dict(positions)
    kills = 0
    board = pipeline.Board(PLACES, broken)
    while any(positions[place] < len(partitions[place]) for place in PLACES):
        for place in dice.sample(PLACES, 2):
            some = partitions[place][positions[place] :][
                : dice.randrange(100 if place[0] == "shop.visits" else 10)
            ]
            for event, sent in some:
                board.take(place, event, sent)
            positions[place] += len(some)
        if kills < 3 and dice.random() < 0.1:
            kills += 1  # what was not committed is lost, and read again
            board = pipeline.Board(PLACES, broken)
            for (table, key), row in committed.items():
                board.tables[table][key] = row_copy(row)
            positions = dict(saved) if broken != "restart" else dict.fromkeys(PLACES, 0)
            continue
        for table, key, row in board.changes():
            committed[table, key] = row_copy(row)
            if row is None:
                del committed[table, key]
        saved = dict(positions)
    tables: dict[str, Any] = {"minutes": {}, "products": {}, "funnel": {}, "visitors": {}}
    for (table, key), row in committed.items():
        tables[table][key] = row
    return tables


def row_copy(row: Any) -> Any:
    return json.loads(json.dumps(row))


def test_the_tables_are_right_in_any_order_and_a_broken_rule_is_found() -> None:
    evening = load("dashboard", "shop").evening(7, BEGIN)
    events = [event for event in evening if int(event.visitor[1:]) % 10 < 2]
    partitions = in_partitions(events)
    expected = load("dashboard").expected_tables(events)
    for seed in range(2):
        tables = counted(partitions, None, seed)
        assert {name: tables[name] for name in expected} == expected
    assert len(tables["visitors"]) < len({event.visitor for event in events}) * 0.7
    for broken in load("dashboard", "pipeline").BREAKABLE:
        tables = counted(partitions, broken, 1)
        assert {name: tables[name] for name in expected} != expected, broken


@pytest.mark.nightly
def test_a_run_checks_itself_and_survives_kills_of_its_pipeline() -> None:
    printed = output_of("dashboard", "--kills", "3")
    assert "the pipeline was started" in printed
    assert printed.endswith("All checks passed.\n")


@pytest.mark.nightly
@pytest.mark.parametrize("broken", ["late", "twice", "join", "restart"])
def test_a_run_with_a_broken_rule_fails(broken: str) -> None:
    done = run("dashboard", "--seconds", "12", "--break", broken)
    assert done.returncode == 1, done.stdout + done.stderr
    assert re.search(r"error: \d+ rows differ", done.stderr)


@pytest.mark.nightly
@pytest.mark.crash
def test_a_broker_that_is_killed_changes_nothing(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:

        def kill() -> None:
            broker.kill()
            broker.start()

        killing = threading.Timer(random.uniform(4, 18), kill)
        killing.start()
        printed = output_of("dashboard", "-b", broker.bootstrap, "--seconds", "20")
        killing.join()
    assert printed.endswith("All checks passed.\n")


@on_apache_kafka
def test_it_runs_against_apache_kafka(apache: ApacheKafka) -> None:  # noqa: F811
    printed = output_of("dashboard", "-b", apache.bootstrap, "--seconds", "15")
    assert printed.endswith("All checks passed.\n")


WATCH = """
window.shown = new Set();
const revenue = document.getElementById("revenue");
const note = () => shown.add(revenue.textContent);
new MutationObserver(note).observe(revenue, {childList: true, characterData: true, subtree: true});
"""
"""Collects the sums that the page shows."""


@pytest.mark.nightly
def test_the_page_moves_and_shows_the_totals() -> None:
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    started = subprocess.Popen(
        [sys.executable, str(program("dashboard")), "--seconds", "40", "--keep"],
        stdout=subprocess.PIPE,
        text=True,
        env=environment.without_settings(),
    )
    assert started.stdout is not None
    try:
        url = re.search(r"http://\S+/", started.stdout.readline())
        assert url is not None
        with sync_api.sync_playwright() as playwright:
            browser = playwright.chromium.launch(
                executable_path="/usr/bin/chromium", args=["--no-sandbox"]
            )
            page = browser.new_page()
            page.goto(url[0])
            page.evaluate(WATCH)
            page.wait_for_function("document.querySelectorAll('#minutes rect').length > 20")
            printed = "".join(iter(started.stdout.readline, "All checks passed.\n"))
            total = re.search(r"Revenue +([\d,]+)\.", printed)
            assert total is not None
            page.wait_for_function(
                f"document.getElementById('revenue').textContent === '€{total[1]}'"
            )
            assert len(page.evaluate("[...shown]")) > 2
            assert page.inner_text("#state") == "live"
            browser.close()
    finally:
        children = psutil.Process(started.pid).children(recursive=True)
        started.terminate()
        started.wait(60)
        started.stdout.close()
    assert len(children) >= 3  # a broker, a gateway, a pipeline
    assert psutil.wait_procs(children, 30)[1] == []
