"""The monitoring: rules find what a second computation finds, and people get to know of it."""

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

WATCH = EXAMPLES / "monitoring" / "watch.py"
SHORT = ("--days", "1")


@pytest.fixture(scope="module")
def monitoring() -> Any:
    return load("monitoring")


def test_faults_are_noticed_and_each_broken_rule_is_found(
    monitoring: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    service = monitoring.Service(1)
    minutes = [minute for each in service.run() for minute in each]
    usual, at = service.usual(), monitoring.watch.AT
    states = monitoring.expected.alerts(minutes, usual, at)
    alarms = monitoring.alarms_of(states, service.minutes)
    false = monitoring.judge(service, alarms, monitoring.People())
    printed = capsys.readouterr().out
    assert {fault.kind for fault in service.faults} == set(monitoring.RULE_OF)
    assert all(f"\n{kind}" in printed for kind in monitoring.RULE_OF)
    assert 0 < len(false) < 10
    monitoring.draw(tmp_path / "m.svg", service, alarms, false)
    assert (tmp_path / "m.svg").read_text().count("<title>") >= len(alarms) - len(false)

    monitoring.check_same("alerts", list(states.items()), states)
    with pytest.raises(SystemExit, match="1 alerts are there twice"):
        monitoring.check_same("alerts", [*states.items(), next(iter(states.items()))], states)
    changed = type(at)(2, 250, 80, 8, 60, 5)
    wrong = monitoring.expected.alerts(minutes, usual, changed)
    for rule in monitoring.RULE_OF.values():
        found = [(key, (wrong if key[0] == rule else states)[key]) for key in states]
        with pytest.raises(SystemExit, match=rf"alerts differ, for example \('{rule}'"):
            monitoring.check_same("alerts", found, states)
    sessions = monitoring.expected.incidents(minutes, at)
    assert sessions != monitoring.expected.incidents(minutes, at._replace(incident_lines=6))
    blind = [each for each in alarms if each[0] != "disk-full"]
    with pytest.raises(SystemExit, match="no alert for disk full"):
        monitoring.judge(service, blind, monitoring.People())
    for name in ("watch", "expected"):
        tree = ast.parse((EXAMPLES / "monitoring" / f"{name}.py").read_text())
        modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        assert "service" not in {str(module).split(".")[0] for module in modules}


@pytest.mark.nightly
@pytest.mark.crash
def test_kills_of_the_pipeline_the_alert_worker_and_the_broker_change_nothing(
    tmp_path: Path,
) -> None:
    picture = tmp_path / "monitoring.svg"
    printed = output_of("monitoring", "--kill", "--picture", str(picture))
    assert printed.count("is killed at") == 3
    assert "All checks passed." in printed
    assert len(re.findall(r" (?:sent|silenced)$", printed, re.MULTILINE)) == 6
    assert picture.read_text().startswith("<svg")


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("right", "wrong", "error"),
    [
        ("found.starts >= AT.starts", "found.starts > AT.starts", "alerts differ"),
        ('session("at", "5 minutes")', 'session("at", "6 minutes")', "incidents differ"),
        ("> AT.latency_ms", "> 5000", "high latency .* is firing"),
    ],
)
def test_a_run_with_a_broken_rule_fails(right: str, wrong: str, error: str, tmp_path: Path) -> None:
    text = WATCH.read_text()
    assert text.count(right) == 1
    (tmp_path / "watch.py").write_text(text.replace(right, wrong))
    rules = ("--rules", str(tmp_path / "watch.py"))
    done = run("monitoring", *SHORT, *rules, folder=tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert re.search(rf"error: .*{error}", done.stderr)


@on_apache_kafka
def test_it_runs_against_apache_kafka(apache: ApacheKafka, tmp_path: Path) -> None:  # noqa: F811
    picture = str(tmp_path / "monitoring.svg")
    printed = output_of("monitoring", "-b", apache.bootstrap, *SHORT, "--picture", picture)
    assert "All checks passed." in printed


@pytest.mark.nightly
def test_it_runs_on_a_spark_cluster(tmp_path: Path) -> None:
    with SparkCluster(tmp_path / "cluster", memory="1200m") as cluster:
        picture = str(tmp_path / "monitoring.svg")
        printed = output_of("monitoring", "--master", cluster.url, *SHORT, "--picture", picture)
    assert "All checks passed." in printed
