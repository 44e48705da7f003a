"""Personalisation: what is served is what the ratings say, as of any time."""

from __future__ import annotations

import random
import re
import threading
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from tests.examples.running import load, output_of, run
from tests.support.apache_kafka import ApacheKafka
from tests.support.apache_kafka_tests import apache, on_apache_kafka  # noqa: F401
from tests.support.broker_process import BrokerProcess
from tests.support.spark_cluster import SparkCluster

GENERATED = ("--generated", "5", "--every", "10")


def follow(ratings: list[Any], views: dict[str, Any], broken: str | None = None) -> Any:
    """Return the views of a follower that has read the topics, in any order."""
    found = load("personalisation", "follower").Views(broken)
    rows = [("movies", {"item": item, "title": f"Item {item}"}) for item in range(1, 121)]
    rows += [("ratings", {"user": r.user, "item": r.item, "at": r.at}) for r in ratings]
    for name, names in (("coviewed", ("until", "item", "other")), ("trending", ("until", "item"))):
        for key, count in views[name].items():
            rows.append((name, {**dict(zip(names, key, strict=True)), "count": count}))
    random.Random(1).shuffle(rows)
    for topic, row in rows:
        found.take(topic, row)
    return found


def test_a_follower_recommends_as_of_any_time_and_a_broken_rule_is_found() -> None:
    program = load("personalisation")
    ratings, _ = load("personalisation", "ratings").generated(3, users=80, items=120, days=12)
    views = program.expected_views(ratings)
    by_item = defaultdict(list)
    for (end, item, other), count in views["coviewed"].items():
        by_item[item].append((end, other, count))
        by_item[other].append((end, item, count))
    asked = ratings[len(ratings) // 3 :: 40]
    expected = [program.expected_list(views, by_item, ratings, r.user, r.at) for r in asked]
    assert sum(len(found) == 10 for found in expected) > len(asked) / 2
    follower = follow(ratings, views)
    assert [follower.recommend(r.user, r.at, 10) for r in asked] == expected
    for broken in load("personalisation", "follower").BREAKABLE:
        follower = follow(ratings, views, broken)
        assert [follower.recommend(r.user, r.at, 10) for r in asked] != expected, broken


def test_what_happens_later_changes_no_answer() -> None:
    program = load("personalisation")
    ratings, _ = load("personalisation", "ratings").generated(4, users=80, items=120, days=12)
    at = ratings[len(ratings) // 2].at
    known = [rating for rating in ratings if rating.at <= at]
    then, now = (follow(some, program.expected_views(some)) for some in (known, ratings))
    for user in range(1, 81):
        assert then.recommend(user, at, 10) == now.recommend(user, at, 10)


def test_a_follower_answers_whatever_the_topics_and_a_request_say() -> None:
    views = load("personalisation", "follower").Views()
    assert views.recommend(1, 900_000_000, 10) == []
    views.take("ratings", {"user": 1, "item": 5000, "at": 1})  # no title, and in no pair
    views.take("trending", {"until": 900_028_800, "item": 7, "count": 2})
    assert views.recommend(1, 900_030_000, 10) == [7]
    assert views.recommend(2**40, 900_030_000, 10) == [7]


@pytest.mark.nightly
@pytest.mark.spark
def test_a_run_checks_itself_and_survives_a_kill_of_its_pipeline(tmp_path: Path) -> None:
    picture = tmp_path / "hit-rate.svg"
    printed = output_of("personalisation", *GENERATED, "--kills", "2", "--picture", str(picture))
    assert printed.endswith("All checks passed.\n")
    rates = dict(re.findall(r"^  (recommended|most popular so far) +([\d.]+)%", printed, re.M))
    assert float(rates["recommended"]) > 2 * float(rates["most popular so far"])
    assert "recommended" in picture.read_text()


@pytest.mark.nightly
@pytest.mark.spark
@pytest.mark.parametrize("broken", ["within", "week", "restart", "seen", "future"])
def test_a_run_with_a_broken_rule_fails(broken: str, tmp_path: Path) -> None:
    done = run("personalisation", *GENERATED, "--break", broken, folder=tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert re.search(r"error: \d+ rows differ", done.stderr)


@pytest.mark.nightly
@pytest.mark.spark
@pytest.mark.crash
def test_a_broker_that_is_killed_changes_nothing(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:

        def kill() -> None:
            broker.kill()
            broker.start()

        killing = threading.Timer(random.uniform(8, 30), kill)
        killing.start()
        picture = str(tmp_path / "hit-rate.svg")
        printed = output_of(
            "personalisation", "-b", broker.bootstrap, *GENERATED, "--picture", picture
        )
        killing.join()
    assert printed.endswith("All checks passed.\n")


@pytest.mark.nightly
@pytest.mark.spark
def test_it_runs_on_a_spark_cluster(tmp_path: Path) -> None:
    with SparkCluster(tmp_path / "cluster", workers=1, cores=2, memory="1500m") as cluster:
        picture = str(tmp_path / "hit-rate.svg")
        printed = output_of(
            "personalisation", "--master", cluster.url, *GENERATED, "--picture", picture
        )
    assert printed.endswith("All checks passed.\n")


@pytest.mark.spark
@on_apache_kafka
def test_it_runs_against_apache_kafka(apache: ApacheKafka, tmp_path: Path) -> None:  # noqa: F811
    picture = str(tmp_path / "hit-rate.svg")
    printed = output_of("personalisation", "-b", apache.bootstrap, *GENERATED, "--picture", picture)
    assert printed.endswith("All checks passed.\n")
