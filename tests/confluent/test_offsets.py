"""Offsets that librdkafka does not know are errors, and not offsets."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import OFFSET_INVALID, TopicPartition

from tests.support.ports import reserve_port
from tidemill.confluent.clients import Kafka
from tidemill.errors import UnreachableError


class Admin:
    """An admin client whose broker ends amid the request."""

    def _done(self, value: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(value)
        return future

    def describe_cluster(self, **_: object) -> Future[Any]:
        return self._done(None)

    def list_offsets(self, asked: dict[TopicPartition, Any], **_: object) -> dict[Any, Future[Any]]:
        return {place: self._done(SimpleNamespace(offset=OFFSET_INVALID)) for place in asked}


def test_the_end_of_a_partition_whose_broker_ends_is_an_error() -> None:
    kafka = Kafka(f"127.0.0.1:{reserve_port()}")
    admin: Any = Admin()
    with pytest.raises(UnreachableError, match="find offsets"):
        kafka.end_offsets("tests", [("topic", 0)], admin=admin)
