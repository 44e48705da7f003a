"""Our own producer reads librdkafka's settings, or leaves them to librdkafka."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import Producer

from tidemill.kafka_client.producing import settings as native_settings
from tidemill.kafka_client.producing.settings import understand
from tidemill.spark.sinks.topic.delivery.at_least_once import producer_settings
from tidemill.spark.sinks.topic.delivery.exactly_once import transactional_settings

SERVERS = {"bootstrap.servers": "a:1,b"}


def test_the_defaults_are_understood_and_match_librdkafkas() -> None:
    found = understand(producer_settings(SERVERS))
    assert found is not None
    assert (found.acks, found.idempotent, found.linger_ms, found.timeout_ms) == (
        -1,
        True,
        50,
        120_000,
    )
    assert (found.batch_bytes, found.record_bytes, found.codec) == (1_000_000, 1_000_000, 0)
    assert found.connection.client_id == "tidemill-sink"
    found = understand(transactional_settings(SERVERS, "me"))
    assert found is not None
    assert (found.transactional_id, found.transaction_timeout_ms) == ("me", 120_000)


@pytest.mark.parametrize(
    ("given", "field", "value"),
    [
        ({"acks": "1"}, "idempotent", False),
        ({"delivery.timeout.ms": "9"}, "timeout_ms", 9),
        ({"compression.codec": "zstd"}, "codec", 4),
        ({"compression.type": "LZ4"}, "codec", 3),
        ({"partitioner": "murmur2"}, "method", 0),
        ({"queue.buffering.max.ms": "7"}, "linger_ms", 7),
        ({"max.in.flight": "2"}, "in_flight", 2),
    ],
)
def test_settings_that_it_understands(given: dict[str, str], field: str, value: Any) -> None:
    assert getattr(understand(producer_settings({**SERVERS, **given})), field) == value


@pytest.mark.parametrize(
    "given",
    [
        {"no.such.thing": "1"},
        {"acks": "0"},
        {"acks": "2"},
        {"acks": "1", "enable.idempotence": "true"},
        {"max.in.flight": "6"},
        {"partitioner": "consistent_random"},
        {"partitioner": "fnv1a"},
        {"compression.type": "brotli"},
        {"compression.type": "gzip", "compression.codec": "gzip"},
        {"compression.level": "5"},
        {"message.max.bytes": "10"},
        {"linger.ms": "-1"},
        {"retries": "0"},
        {"security.protocol": "SASL_SSL"},
        {"sasl.mechanism": "OAUTHBEARER", "security.protocol": "SASL_PLAINTEXT"},
    ],
)
def test_settings_that_are_left_to_librdkafka(given: dict[str, str]) -> None:
    assert understand(producer_settings({**SERVERS, **given})) is None


def test_without_a_partitioner_librdkafkas_default_applies() -> None:
    assert understand(SERVERS) is None


def test_a_transaction_that_is_shorter_than_a_delivery_is_left_to_librdkafka() -> None:
    given = {**producer_settings(SERVERS), "transactional.id": "x"}
    assert understand({**given, "transaction.timeout.ms": "119999"}) is None


VALUES = {
    "acks": "all",
    "enable.idempotence": "true",
    "allow.auto.create.topics": "false",
    "compression.codec": "lz4",
    "compression.type": "lz4",
    "compression.level": "-1",
    "partitioner": "murmur2",
    "client.dns.lookup": "use_all_dns_ips",
    "enable.gapless.guarantee": "false",
    "metadata.recovery.strategy": "none",
    "transactional.id": "x",
    "transaction.timeout.ms": "300000",
    "log_level": "2",
    "max.in.flight": "1000",
    "max.in.flight.requests.per.connection": "1000",
}


def test_librdkafka_knows_every_setting_in_the_tables_and_accepts_its_values() -> None:
    parsers = {name: parse for name, (_, parse) in native_settings._UNDERSTOOD.items()}
    parsers |= native_settings._IRRELEVANT
    for name in sorted(parsers):
        value = VALUES.get(name, "1000")
        try:
            parsers[name](value)
        except KeyError:  # a boolean
            value = "true"
            parsers[name](value)
        Producer({name: value})
