"""Clients of librdkafka end as soon as nothing uses them, also after an error."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer

from tests.support.broker_process import BrokerProcess
from tidemill.cli.client import Cluster
from tidemill.confluent.clients import Kafka
from tidemill.confluent.errors import LastError
from tidemill.confluent.pooling import make_client
from tidemill.errors import OptionError, SettingsError, TidemillError


def test_a_refused_question_leaves_no_client_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that asks again and again would take all connections of the broker."""
    made: list[weakref.ref[Any]] = []
    admin = Kafka.admin

    def remembered(self: Kafka, client: str) -> Any:
        found = admin(self, client)
        made.append(weakref.ref(found))
        return found

    monkeypatch.setattr(Kafka, "admin", remembered)
    with BrokerProcess(tmp_path) as broker:
        kafka = Kafka(broker.bootstrap)
        invalid, missing = "no topic", ("missing", 0)
        gc.disable()
        try:
            assert kafka.partitions("tests", invalid) == []
            assert kafka.topic_id("tests", invalid) is None
            with pytest.raises(TidemillError):
                kafka.topic_configs("tests", invalid)
            with pytest.raises(TidemillError):
                kafka.end_offsets("tests", [missing])
            with pytest.raises(TidemillError):
                kafka.create_topics("tests", {invalid: (1, {})})
            kafka.delete_topics("tests", [invalid])
            left = [number for number, each in enumerate(made) if each() is not None]
        finally:
            gc.enable()
    assert len(made) >= 6
    assert left == []


def test_a_client_that_is_given_is_asked_and_no_other_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with BrokerProcess(tmp_path) as broker:
        kafka = Kafka(broker.bootstrap)
        admin = kafka.admin("tests")
        kafka.create_topics("tests", {"given": (1, {})})
        assert not admin  # a client without requests under way is false

        monkeypatch.setattr(Kafka, "admin", None)
        places = kafka.partitions("tests", "given", admin)
        assert kafka.list_topics("tests", admin) >= {"given"}
        assert kafka.topic_id("tests", "given", admin)
        assert kafka.start_offsets("tests", places, admin) == {("given", 0): 0}
        assert kafka.end_offsets("tests", places, admin=admin) == {("given", 0): 0}


@pytest.mark.parametrize("name", ["oauth_cb", "stats_cb", "throttle_cb", "no.such.thing"])
def test_a_text_instead_of_a_function_is_an_error_of_the_settings(name: str) -> None:
    with pytest.raises(SettingsError, match=f"rejects a property: .*{name}"):
        Kafka("localhost:1", {name: "text"}).admin("tests")
    with pytest.raises(OptionError, match=f"rejects an option: .*{name}"):
        make_client(Consumer, {"group.id": "g", name: "text"}, LastError())


def test_a_reader_whose_queue_was_full_does_not_wait_for_a_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """That is librdkafka's default, whenever 100,000 messages have waited in its queue."""
    made: list[dict[str, Any]] = []
    monkeypatch.setattr(Kafka, "make", lambda _self, _kind, config: made.append(config))
    Kafka("127.0.0.1:1").consumer("tests")
    Kafka("127.0.0.1:1").consumer("tests", fetch_queue_backoff_ms=0)
    Kafka("127.0.0.1:1", {"fetch.queue.backoff.ms": "700"}).consumer("tests")
    Cluster("127.0.0.1:1").consumer("readers")
    Cluster("127.0.0.1:1", {"fetch.queue.backoff.ms": "700"}).consumer()
    assert [each["fetch.queue.backoff.ms"] for each in made] == [10, 0, "700", 10, "700"]
