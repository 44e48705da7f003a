"""The state of AMQP, from records: what a restart, a pause or another writer leaves behind."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest
from confluent_kafka import Message

from tests.gateway.management.views import queue
from tidemill.confluent.clients import Kafka
from tidemill.gateway.amqp import state as state_module
from tidemill.gateway.amqp.state import AmqpState, View

FIELDS = {key: value for key, value in queue().fields.items() if key not in ("i", "at")}


class Record:
    """A record as librdkafka gives it."""

    def __init__(self, offset: int, key: bytes, value: bytes | None) -> None:
        self._offset, self._key, self._value = offset, key, value

    def offset(self) -> int:
        return self._offset

    def key(self) -> bytes:
        return self._key

    def value(self) -> bytes | None:
        return self._value


class State:
    """A state that gets records, and asks no broker."""

    def __init__(self) -> None:
        self._state = AmqpState(Kafka("localhost:1"), Kafka("localhost:1"))
        self._offset = 0

    def take(self, key: str, value: bytes | None) -> None:
        record = Record(self._offset, key.encode(), value)
        self._state._apply(cast(Message, record))
        self._offset += 1

    def add(self, key: str, at: int, instance: str = "a", **fields: Any) -> None:
        more = FIELDS if key.startswith("queue/") else {}
        self.take(key, json.dumps({"i": instance, "at": at, **more, **fields}).encode())

    def view(self, at: int, instance: str = "a") -> View:
        """Return the view after a round."""
        self.add("node", at, instance)
        return self._state._made()


@pytest.fixture
def state() -> State:
    return State()


def test_a_tombstone_takes_a_fact_away(state: State) -> None:
    state.add("queue/a/b", 1000)
    assert list(state.view(1000).queues) == ["a/b"]
    state.take("queue/a/b", None)
    state.take("queue/never", None)
    assert not state.view(3000).queues


def test_facts_of_before_are_not_shown_until_the_broker_publishes_again(state: State) -> None:
    state.add("queue/old", 1000)
    state.view(1000)
    inner = state._state
    assert inner._has_round
    inner._is_complete = True  # as the thread notes when it has read to the end
    state.take("node", None)
    state.add("queue/new", 900_000)
    assert inner.latest is None
    assert not inner._has_round
    assert list(state.view(900_000).queues) == ["new"]
    assert inner._has_round


def test_a_restart_of_the_broker_takes_everything_of_before_away(state: State) -> None:
    state.add("queue/old", 1000)
    state.view(1000)
    state.add("queue/new", 9000, "b")
    assert list(state.view(9000, "b").queues) == ["new"]
    assert list(state.view(10_000, "b").queues) == ["new"]


def test_a_fact_that_is_not_repeated_is_gone(state: State) -> None:
    state.add("queue/q", 1000)
    assert state.view(100_000).queues
    assert not state.view(200_000).queues


def test_a_queue_that_did_not_change_has_no_rate(state: State) -> None:
    state.add("queue/q", 1000, published=0)
    state.view(1000)
    state.add("queue/q", 3000, published=10)
    assert state.view(3000).queues["q"].rates["published"] == 5.0
    assert state.view(5000).queues["q"].rates["published"] == 5.0  # of the round before
    assert state.view(9000).queues["q"].rates == {}


def test_a_view_is_made_once_for_each_round(state: State) -> None:
    first = state.view(1000)
    assert state._state._made() is first
    assert state.view(3000) is not first


def test_a_view_that_is_made_while_a_record_is_taken_is_not_kept(
    state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    state.view(1000)
    taken = state_module._rates

    def look(*given: Any) -> dict[str, float]:
        state._state._made()  # as a page does, in another thread
        return taken(*given)

    monkeypatch.setattr(state_module, "_rates", look)
    state.add("queue/q", 1000)
    assert list(state._state._made().queues) == ["q"]


@pytest.mark.parametrize(
    "value",
    [b"", b"\xff", b"[]", b"5", b"{}", b'{"at": "x"}', b'{"at": null}', b"[" * 100_000],
)
def test_a_record_of_another_writer_is_ignored(state: State, value: bytes) -> None:
    state.take("queue/q", value)
    state.take("\ud800".encode("utf-8", "surrogatepass").decode("latin-1"), value)
    assert not state.view(1000).queues


def test_a_counter_that_is_not_a_number_is_ignored(state: State) -> None:
    state.add("queue/q", 1000)
    state.add("queue/q", 3000, published="many")
    assert state.view(3000).queues["q"].fields["published"] == 5
