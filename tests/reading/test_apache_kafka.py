"""The login of the native source and sink at Apache Kafka, with each mechanism."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AdminClient,
    NewTopic,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from tests.reading.batches import offsets
from tests.support.apache_kafka import ApacheKafka
from tests.support.processes import skip_if_missing
from tidemill.errors import UnreachableError
from tidemill.kafka_client.settings import MECHANISMS
from tidemill.reading import own
from tidemill.reading.plan import FetchPlan
from tidemill.reading.ranges import OffsetRange
from tidemill.spark.sinks.topic.delivery.at_least_once import (
    SWITCH,
    close_idle_producers,
    write_rows,
)

pytestmark = [
    pytest.mark.apache_kafka,
    pytest.mark.skipif(
        not os.environ.get("APACHE_KAFKA_TESTS"),
        reason="only with APACHE_KAFKA_TESTS=1 in the environment",
    ),
]

_MODULES = "org.apache.kafka.common.security"
_LISTENER = "listener.name.plaintext"
_PROPERTIES = {
    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:SASL_PLAINTEXT",
    "sasl.enabled.mechanisms": ",".join(MECHANISMS),
    "sasl.mechanism.inter.broker.protocol": "PLAIN",
    f"{_LISTENER}.plain.sasl.jaas.config": f"{_MODULES}.plain.PlainLoginModule required "
    'username="alice" password="secret" user_alice="secret";',
    **{
        f"{_LISTENER}.{name}.sasl.jaas.config": f"{_MODULES}.scram.ScramLoginModule required;"
        for name in ("scram-sha-256", "scram-sha-512")
    },
}


def login(kafka: ApacheKafka, mechanism: str, password: str = "secret") -> dict[str, str]:
    return {
        "bootstrap.servers": kafka.bootstrap,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": "alice",
        "sasl.password": password,
    }


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheKafka]:
    with skip_if_missing():
        server = ApacheKafka(tmp_path_factory.mktemp("kafka"), properties=_PROPERTIES)
    with server:
        plain: dict[str, Any] = dict(login(server, "PLAIN"))
        admin = AdminClient(plain)
        admin.create_topics([NewTopic("t", 1, 1)])["t"].result(60)
        for each in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
            credential = ScramCredentialInfo(each, 8192)
            change = UserScramCredentialUpsertion("alice", credential, b"secret")
            admin.alter_user_scram_credentials([change])["alice"].result(60)
        producer = Producer(plain)
        for _ in range(10):
            producer.produce("t", b"v")
        assert producer.flush(60) == 0
        yield server


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_login(kafka: ApacheKafka, mechanism: str) -> None:
    wanted = OffsetRange("t", 0, 0, 10)
    batches = own.start(wanted, FetchPlan(login(kafka, mechanism), timeout_ms=20_000))
    assert batches is not None
    assert offsets(list(batches)) == list(range(10))
    batches = own.start(wanted, FetchPlan(login(kafka, mechanism, "wrong")))
    assert batches is not None
    with pytest.raises(UnreachableError, match=r"rejected the connection: .*uthentication failed"):
        list(batches)
    own.close_idle_clients()


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_the_sink_logs_in(kafka: ApacheKafka, mechanism: str) -> None:
    topic = f"sink-{mechanism.lower()}"
    rows = [pa.record_batch({"value": [b"1", b"2"]})]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(SWITCH, "native")
        assert write_rows(rows, topic, login(kafka, mechanism)) == 2
        with pytest.raises(UnreachableError, match=r"rejected the connection: .*uthentication"):
            write_rows(rows, topic, login(kafka, mechanism, "wrong"))
    close_idle_producers()
