"""Routing: what each type of exchange matches, and how exchanges are connected."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.effort import examples
from tidemill.log.errors import FormatVersionError, InvalidRecordError
from tidemill.state.outcome import StateRecord
from tidemill.state.routing import commands
from tidemill.state.routing.arguments import parse_policy
from tidemill.state.routing.errors import (
    InvalidQueueArgumentError,
    InvalidQueueNameError,
    QueueInUseError,
    UnknownExchangeError,
)
from tidemill.state.routing.matching import TopicMatcher
from tidemill.state.routing.table import RoutingTable
from tidemill.state.routing.types import (
    Binding,
    Destination,
    ExchangeSpec,
    QueueDefinition,
)


class World:
    """A table, and the records that made it."""

    def __init__(self) -> None:
        self.table = RoutingTable()
        self.records: dict[bytes, bytes] = {}

    def apply(self, records: list[StateRecord]) -> None:
        for record in records:
            self.table.replay(record.key, record.value)
            if record.value is None:
                self.records.pop(record.key, None)
            else:
                self.records[record.key] = record.value

    def exchange(self, name: str, type_: str, **options: Any) -> None:
        self.apply(commands.declare_exchange(self.table, name, ExchangeSpec(type_, **options)))

    def queue(self, name: str) -> None:
        policy = parse_policy(name, {})
        definition = QueueDefinition(name, name, True, True, False, False, {}, policy)
        self.apply(commands.declare_queue(definition))

    def bind(
        self,
        source: str,
        target: str,
        key: str = "",
        arguments: dict[str, object] | None = None,
        kind: str = "queue",
    ) -> None:
        binding = Binding(source, Destination(kind, target), key, arguments or {})
        self.apply(commands.bind(self.table, binding))

    def route(
        self, exchange: str, key: str = "", headers: dict[str, object] | None = None
    ) -> list[str]:
        source = None if headers is None else lambda: headers
        return sorted(self.table.route(exchange, [key], source).queues)


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.parametrize(
    ("pattern", "key", "matches"),
    [
        ("a.b", "a.b", True),
        ("a.b", "a.c", False),
        ("a.*", "a.b", True),
        ("a.*", "a", False),
        ("a.*", "a.b.c", False),
        ("#", "", True),
        ("#", "a.b.c", True),
        ("a.#", "a", True),
        ("a.#", "a.b.c", True),
        ("#.c", "c", True),
        ("#.c", "a.b.c", True),
        ("a.#.c", "a.c", True),
        ("a.#.c", "a.x.y.c", True),
        ("a.#.*.c", "a.c", False),
        ("a.#.*.c", "a.x.c", True),
        ("#.#", "a", True),
        ("*", "", True),
        ("", "", True),
        ("", "a", False),
        ("a..b", "a..b", True),
        ("a.*.b", "a..b", True),
        ("*", "#", True),
        ("a", "#", False),
    ],
)
def test_a_topic_pattern(world: World, pattern: str, key: str, matches: bool) -> None:
    world.exchange("t", "topic")
    world.queue("q")
    world.bind("t", "q", pattern)
    assert world.route("t", key) == (["q"] if matches else [])


words = st.lists(st.sampled_from(["a", "b", "*", "#"]), min_size=1, max_size=5).map(".".join)


@given(patterns=st.lists(words, max_size=6), key=st.lists(st.sampled_from(["a", "b"]), max_size=6))
@settings(max_examples=examples(200), deadline=None)
def test_patterns_match_as_regular_expressions_do(patterns: list[str], key: list[str]) -> None:
    """The model: ``#`` is any number of words, each with its dot."""
    matcher = TopicMatcher()
    bindings = [
        Binding("t", Destination("queue", f"{at}"), pattern, {})
        for at, pattern in enumerate(patterns)
    ]
    for binding in bindings:
        matcher.add(binding)

    def model(pattern: str) -> bool:
        parts = {"*": r"[^.]+\.", "#": r"(?:[^.]+\.)*"}
        text = "".join(parts.get(word, word + r"\.") for word in pattern.split("."))
        return re.fullmatch(text, "".join(word + "." for word in key)) is not None

    if key:
        found = {each.name for each in matcher.match(".".join(key), None)}
        assert found == {f"{at}" for at, pattern in enumerate(patterns) if model(pattern)}
    for binding in bindings:
        matcher.remove(binding)
    assert not list(matcher.match("a.b", None))
    assert not matcher._root.children


@pytest.mark.parametrize(
    ("wanted", "headers", "matches"),
    [
        ({"a": 1, "b": "x"}, {"a": 1, "b": "x", "c": 2}, True),
        ({"a": 1, "b": "x"}, {"a": 1}, False),
        ({"x-match": "any", "a": 1, "b": "x"}, {"a": 1}, True),
        ({"x-match": "any", "a": 1}, {"a": 2}, False),
        ({"x-match": "all"}, {}, True),
        ({"x-match": "any"}, {"a": 1}, False),
        ({"a": None}, {"a": "anything"}, True),
        ({"a": None}, {}, False),
        ({"a": 1}, {"a": True}, False),
        ({"x-a": 1}, {"x-a": 2}, True),
        ({"x-match": "all-with-x", "x-a": 1}, {"x-a": 2}, False),
        ({"x-match": "any-with-x", "x-a": 1}, {"x-a": 1}, True),
        ({"a": b"\x00"}, {"a": b"\x00"}, True),
    ],
)
def test_headers(wanted: dict[str, object], headers: dict[str, object], matches: bool) -> None:
    world = World()
    world.exchange("h", "headers")
    world.queue("q")
    world.bind("h", "q", arguments=wanted)
    assert world.route("h", "ignored", headers) == (["q"] if matches else [])
    assert not world.table.route("h", [""], lambda: headers).is_fixed


def test_each_queue_gets_a_message_once_however_many_ways_lead_to_it(world: World) -> None:
    world.queue("q")
    world.queue("other")
    for name in ("a", "b", "c"):
        world.exchange(name, "fanout")
    world.bind("a", "b", kind="exchange")
    world.bind("b", "c", kind="exchange")
    world.bind("c", "a", kind="exchange")  # a circle
    for source in ("a", "b", "c"):
        world.bind(source, "q")
    world.bind("c", "other")
    assert world.route("a") == ["other", "q"]
    assert world.route("b") == ["other", "q"]


def test_an_alternate_exchange_gets_what_no_binding_matches(world: World) -> None:
    world.exchange("rest", "fanout")
    world.exchange("d", "direct", arguments={"alternate-exchange": "rest"})
    world.queue("known")
    world.queue("unknown")
    world.bind("d", "known", "k")
    world.bind("rest", "unknown")
    assert world.route("d", "k") == ["known"]
    assert world.route("d", "x") == ["unknown"]
    world.exchange("lost", "direct", arguments={"alternate-exchange": "missing"})
    assert world.route("lost", "x") == []


def test_a_table_is_the_same_after_its_records_are_replayed(world: World) -> None:
    world.exchange("h", "headers", internal=True)
    world.queue("q")
    world.bind("h", "q", arguments={"a": b"\xff", "b": [1, {"c": None}], "d": 1.5})
    again = RoutingTable()
    for key in sorted(world.records, key=lambda each: b"binding" in each):
        again.replay(key, world.records[key])
    assert again.exchanges == world.table.exchanges
    assert again.queues == world.table.queues
    assert again.bindings() == world.table.bindings()


def test_a_deleted_exchange_takes_its_bindings_with_it(world: World) -> None:
    world.exchange("a", "direct")
    world.exchange("b", "direct")
    world.queue("q")
    world.bind("a", "q", "k")
    world.bind("b", "a", "k", kind="exchange")
    with pytest.raises(QueueInUseError):
        commands.delete_exchange(world.table, "a", if_unused=True)
    world.apply(commands.delete_exchange(world.table, "a", if_unused=False))
    assert world.table.bindings() == []
    world.exchange("a", "direct")
    assert world.route("a", "k") == []
    with pytest.raises(UnknownExchangeError):
        world.bind("missing", "q")


def test_the_same_binding_twice_is_one(world: World) -> None:
    world.queue("q")
    for _ in range(2):
        world.bind("amq.direct", "q", "k")
    assert len(world.table.bindings()) == 1
    world.bind("amq.direct", "q", "other")
    binding = Binding("amq.direct", Destination("queue", "q"), "k", {})
    world.apply(commands.unbind(world.table, binding))
    assert world.route("amq.direct", "k") == []
    assert world.route("amq.direct", "other") == ["q"]
    assert commands.unbind(world.table, binding) == []


def test_invalid_names_and_arguments_are_refused() -> None:
    with pytest.raises(InvalidQueueNameError):
        commands.check_name("queue", "é" * 128)
    with pytest.raises(InvalidQueueNameError):
        commands.check_name("queue", "\udcff")
    world = World()
    with pytest.raises(InvalidQueueArgumentError):
        world.exchange("x", "direct", arguments={"alternate-exchange": 1})
    world.exchange("h", "headers")
    with pytest.raises(InvalidQueueArgumentError):
        world.bind("h", "q", arguments={"x-match": "most"})


@pytest.mark.parametrize(
    ("key", "value", "error"),
    [
        (b"not json", b"{}", InvalidRecordError),
        (b'["planet", "x"]', b"{}", InvalidRecordError),
        (b'["exchange", "x"]', b"[]", InvalidRecordError),
        (b'["exchange", "x"]', b'{"version": 0}', InvalidRecordError),
        (b'["queue", "x"]', b'{"version": 9}', FormatVersionError),
        (b'["binding", "x"]', b'{"version": 0, "source": "a"}', InvalidRecordError),
    ],
)
def test_records_that_can_t_be_read(key: bytes, value: bytes, error: type[Exception]) -> None:
    with pytest.raises(error):
        RoutingTable().replay(key, value)
