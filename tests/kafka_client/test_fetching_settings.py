"""Our own client for reading takes librdkafka's settings, or leaves them to librdkafka."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import Consumer

from tidemill.kafka_client.fetching import settings as native_settings
from tidemill.kafka_client.fetching.settings import ClientSettings, understand
from tidemill.kafka_client.settings import CONNECTION, Address, ConnectionSettings
from tidemill.reading.plan import DEFAULT_SETTINGS

SERVERS = {"bootstrap.servers": "a:1,b"}
SASL = {"security.protocol": "SASL_PLAINTEXT", "sasl.username": "u", "sasl.password": "p"}


def test_the_defaults() -> None:
    found = understand({**DEFAULT_SETTINGS, **SERVERS})
    servers = (Address("a", 1), Address("b", 9092))
    assert found == ClientSettings(ConnectionSettings(servers))


@pytest.mark.parametrize(
    ("given", "field", "value"),
    [
        ({"isolation.level": "READ_COMMITTED"}, "read_committed", True),
        ({"check.crcs": "FALSE"}, "check_crcs", False),
        ({"fetch.message.max.bytes": "1000"}, "partition_bytes", 1000),
        ({"max.partition.fetch.bytes": "1000"}, "partition_bytes", 1000),
        ({"security.protocol": "ssl"}, "with_tls", True),
        ({**SASL, "sasl.mechanism": "scram-sha-512"}, "mechanism", "SCRAM-SHA-512"),
        ({"queued.min.messages": "5", "group.id": "g"}, "wait_ms", 10),
    ],
)
def test_settings_that_it_understands(given: dict[str, str], field: str, value: Any) -> None:
    found = understand({**SERVERS, **given})
    assert found is not None
    assert getattr(found if hasattr(found, field) else found.connection, field) == value


def test_passwords_are_not_printed() -> None:
    given = {**SERVERS, **SASL, "sasl.mechanism": "PLAIN", "sasl.password": "very secret"}
    found = understand({**given, "ssl.key.password": "very secret"})
    assert found is not None
    connection = found.connection
    assert (connection.password, connection.key_password) == ("very secret", "very secret")
    assert "secret" not in repr(found)


@pytest.mark.parametrize(
    "given",
    [
        {"no.such.thing": "1"},
        {"check.crcs": "maybe"},
        {"fetch.wait.max.ms": "-1"},
        {"fetch.wait.max.ms": "1e3"},
        {"fetch.wait.max.ms": "9" * 5000},
        {"isolation.level": ""},
        {"queued.min.messages": "0"},
        {"bootstrap.servers": ""},
        {"bootstrap.servers": "a:99999"},
        {"client.rack": "east"},
        {"debug": "all"},
        {"fetch.message.max.bytes": "1000", "max.partition.fetch.bytes": "2000"},
        {"fetch.max.bytes": "200000000"},
        {"fetch.max.bytes": "999999"},
        {"allow.auto.create.topics": "true"},
        {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "GSSAPI"},
        {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER"},
        SASL,  # the default mechanism is GSSAPI
        {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"},
        {"ssl.certificate.location": "cert.pem"},
        {"ssl.key.pem": "x"},
        {"ssl.keystore.location": "x"},
    ],
)
def test_settings_that_are_left_to_librdkafka(given: dict[str, str]) -> None:
    assert understand({**SERVERS, **given}) is None


def test_tokens_of_a_function_need_no_librdkafka() -> None:
    def token(config: str) -> tuple[str, float]:
        return "t", 0.0

    given: dict[str, Any] = {**SERVERS, "oauth_cb": token}
    given |= {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER"}
    found = understand(given)
    assert found is not None
    assert found.connection.tokens is token
    assert understand({**given, "sasl.oauthbearer.method": "oidc"}) is None


VALUES = {
    "bootstrap.servers": "a:1",
    "isolation.level": "read_committed",
    "broker.address.family": "v4",
    "security.protocol": "plaintext",
    "ssl.cipher.suites": "ECDHE-RSA-AES128-GCM-SHA256",
    "sasl.mechanism": "PLAIN",
    "sasl.mechanisms": "PLAIN",
    "ssl.endpoint.identification.algorithm": "none",
    "client.dns.lookup": "use_all_dns_ips",
    "receive.message.max.bytes": "100000000",
    "fetch.max.bytes": "1000000",
    "allow.auto.create.topics": "false",
    "log_level": "2",
}
READS_FILES = {"ssl.ca.pem", "ssl.ca.location", "ssl.crl.location", "ssl.certificate.location"}
READS_FILES |= {"ssl.certificate.pem", "ssl.key.location", "ssl.key.pem"}
OF_CONFLUENT_KAFKA = {"oauth_cb"}
"""A function, and librdkafka sees only the tokens that it returns."""


def test_librdkafka_knows_every_setting_in_the_tables_and_accepts_its_values() -> None:
    understood = {**CONNECTION, **native_settings._UNDERSTOOD}
    parsers = {name: parse for name, (_, parse) in understood.items()}
    parsers |= native_settings._IRRELEVANT
    for name in sorted(set(parsers) - READS_FILES - OF_CONFLUENT_KAFKA):
        value = VALUES.get(name, "1000")
        try:
            parsers[name](value)
        except KeyError:  # a boolean
            value = "true"
            parsers[name](value)
        Consumer({"group.id": "g", name: value}).close()
