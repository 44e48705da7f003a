"""The floor server is one that clients can produce to, and syncs what they send if it is to."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench.targets import floor
from confluent_kafka import KafkaError, Message, Producer

from bench import wire

TIMEOUT_S = 60


@pytest.mark.parametrize("sync", [False, True])
def test_it_answers_every_request(tmp_path: Path, sync: bool) -> None:
    batch = wire.make_batch(100)
    with floor(tmp_path, sync=sync) as target, wire.connect(target.address) as sock:
        target.create_topic("t", 3)
        frames = [wire.produce_frame("t", partition, batch, -1) for partition in range(3)]
        wire.pipelined(sock, frames, 100, 30)
        written = (tmp_path / "floor").read_bytes() if sync else b""
    assert written == (batch * 100 if sync else b"")


def test_it_takes_a_request_to_many_partitions(tmp_path: Path) -> None:
    batch = wire.make_batch(100)
    with floor(tmp_path, sync=True) as target, wire.connect(target.address) as sock:
        target.create_topic("t", 100)
        frame = wire.produce_frame_to("t", range(100), batch, -1)
        wire.pipelined(sock, [frame], 3, 1)
        assert (tmp_path / "floor").read_bytes() == batch * 300


def test_librdkafka_can_produce_to_it(tmp_path: Path) -> None:
    delivered: list[KafkaError | None] = []

    def note(error: KafkaError | None, _: Message) -> None:
        delivered.append(error)

    with floor(tmp_path, sync=True) as target:
        producer = Producer({"bootstrap.servers": target.bootstrap, "linger.ms": 0})
        for _ in range(50):
            producer.produce("t", b"value", on_delivery=note)
        left = producer.flush(TIMEOUT_S)
    assert (left, delivered) == (0, [None] * 50)
