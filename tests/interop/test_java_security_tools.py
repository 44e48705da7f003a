"""Apache Kafka's tools for rules, users and quotas against a broker with logins.

They need its jars: see ``apache_kafka``.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.apache_kafka import find_java, find_tools_classpath
from tests.support.broker_process import BrokerProcess
from tests.support.processes import skip_if_missing

pytestmark = pytest.mark.spark  # each starts a JVM

ACLS = "org.apache.kafka.tools.AclCommand"
CONFIGS = "kafka.admin.ConfigCommand"
CLIENT_DEFAULT = ("--entity-type", "clients", "--entity-default")
TOPICS = "org.apache.kafka.tools.TopicCommand"


class Tools:
    """Runs a tool as a user, in its own process."""

    def __init__(self, bootstrap: str, folder: Path) -> None:
        flags = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
        self._java = [find_java(), *flags, "-cp", find_tools_classpath()]
        self._bootstrap = bootstrap
        self._folder = folder

    def run(self, tool: str, *arguments: str, user: str = "root", password: str = "secret") -> str:
        """Return what the tool prints, on both outputs."""
        module = "org.apache.kafka.common.security.scram.ScramLoginModule"
        file = self._folder / f"{user}.properties"
        file.write_text(
            "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-512\n"
            f'sasl.jaas.config={module} required username="{user}" password="{password}";\n'
            "request.timeout.ms=20000\ndefault.api.timeout.ms=20000\n"
        )
        command = [*self._java, tool, "--bootstrap-server", self._bootstrap]
        done = subprocess.run(
            [*command, "--command-config", str(file), *arguments],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        return done.stdout + done.stderr


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tools]:
    folder = tmp_path_factory.mktemp("tools")
    settings = {"kafka.mechanisms": "SCRAM-SHA-512"}
    env = {"TIDEMILL_ADMIN": "root:secret"}
    with (
        skip_if_missing(),
        BrokerProcess(folder / "broker", settings=settings, env=env) as broker,
    ):
        yield Tools(broker.bootstrap, folder)


@pytest.mark.nightly
def test_rules_are_added_listed_and_removed(tools: Tools) -> None:
    added = tools.run(
        *(ACLS, "--add", "--allow-principal", "User:shop", "--operation", "Read"),
        *("--operation", "Describe", "--topic", "orders", "--group", "g"),
    )
    assert "(principal=User:shop, host=*, operation=READ, permissionType=ALLOW)" in added
    tools.run(
        *(ACLS, "--add", "--deny-principal", "User:*", "--deny-host", "10.9.9.9"),
        *("--operation", "All", "--topic", "ord", "--resource-pattern-type", "prefixed"),
    )
    matching = tools.run(ACLS, "--list", "--topic", "orders", "--resource-pattern-type", "match")
    assert "patternType=PREFIXED" in matching
    assert "permissionType=DENY" in matching
    assert "operation=READ, permissionType=ALLOW" in matching
    tools.run(ACLS, "--remove", "--topic", "orders", "--force")
    listed = tools.run(ACLS, "--list")
    assert "resourceType=GROUP, name=g" in listed
    assert "name=orders" not in listed
    tools.run(ACLS, "--remove", "--group", "g", "--force")


@pytest.mark.nightly  # each call of a tool starts a JVM
def test_users_of_scram_are_set_described_and_deleted(tools: Tools) -> None:
    user = ("--entity-type", "users", "--entity-name", "ann")
    tools.run(
        *(CONFIGS, *user, "--alter"),
        *("--add-config", "SCRAM-SHA-512=[iterations=8192,password=p],SCRAM-SHA-256=[password=p]"),
    )
    shown = tools.run(CONFIGS, *user, "--describe")
    assert "SCRAM-SHA-512=iterations=8192" in shown
    assert "SCRAM-SHA-256=iterations=4096" in shown
    assert "Error" not in tools.run(TOPICS, "--list", user="ann", password="p")
    refused = tools.run(TOPICS, "--create", "--topic", "t", user="ann", password="p")
    assert "User:ann is not allowed to create topic 't'" in refused
    tools.run(CONFIGS, *user, "--alter", "--delete-config", "SCRAM-SHA-512,SCRAM-SHA-256")
    assert "SCRAM" not in tools.run(CONFIGS, *user, "--describe")


@pytest.mark.nightly
def test_quotas_are_set_described_and_deleted(tools: Tools) -> None:
    for entity in (
        ("--entity-type", "users", "--entity-name", "bob"),
        ("--entity-type", "users", "--entity-default"),
        ("--entity-type", "clients", "--entity-name", "app"),
        (*("--entity-type", "users", "--entity-name", "bob"), *CLIENT_DEFAULT),
    ):
        quotas = "producer_byte_rate=1048576,request_percentage=50"
        tools.run(CONFIGS, *entity, "--alter", "--add-config", quotas)
        shown = tools.run(CONFIGS, *entity, "--describe")
        assert "producer_byte_rate=1048576.0" in shown
        assert "request_percentage=50.0" in shown
        keys = "producer_byte_rate,request_percentage"
        tools.run(CONFIGS, *entity, "--alter", "--delete-config", keys)
        assert "producer_byte_rate" not in tools.run(CONFIGS, *entity, "--describe")
    address = ("--entity-type", "ips", "--entity-name", "10.9.9.9")
    tools.run(CONFIGS, *address, "--alter", "--add-config", "connection_creation_rate=5")
    assert "connection_creation_rate=5.0" in tools.run(CONFIGS, *address, "--describe")
