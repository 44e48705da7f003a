"""Commits as bytes: what is written is read, and nothing else raises."""

from __future__ import annotations

import struct

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.eventstore.strategies import commits
from tests.support.effort import examples
from tidemill.eventstore import wire
from tidemill.eventstore.events import Condition, NewEvent, StreamAppend

EVENT = NewEvent("paid", b"data", metadata=b"m", tags=frozenset("xy"))
SAMPLE = wire.encode(
    wire.propose(
        bytes(range(16)),
        [
            StreamAppend(
                "order-1", (NewEvent("paid", b"data", metadata=b"m", tags=frozenset("xy")),), 3
            )
        ],
        seen=(17, bytes(32)),
        keys=("k1",),
    )
)
HEADER = orjson.loads(SAMPLE[24 : 24 + struct.unpack(">I", SAMPLE[20:24])[0]])


@settings(max_examples=examples(100))
@given(commits(), st.integers(0, 2**61), st.lists(st.sampled_from("abc"), max_size=2))
def test_what_is_encoded_is_decoded(
    arguments: tuple[list[StreamAppend], list[Condition]], position: int, keys: list[str]
) -> None:
    commit = wire.propose(b"i" * 16, *arguments, (position, bytes(32)), keys=tuple(keys))
    value = wire.encode(commit)
    assert wire.decode(value) == commit
    assert wire.commit_id(value) == commit.id


@settings(max_examples=examples(200))
@given(st.binary(max_size=100))
def test_any_bytes_are_foreign_and_raise_nothing(value: bytes) -> None:
    wire.commit_id(value)
    assert wire.decode(value) is None
    assert wire.decode(wire.MAGIC + b"\1" + value) is None


@settings(max_examples=examples(300))
@given(st.integers(0, len(SAMPLE) - 1), st.integers(1, 255), st.integers(0, len(SAMPLE)))
def test_damaged_bytes_raise_nothing(place: int, change: int, end: int) -> None:
    damaged = bytearray(SAMPLE)
    damaged[place] ^= change
    wire.decode(bytes(damaged))
    assert wire.decode(SAMPLE[:end]) is None or end == len(SAMPLE)
    assert wire.decode(SAMPLE + b"x") is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)


def with_header(header: object) -> bytes:
    text = orjson.dumps(header, option=orjson.OPT_NON_STR_KEYS)
    return (
        SAMPLE[:20] + struct.pack(">I", len(text)) + text + SAMPLE[24 + len(orjson.dumps(HEADER)) :]
    )


@settings(max_examples=examples(300))
@given(st.sampled_from(sorted(HEADER)), JSON)
def test_any_json_in_a_header_raises_nothing(field: str, value: object) -> None:
    try:
        made = with_header({**HEADER, field: value})
    except (TypeError, ValueError):  # an integer that JSON libraries do not write
        return
    wire.decode(made)


@pytest.mark.parametrize(
    "change",
    [
        {"unknown": 1},
        {"streams": [["order-1", 3], ["order-1", 3]]},
        {"streams": [["order-1", True]]},
        {"streams": [["order-1", -1]]},
        {"streams": [["order-1", 3.0]]},
        {"streams": [["order-1", "some"]]},
        {"streams": []},
        {"events": [[0, "paid", 1, 4, 10**9]]},
        {"events": [[0, "paid", 1, -4, 1]]},
        {"events": [[-1, "paid", 1, 4, 1]]},
        {"events": [[0, "paid", 1, 4, 1, ["y", "x"]]]},
        {"events": [[0, "paid", 1, 4, 1, ["x", "x"]]]},
        {"events": [[0, "paid", 1, 4, 1, "xy"]]},
        {"events": []},
        {"seen": [1, "not hexadecimal"]},
        {"seen": None},
        {"streams": {"order-1": 3}},
        {"conditions": [[0, [["ab", []]]]]},
        {"fold": 2**63},
        {"forget": "k1"},
        {"keys": [""]},
        {"truncate": [["s"]]},
        {"conditions": [[0, [[["a"], ["b"], ["c"]]]]]},
    ],
)
def test_a_header_that_breaks_a_rule_is_foreign(change: dict[str, object]) -> None:
    assert wire.decode(with_header(HEADER)) is not None
    assert wire.decode(with_header({**HEADER, **change})) is None


def test_deeply_nested_json_is_foreign() -> None:
    text = b"[" * 100_000
    assert wire.decode(SAMPLE[:20] + struct.pack(">I", len(text)) + text) is None


def test_ids_are_of_version_7_ordered_by_time_and_each_is_another() -> None:
    ids = [NewEvent("e").id for _ in range(1000)]
    assert {(each.version, each.variant) for each in ids} == {(7, "specified in RFC 4122")}
    assert len(set(ids)) == 1000
    stamps = [each.int >> 80 for each in ids]
    assert stamps == sorted(stamps)
