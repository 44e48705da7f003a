"""Blocks of a log, and a partition as a subscriber follows it, without sockets."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.effort import examples
from tidemill.direct.pubsub import LogLost, LogRecord, LogRestarted, Position, PubSubError
from tidemill.direct.pubsub.blocks import (
    READ,
    Request,
    Row,
    decode_head,
    decode_records,
    decode_request,
    decode_state,
    encode_block,
    encode_request,
    encode_state,
)
from tidemill.direct.pubsub.errors import FrameError
from tidemill.direct.pubsub.following import Following
from tidemill.direct.pubsub.log import LogSubscriber

BYTES = st.none() | st.binary(max_size=20)
HEADERS = st.lists(st.tuples(st.text(max_size=5), BYTES), max_size=3)


@st.composite
def rows(draw: st.DrawFn) -> list[Row]:
    offsets = sorted(draw(st.sets(st.integers(0, 2**63 - 1), max_size=8)))
    stamps = st.integers(-(2**63), 2**63 - 1)
    return [(each, draw(stamps), draw(BYTES), draw(BYTES), draw(HEADERS)) for each in offsets]


@given(rows(), st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1))
@settings(max_examples=examples(40))
def test_a_block_has_the_records_that_were_put_into_it(
    given_rows: list[Row], session: int, partition: int
) -> None:
    first, following = 0, 2**64 - 1
    data = encode_block(session, partition, first, following, given_rows)
    head = decode_head(data)
    assert head[1:] == (session, partition, first, following, len(given_rows))
    found = [(*each[1:5], list(each.headers)) for each in decode_records(data, head)]
    assert found == given_rows


@given(rows(), st.data())
@settings(max_examples=examples(60))
def test_bytes_that_are_changed_or_cut_are_refused_with_one_error(
    given_rows: list[Row], data: st.DataObject
) -> None:
    raw = bytearray(encode_block(1, 0, 0, 2**63, given_rows))
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    damaged = bytes(raw[: data.draw(st.integers(0, len(raw)))])
    try:
        head = decode_head(damaged)
        found = decode_records(damaged, head)
    except FrameError:
        return
    assert [each.offset for each in found] == sorted({each.offset for each in found})
    assert all(head.first <= each.offset < head.following for each in found)


@given(st.binary(max_size=64))
@settings(max_examples=examples(100))
def test_any_bytes_are_decoded_or_refused(raw: bytes) -> None:
    for decode in (decode_head, decode_state, decode_request):
        for data in (raw, b"tb\1" + raw, b"ts\1" + raw, b"tr\1" + raw):
            try:
                decode(data)
            except FrameError:
                continue


def test_an_absurd_count_is_refused_before_memory_is_reserved() -> None:
    head = decode_head(encode_block(1, 0, 0, 2**64 - 1, ()))._replace(size=2**32 - 1)
    with pytest.raises(FrameError, match=r"4,294,967,295 records has 36 bytes"):
        decode_records(encode_block(1, 0, 0, 1, ()), head)


def test_states_and_requests_are_decoded_as_they_were_encoded() -> None:
    assert decode_state(encode_state(7, {0: 5, 9: 2**63})) == (7, {0: 5, 9: 2**63})
    request = Request(READ, 2**32 - 1, 3, 2**63)
    assert decode_request(encode_request(request)) == request


# --- following -----------------------------------------------------------------------------------


def block(first: int, following: int, *offsets: int, session: int = 1, key: bytes = b"k") -> bytes:
    listed: list[Row] = [(each, 0, key, b"%d" % each, ()) for each in offsets]
    return encode_block(session, 0, first, following, listed)


def offsets(events: object) -> list[int]:
    assert isinstance(events, list)
    return [each.offset for each in events if isinstance(each, LogRecord)]


def test_a_gap_is_asked_for_and_what_came_meanwhile_waits() -> None:
    following = Following(0, Position(1, 0), last_values=False)
    assert offsets(following.take_live(block(0, 2, 0, 1))) == [0, 1]
    assert following.due_in(0.0) is None
    assert following.take_live(block(4, 6, 5)) == []
    assert following.due_in(0.0) == 0
    assert following.ask(7, 0.0) == 2
    assert following.due_in(0.0) > 0.1  # type: ignore[operator]
    assert following.take_answer(6, [block(2, 4, 2, 3)]) == []  # an older request
    assert offsets(following.take_answer(7, [block(2, 4, 2, 3)])) == [2, 3, 5]
    assert (following.is_live, following.position) == (True, Position(1, 6))


def test_a_block_that_overlaps_brings_only_what_is_new() -> None:
    following = Following(0, Position(1, 3), last_values=False)
    assert offsets(following.take_live(block(0, 5, 0, 2, 3, 4))) == [3, 4]
    assert following.take_live(block(0, 5, 0, 2, 3, 4)) == []


def test_a_block_of_another_session_counts_only_if_an_answer_has_it_too() -> None:
    following = Following(0, Position(1, 4), last_values=False)
    assert following.take_live(block(0, 9, 8, session=2)) == []
    following.ask(1, 0.0)
    assert following.take_answer(1, [block(4, 4)]) == []  # it was an old one in a queue
    assert following.is_live
    following.take_live(block(0, 9, 8, session=2))
    following.ask(2, 0.0)
    [restarted] = following.take_answer(2, [block(4, 9, 8, session=2)])
    assert restarted == LogRestarted(0, Position(2, 0))
    following.ask(3, 0.0)
    assert offsets(following.take_answer(3, [block(0, 9, 2, 8, session=2)])) == [2, 8]


def test_a_log_that_has_lost_its_end_is_reported() -> None:
    following = Following(0, Position(1, 10), last_values=False)
    following.take_end(1, 12)
    following.ask(1, 0.0)
    [restarted] = following.take_answer(1, [block(6, 6)])
    assert restarted == LogRestarted(0, Position(1, 6))
    assert not following.is_live  # it asks once more
    following.ask(2, 0.0)
    assert following.take_answer(2, [block(6, 6)]) == []
    assert following.is_live


def test_an_answer_that_live_blocks_have_overtaken_is_not_a_lost_end() -> None:
    following = Following(0, Position(1, 4), last_values=False)
    following.take_end(1, 6)
    following.ask(1, 0.0)
    assert offsets(following.take_live(block(4, 9, 5, 8))) == [5, 8]
    assert following.take_answer(1, [block(4, 6, 5)]) == []
    assert following.position == Position(1, 9)


def test_an_answer_that_brings_nothing_is_not_asked_for_without_a_pause() -> None:
    following = Following(0, Position(1, 0), last_values=False)
    following.take_end(1, 5)
    following.ask(1, 100.0)
    assert following.take_answer(1, [block(0, 0)]) == []
    assert following.due_in(100.0) > 0.1  # type: ignore[operator]
    following.ask(2, 200.0)
    following.take_answer(2, [b"broken"])
    assert (following.malformed, following.due_in(200.0) > 0.2) == (1, True)  # type: ignore[operator]


def test_blocks_that_wait_take_bounded_memory() -> None:
    following = Following(0, Position(1, 0), last_values=False)
    big: Row = (0, 0, None, b"x" * 1_000_000, ())
    for number in range(1, 40):
        following.take_live(encode_block(1, 0, number, number + 1, [(number, *big[1:])]))
    assert following._waiting_bytes <= 8 << 20
    following.ask(1, 0.0)
    assert offsets(following.take_answer(1, [block(0, 30, 0)])) == [0]
    following.ask(2, 0.0)
    assert offsets(following.take_answer(2, [block(30, 32, 31)])) == [31, *range(32, 40)]


@pytest.mark.parametrize("seed", range(examples(20)))
def test_a_network_that_drops_and_doubles_brings_each_record_once_and_in_order(seed: int) -> None:
    """A model: a log with holes, a start that moves, and answers that are lost or late."""
    chance = random.Random(seed)
    log = [number for number in range(400) if chance.random() < 0.8]
    following = Following(0, None, last_values=False)
    published, found, answers = 0, list[int](), list[tuple[int, bytes]]()
    now, number, lost = 0.0, 0, 0
    for _ in range(20_000):
        now += 0.05
        if published < 400 and chance.random() < 0.5:
            end = min(published + chance.randrange(1, 9), 400)
            data = block(published, end, *(each for each in log if published <= each < end))
            published = end
            for _ in range(chance.choice((0, 1, 1, 1, 2))):
                found += offsets(following.take_live(data))
        following.take_end(1, published)
        if following.due_in(now) == 0:
            number += 1
            first = following.ask(number, now)
            end = min(first + chance.randrange(1, 50), published)
            data = block(first, end, *(each for each in log if first <= each < end))
            answers += [(number, data)] * chance.choice((0, 1, 1, 2))
        while answers and chance.random() < 0.7:
            asked, data = answers.pop(chance.randrange(len(answers)))
            events = following.take_answer(asked, [data])
            lost += sum(isinstance(each, LogLost) for each in events)
            found += offsets(events)
        if published == 400 and following.is_live:
            break
    assert (found, lost) == (log, 0)


def test_the_last_values_come_together_once_they_are_complete() -> None:
    following = Following(0, None, last_values=True)
    following.take_end(1, 6)
    assert following.ask(1, 0.0) == 0
    assert following.take_answer(1, [block(0, 2, 0, 1, key=b"a")]) == []
    assert following.position is None  # there is nothing yet to resume from
    following.take_live(block(6, 7, 6, key=b"c"))
    following.ask(2, 0.0)
    assert offsets(following.take_answer(2, [block(2, 6, 2, 5, key=b"b")])) == [1, 5, 6]
    assert following.position == Position(1, 7)


def test_an_unknown_start_is_named() -> None:
    with pytest.raises(PubSubError, match="invalid start 'newest'"):
        LogSubscriber("inproc://a", "inproc://b", start="newest")  # type: ignore[arg-type]
