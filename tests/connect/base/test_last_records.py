"""What a process that ends still has to write: it waits for a broker that answers, and no other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.broker_process import BrokerProcess
from tidemill.confluent.clients import Kafka, flush_while_reachable


class Counted:
    """A producer whose waits are counted."""

    def __init__(self, producer: Any) -> None:
        self._producer = producer
        self.waits = 0

    def flush(self, timeout_s: float) -> int:
        self.waits += 1
        return int(self._producer.flush(timeout_s))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)


def test_a_broker_that_is_gone_is_not_waited_for(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        producer: Any = Counted(Kafka(broker.bootstrap).producer("test"))
        for last in (False, True):
            producer.produce("t", b"value")
            if last:
                broker.kill()
            assert flush_while_reachable(producer, "t", 60) is not last
    assert producer.waits == 2  # one for each: 60 s would be 60
