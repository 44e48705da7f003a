"""Several processes write to one store at the same time, and agree about everything."""

from __future__ import annotations

import contextlib
import json
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest

from tests.eventstore.model import Model
from tests.support.broker_process import BrokerProcess
from tests.support.processes import ServerProcess
from tidemill.confluent.clients import Kafka
from tidemill.confluent.reading import read_to_end
from tidemill.eventstore import wire
from tidemill.eventstore.events import NewEvent, StreamAppend
from tidemill.eventstore.store import Store


def model_of(kafka: Kafka, topic: str) -> tuple[Model, int]:
    """Return the model behind all records of a topic, and how many it found void."""
    model, void = Model(), 0
    for _, value in read_to_end(kafka, "tests", topic, committed=False):
        commit = wire.decode(value)
        assert commit is not None
        appends = [
            StreamAppend(
                name,
                tuple(
                    NewEvent(
                        each.type,
                        each.data,
                        uuid.UUID(bytes=each.id),
                        each.metadata,
                        frozenset(each.tags),
                        each.schema,
                    )
                    for each in commit.events
                    if each.stream == name
                ),
                expected,
            )
            for name, expected in commit.streams
        ]
        void += isinstance(model.commit(appends, commit.conditions), type)
    return model, void


@pytest.mark.parametrize(("processes", "threads", "count"), [(2, 1, 150), (4, 3, 25)])
def test_racing_processes_agree_with_the_model_and_each_other(
    kafka: Kafka,
    broker: BrokerProcess,
    topic: str,
    tmp_path: Path,
    processes: int,
    threads: int,
    count: int,
) -> None:
    with contextlib.ExitStack() as stack:
        writers = [
            stack.enter_context(
                ServerProcess(
                    f"writer {number}",
                    [
                        *(sys.executable, "-m", "tests.eventstore.writers"),
                        *(broker.bootstrap, topic, f"w{number}", str(1000 * number)),
                        *(str(count), str(threads), str(processes)),
                    ],
                    tmp_path / f"log-{number}",
                    stdout_path=tmp_path / f"out-{number}",
                )
            )
            for number in range(processes)
        ]
        assert [each.wait(120) for each in writers] == [0] * processes
    lines: list[dict[str, Any]] = []
    for number in range(processes):
        lines += map(json.loads, (tmp_path / f"out-{number}").read_text().splitlines())

    model, void = model_of(kafka, topic)
    assert void > 0, "nothing raced"
    heads = [each["head"] for each in lines if "head" in each]
    with Store(kafka, topic) as store:
        head = store.head()
        assert heads == [[head.position, head.hash.hex()]] * processes
        everything = list(store.read_all())
    assert [(each.stream, each.id) for each in everything] == [
        (stream, event.id) for stream, event in model.events
    ]
    accepted = [each for each in lines if "ids" in each]
    assert len(accepted) == processes * threads * count
    for each in accepted:
        found = everything[each["positions"][0] - 1 : each["positions"][1] - 1]
        assert [str(event.id) for event in found] == each["ids"]
        for event in found:
            assert event.version <= each["versions"][event.stream]
    told = {event_id for each in accepted for event_id in each["ids"]}
    assert told == {str(each.id) for each in everything if each.type == "moved"}
