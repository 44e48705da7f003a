"""Reading topics with librdkafka."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.invalid_headers import send_with_invalid_name
from tidemill.confluent import reading
from tidemill.confluent.clients import Kafka
from tidemill.confluent.reading import headers_of, messages_to_end
from tidemill.connect.alerts import store
from tidemill.connect.base import board
from tidemill.errors import UnreachableError


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    with BrokerProcess(tmp_path_factory.mktemp("broker")) as broker:
        yield Kafka(broker.bootstrap)


def test_what_reads_a_topic_to_its_end_gives_up_if_nothing_comes(
    kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "READ_S", 0.2)
    for module in (reading, store, board):  # the end of a topic of which records are held back
        monkeypatch.setattr(module, "end_offsets", lambda kafka, client, topic: {(topic, 0): 1})
    alerts, follower = store.AlertTopic(kafka), board.BoardFollower(kafka, "board")
    try:
        reads: dict[str, Callable[[], object]] = {
            "tidemill.alerts": lambda: [*alerts.read()],
            "board": follower.catch_up,
            "new": lambda: reading.read_table(kafka, "tests", "new"),
        }
        for topic, read in reads.items():
            kafka.create_topics("tests", {topic: (1, {})})
            with pytest.raises(UnreachableError, match=f"topic {topic} can't be read to its end"):
                read()
    finally:
        alerts.close()
        follower.close()


def test_a_header_whose_name_is_not_utf_8_does_not_stop_a_reader(kafka: Kafka) -> None:
    kafka.create_topics("tests", {"invalid-name": (1, {})})
    send_with_invalid_name(kafka, "invalid-name")
    for _ in range(20):  # also when Python has specialised the calls
        (message,) = messages_to_end(kafka, "tests", "invalid-name")
        assert (message.value(), headers_of(message)) == (b"named", [])
