"""Offsets of partitions, asked for with a client that has just been made."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.slow_link import slow_link
from tidemill.confluent.clients import Kafka

DELAY_S = 0.03
"""A client is connected after one round trip, and knows the brokers after two."""
LIBRDKAFKA_ASKS_AGAIN_S = 3.0


def test_offsets_come_at_once_although_librdkafka_closes_its_first_connection_amid_the_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = Kafka.admin

    def made(kafka: Kafka, client: str) -> Any:
        admin = make(kafka, client)
        time.sleep(1.5 * 2 * DELAY_S)  # as a thread that does not get to run
        return admin

    with slow_link(DELAY_S) as link:
        there = {"kafka.advertised_host": "127.0.0.1", "kafka.advertised_port": str(link.port)}
        with BrokerProcess(tmp_path, settings=there) as broker:
            link.target = broker.port
            Kafka(broker.bootstrap).create_topics("test", {"t": (1, {})})
            monkeypatch.setattr(Kafka, "admin", made)
            kafka = Kafka(f"127.0.0.1:{link.port}")
            took = LIBRDKAFKA_ASKS_AGAIN_S
            for _ in range(3):  # a busy machine is possibly slow once
                began = time.monotonic()
                assert kafka.end_offsets("test", [("t", 0)]) == {("t", 0): 0}
                took = min(took, time.monotonic() - began)
                if took < LIBRDKAFKA_ASKS_AGAIN_S:
                    break
            assert took < LIBRDKAFKA_ASKS_AGAIN_S
