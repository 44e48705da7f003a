"""Apache Kafka's own admin tools against the broker. They need its jars: see ``apache_kafka``."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.interop.conftest import MakeTopic
from tests.support.apache_kafka import find_java, find_tools_classpath
from tests.support.processes import skip_if_missing

pytestmark = pytest.mark.spark  # each starts a JVM

REASSIGN = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
CONFIGS = "kafka.admin.ConfigCommand"
TOPICS = "org.apache.kafka.tools.TopicCommand"


class Tools:
    """Runs a tool in its own process."""

    def __init__(self, bootstrap: str) -> None:
        flags = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
        self._java = [find_java(), *flags, "-cp", find_tools_classpath()]
        self._bootstrap = bootstrap

    def run(self, tool: str, *arguments: str) -> str:
        """Return what the tool prints. It must succeed."""
        command = [*self._java, tool, "--bootstrap-server", self._bootstrap, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def tools(bootstrap: str) -> Tools:
    with skip_if_missing():
        return Tools(bootstrap)


def test_reassignments_are_verified_and_cancelled(
    tools: Tools, make_topic: MakeTopic, tmp_path: Path
) -> None:
    plan = tmp_path / "plan.json"
    partitions = [{"topic": make_topic(), "partition": 0, "replicas": [1]}]
    plan.write_text(json.dumps({"version": 1, "partitions": partitions}))
    for action in ("--verify", "--cancel"):
        said = tools.run(REASSIGN, "--reassignment-json-file", str(plan), action)
        assert "Clearing broker-level throttles on broker 1" in said


def test_broker_configs_are_set_shown_and_deleted_for_one_and_for_all(tools: Tools) -> None:
    one, every = ("--entity-name", "1"), ("--entity-default",)
    for entity, source in (
        (every, "DYNAMIC_DEFAULT_BROKER_CONFIG"),
        (one, "DYNAMIC_BROKER_CONFIG"),
    ):
        select = ("--entity-type", "brokers", *entity)
        tools.run(CONFIGS, *select, "--alter", "--add-config", "log.cleaner.threads=2")
        shown = tools.run(CONFIGS, *select, "--describe")
        assert f"{source}:log.cleaner.threads=2" in shown
        tools.run(CONFIGS, *select, "--alter", "--delete-config", "log.cleaner.threads")
        assert "log.cleaner.threads=2" not in tools.run(CONFIGS, *select, "--describe")


def test_a_config_given_at_creation_is_listed_also_with_its_default(
    tools: Tools, make_topic: MakeTopic
) -> None:
    topic = make_topic(**{"min.insync.replicas": "1"})
    assert "min.insync.replicas=1" in tools.run(TOPICS, "--describe", "--topic", topic)
