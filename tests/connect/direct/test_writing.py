"""Writing what a bridge brings in."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from tests.support.ports import reserve_port
from tidemill.confluent.clients import Kafka
from tidemill.connect.direct.contract import Place
from tidemill.connect.direct.errors import BridgeError
from tidemill.connect.direct.writing import Writer


def _writer() -> Writer:
    return Writer(Place("b", "topic", 1, Kafka(f"127.0.0.1:{reserve_port()}")))


async def test_a_producer_that_can_t_continue_is_an_error_and_not_refused_records() -> None:
    """Each call of a producer in this state fails with the same code."""

    class Failed:
        def produce(self, *_: Any, **__: Any) -> None:
            raise KafkaException(KafkaError(KafkaError._FATAL))

    writer = _writer()
    writer._producer = Failed()
    with pytest.raises(BridgeError):
        await writer.put("topic", None, b"v", 0)
    assert writer.refused == 0


async def test_many_records_leave_the_loop_to_others() -> None:
    writer, turns = _writer(), 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(others())
    for _ in range(5000):
        await writer.put("topic", None, b"v", 0)
    task.cancel()
    assert turns >= 10
    writer._producer.purge()
