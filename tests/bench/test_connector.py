"""Spark's Kafka connector is found or reported as missing; one version is named everywhere."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench.connector import FLINK, SPARK, VERSION, Connector, ConnectorNotFoundError, find_connector

from bench import connector
from tidemill.spark.base.explain import hint_for

ROOT = Path(__file__).parents[2]
COORDINATES = f"org.apache.spark:spark-sql-kafka-0-10_2.13:{VERSION}"


def test_the_hint_and_the_guide_name_the_version_that_is_measured() -> None:
    assert COORDINATES in hint_for("[KAFKA_DATA_SOURCE_NOT_ENABLED] Failed to find kafka.")
    assert COORDINATES in (ROOT / "docs/guide-pipelines.md").read_text()


@pytest.mark.parametrize("wanted", [SPARK, FLINK])
def test_jars_in_the_cache_are_used(wanted: Connector, tmp_path: Path) -> None:
    jars = [tmp_path / f"{name}-1.2.3.jar" for name in wanted.artifacts]
    for jar in jars:
        jar.touch()

    assert find_connector(wanted, tmp_path) == jars


def test_without_jars_and_without_maven_an_error_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / f"{SPARK.artifacts[0]}-1.jar").touch()  # one of four is not enough

    with pytest.raises(ConnectorNotFoundError, match="there is no mvn"):
        find_connector(SPARK, tmp_path)


def test_an_error_of_maven_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mvn").write_text("#!/bin/sh\necho '[ERROR] no such artifact'\nexit 1\n")
    (tmp_path / "mvn").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")

    with pytest.raises(ConnectorNotFoundError, match="no such artifact"):
        find_connector(SPARK, tmp_path / "jars")


def test_the_cache_is_outside_of_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)

    assert not connector.cache_folder().is_relative_to(ROOT)
