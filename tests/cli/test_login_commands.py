"""Every command takes every setting of TLS and SASL: also those that librdkafka does not ask."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.cli.conftest import CommandLine
from tests.support.broker_process import BrokerProcess
from tests.support.certificates import self_signed
from tests.support.librdkafka import ready_for_id
from tests.support.ports import reserve_port
from tidemill.cli.broker_requests import requests_to
from tidemill.cli.client import Cluster
from tidemill.cli.output import UsageError
from tidemill.errors import UnreachableError
from tidemill.kafka_client.errors import UnsupportedSettingError
from tidemill.kafka_client.settings import Address

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl program")

USER, PASSWORD = "alice", "secret"
MECHANISMS = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
LOGIN = {"sasl.username": USER, "sasl.password": PASSWORD}
PLAIN = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", **LOGIN}


CONFIG = """
[kafka]
mechanisms = "PLAIN, SCRAM-SHA-256, SCRAM-SHA-512"
[logins]
users_file = "users"
[listeners.with_tls]
protocol = "SASL_SSL"
port = {port}
tls_cert = "cert.pem"
tls_key = "key.pem"
tls_client_auth = "required"
tls_client_ca = "cert.pem"
"""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker with logins, a topic, an open transaction, and a group that has read."""
    folder = tmp_path_factory.mktemp("broker")
    self_signed(folder)
    (folder / "users").write_text(f"{USER}:{PASSWORD}\n")
    (folder / "users").chmod(0o600)
    (folder / "tidemill.toml").write_text(CONFIG.format(port=reserve_port()))
    with BrokerProcess(folder) as found:
        kafka: dict[str, Any] = {"bootstrap.servers": found.bootstrap, "log_level": "0", **PLAIN}
        admin = AdminClient({**kafka})
        admin.create_topics([NewTopic("t", 1)])["t"].result(60)
        producer = Producer({**kafka, "transactional.id": "shop"})
        ready_for_id(producer).init_transactions(60)
        producer.begin_transaction()
        producer.produce("t", b"v")
        assert producer.flush(60) == 0
        reader = Consumer({**kafka, "group.id": "readers"})
        reader.commit(offsets=[TopicPartition("t", 0, 1)], asynchronous=False)
        reader.close()
        yield found
        producer.abort_transaction(60)


def properties(given: dict[str, str]) -> list[str]:
    return [part for name, value in given.items() for part in ("-X", f"{name}={value}")]


COMMANDS = {
    "transaction list": "shop",
    "transaction describe shop": "ongoing",
    "transaction find": "shop",
    "transaction abort shop --dry-run": "would abort shop",
    "group list": "readers",
    "group describe readers": "readers",
    "group delete readers --topic t --dry-run": "would delete",
    "topic describe t": "size",
}


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("command", COMMANDS)
def test_commands_log_in(
    broker: BrokerProcess, tmp_path: Path, command: str, mechanism: str
) -> None:
    given = {**PLAIN, "sasl.mechanism": mechanism}
    done = CommandLine(broker.bootstrap, tmp_path).ok(*command.split(), *properties(given))
    assert COMMANDS[command] in done.lower()


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_wrong_password_is_named_and_not_tried_again(
    broker: BrokerProcess, tmp_path: Path, mechanism: str
) -> None:
    given = {**PLAIN, "sasl.mechanism": mechanism, "sasl.password": "guess"}
    done = CommandLine(broker.bootstrap, tmp_path).run("topic", "list", *properties(given))
    assert done.returncode == 5
    assert "invalid credentials" in done.stderr
    assert "sasl.password" in done.stderr
    assert "guess" not in done.stderr


def test_requests_that_librdkafka_lacks_log_in(broker: BrokerProcess) -> None:
    for mechanism in MECHANISMS:
        cluster = Cluster(broker.bootstrap, {**PLAIN, "sasl.mechanism": mechanism})
        with requests_to(cluster) as requests:
            here = Address("127.0.0.1", broker.port)
            assert requests.ask(here, 77, (1, 1), {"group_ids": ["g"]}).groups
        wrong = {**cluster.properties, "sasl.password": "guess"}
        with requests_to(Cluster(broker.bootstrap, wrong)) as requests:
            with pytest.raises(UnreachableError, match="rejects the connection") as failed:
                requests.version(here, 77, (1, 1))
            assert "sasl.password" in failed.value.hint


def test_a_login_within_tls(broker: BrokerProcess) -> None:
    certificate, key = broker.folder / "cert.pem", broker.folder / "key.pem"
    here = Address("127.0.0.1", int(broker.ready_event["with_tls"].rpartition(":")[2]))
    given = {**PLAIN, "security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-512"}
    given |= {"ssl.ca.location": str(certificate)}
    of_client = [
        {"ssl.certificate.location": str(certificate), "ssl.key.location": str(key)},
        {"ssl.certificate.pem": certificate.read_text(), "ssl.key.pem": key.read_text()},
    ]
    for more in of_client:
        with requests_to(Cluster(str(here), given | more)) as requests:
            assert requests.ask(here, 66, (0, 2), {}).transaction_states
    untrusting = {name: value for name, value in given.items() if "ssl.ca" not in name}
    for incomplete, said in ((given, "no broker answers"), (untrusting, "certificate")):
        with (
            requests_to(Cluster(str(here), incomplete)) as requests,
            pytest.raises(UnreachableError, match=said),
        ):
            requests.ask(here, 66, (0, 2), {})


@pytest.mark.parametrize("mechanism", ["GSSAPI", "OAUTHBEARER"])
def test_what_only_librdkafka_has_is_refused_with_the_way_out(mechanism: str) -> None:
    with pytest.raises(UnsupportedSettingError, match=mechanism) as refused:
        requests_to(Cluster("localhost:1", {**PLAIN, "sasl.mechanism": mechanism}))
    assert "SCRAM-SHA-512" in refused.value.hint


def test_certificates_that_are_not_there_are_a_mistake_of_the_user(tmp_path: Path) -> None:
    given = {"security.protocol": "ssl", "ssl.ca.location": str(tmp_path / "nowhere")}
    with pytest.raises(UsageError, match="TLS can't be set up"):
        requests_to(Cluster("localhost:1", given))
