"""The fraud detection: its rules find what a second computation finds, whatever happens."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest

from tests.examples.running import EXAMPLES, load, output_of, run
from tests.support.apache_kafka import ApacheKafka
from tests.support.apache_kafka_tests import apache, on_apache_kafka  # noqa: F401
from tests.support.spark_cluster import SparkCluster

RULES = EXAMPLES / "fraud" / "rules.py"
BROKEN = {
    "amount": ("known.cents > AT.limit_cents", "known.cents < -AT.limit_cents"),
    "velocity": ('"1 day", "12 hours"', '"1 day", "1 day"'),
    "small-then-large": ('pairs(payments, "1 minute")', 'pairs(payments, "10 seconds")'),
    "travel": ("* AT.speed_kmh", "* (AT.speed_kmh + 30)"),
    "terminal": (">= AT.chargebacks", ">= AT.chargebacks - 1"),
}
"""A mistake of each rule."""
SMALL = ("--days", "25", "--cards", "60")


@pytest.fixture(scope="module")
def fraud() -> Any:
    return load("fraud")


def test_each_broken_rule_is_found_and_no_rule_knows_the_labels(fraud: Any) -> None:
    bank = fraud.generate(1, days=25, cards=60, terminals=60)
    assert bank == fraud.generate(1, days=25, cards=60, terminals=60)
    assert {each.fraud for each in bank.payments} == {"", *fraud.SCENARIOS}
    second = fraud.reference.Reference(bank, [each[:2] for each in fraud.chargebacks_of(bank)])
    at = fraud.rules.AT
    expected = second.alerts(at)
    found = [alert for alerts in expected.values() for alert in alerts]
    fraud.check_alerts(found, expected)
    with pytest.raises(SystemExit, match="is there 2 times"):
        fraud.check_alerts([*found, found[0]], expected)
    for rule, changed in {
        "amount": at._replace(times_usual=2),
        "velocity": at._replace(day_times_usual=10),
        "small-then-large": at._replace(large_cents=15_000),
        "travel": at._replace(speed_kmh=900),
        "terminal": at._replace(chargebacks=1),
    }.items():
        wrong = [alert for alerts in second.alerts(changed).values() for alert in alerts]
        with pytest.raises(SystemExit) as error:
            fraud.check_alerts(wrong, expected)
        assert re.findall(r"rule ([\w-]+):", str(error.value)) == [rule]
    for name in ("rules", "reference"):
        tree = ast.parse((EXAMPLES / "fraud" / f"{name}.py").read_text())
        modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        assert "payments" not in {str(module).split(".")[0] for module in modules}


def test_a_case_is_opened_once_and_again_after_it_was_closed() -> None:
    desk = load("fraud", "desk")
    case, opened = desk.Case(), desk.Opened("c")
    added = desk.AlertAdded("travel:p1:p2", "p1")
    assert case.report("c", "travel:p1:p2", "p1") == [opened, added]
    case.apply_opened(opened)
    case.apply_added(added)
    assert case.report("c", "a", "p") == [desk.AlertAdded("a", "p")]
    assert case.decide({"p1"}) == desk.Closed("fraud")
    assert case.decide({"p2"}) == desk.Closed("false alarm")
    case.apply_closed(desk.Closed("fraud"))
    assert case.report("c", "a", "p")[0] == opened


@pytest.mark.nightly
def test_the_thresholds_are_those_of_seed_1(fraud: Any) -> None:
    assert fraud.fit() == (fraud.rules.AT, fraud.BASELINE_CENTS)


@pytest.mark.nightly
@pytest.mark.crash
def test_kills_of_the_pipeline_and_of_the_broker_change_nothing(tmp_path: Path) -> None:
    picture = tmp_path / "fraud.svg"
    printed = output_of("fraud", "--kill", "--picture", str(picture))
    assert "All checks passed." in printed
    rows = re.findall(r"^ +(\d) .+ ([\d.]+) +([\d.]+) +([\d.]+) +([\d.]+)", printed, re.MULTILINE)
    assert [row[0] for row in rows] == ["1", "2", "3", "4", "5", "6"]
    assert all(float(recall) > 2 * float(base) for _, _, recall, _, base in rows)
    assert picture.read_text().startswith("<svg")


@pytest.mark.nightly
def test_a_run_with_broken_rules_names_each_of_them(tmp_path: Path) -> None:
    text = RULES.read_text()
    for right, wrong in BROKEN.values():
        assert text.count(right) == 1, right
        text = text.replace(right, wrong)
    (tmp_path / "rules.py").write_text(text)
    done = run("fraud", *SMALL, "--rules", str(tmp_path / "rules.py"), folder=tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert re.findall(r"error: rule ([\w-]+):", done.stderr) == list(BROKEN)


@on_apache_kafka
def test_it_runs_against_apache_kafka(apache: ApacheKafka, tmp_path: Path) -> None:  # noqa: F811
    picture = str(tmp_path / "fraud.svg")
    printed = output_of("fraud", "-b", apache.bootstrap, *SMALL, "--picture", picture)
    assert "All checks passed." in printed


@pytest.mark.nightly
def test_it_runs_on_a_spark_cluster(tmp_path: Path) -> None:
    with SparkCluster(tmp_path / "cluster", memory="1200m") as cluster:
        picture = str(tmp_path / "fraud.svg")
        printed = output_of("fraud", "--master", cluster.url, *SMALL, "--picture", picture)
    assert "All checks passed." in printed
