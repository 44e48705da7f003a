"""Headers and sequences, without sockets."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.direct.pubsub import Lost, Message, PubSubError
from tidemill.direct.pubsub.errors import FrameError
from tidemill.direct.pubsub.sequences import Published, Received
from tidemill.direct.pubsub.wire import (
    LAST_SEQUENCE,
    MESSAGE,
    STATE,
    Header,
    check_channel,
    decode_frames,
    decode_header,
    encode_header,
    join,
    split,
)

GOOD = struct.pack(">2sBBQQ", b"tm", 1, 0, 7, 1)


def test_the_header_has_the_bytes_of_its_table() -> None:
    assert encode_header(Header(MESSAGE, 7, 1)) == GOOD
    assert decode_header(GOOD) == Header(MESSAGE, 7, 1)


@pytest.mark.parametrize(
    "header",
    [
        b"",
        GOOD[:-1],
        GOOD + b"\0",
        b"xx" + GOOD[2:],
        GOOD[:2] + b"\2" + GOOD[3:],
        GOOD[:3] + b"\2" + GOOD[4:],
        GOOD[:-8] + bytes(8),
    ],
    ids=["empty", "short", "long", "magic", "version", "kind", "sequence 0"],
)
def test_a_header_that_is_not_ours_is_refused(header: bytes) -> None:
    with pytest.raises(FrameError):
        decode_header(header)


@pytest.mark.parametrize("channel", [b"x" * 256, b"a\0b", b"\0"])
def test_a_channel_that_has_no_place_in_a_message_is_refused(channel: bytes) -> None:
    with pytest.raises(PubSubError, match="invalid channel"):
        check_channel(channel)
    with pytest.raises(FrameError):
        decode_frames([channel, GOOD, b""])


@given(st.lists(st.binary(max_size=300), max_size=5), st.binary(max_size=600))
def test_any_bytes_are_a_message_or_a_typed_error(frames: list[bytes], data: bytes) -> None:
    for each in (frames, split(data)):
        try:
            channel, header, _ = decode_frames(each)
        except FrameError:
            continue
        assert len(channel) <= 255
        assert header.sequence or header.kind == STATE


@given(st.binary(max_size=255).filter(lambda each: b"\0" not in each), st.binary())
def test_what_is_joined_is_split_again(channel: bytes, payload: bytes) -> None:
    assert split(join(channel, GOOD, payload)) == [channel, GOOD, payload]


@given(st.lists(st.tuples(st.integers(1, 12), st.booleans()), max_size=40))
def test_each_sequence_is_delivered_or_lost_and_never_twice(
    arrivals: list[tuple[int, bool]],
) -> None:
    received = Received(10)
    covered: list[int] = []
    for sequence, is_message in arrivals:
        kind = MESSAGE if is_message else STATE
        for event in received.take(b"c", Header(kind, 1, sequence), b""):
            if isinstance(event, Lost):
                covered += range(event.first, event.first + event.count)
            else:
                covered.append(event.sequence)
    assert covered == sorted(set(covered))
    if covered:
        assert covered == list(range(covered[0], covered[-1] + 1))


def test_what_came_before_the_subscription_is_not_lost() -> None:
    received = Received(10)
    assert received.take(b"c", Header(MESSAGE, 1, 100), b"x") == [Message(b"c", b"x", 1, 100)]
    assert received.take(b"d", Header(STATE, 1, 100), b"") == []
    assert received.take(b"d", Header(MESSAGE, 1, 101), b"x") == [Message(b"d", b"x", 1, 101)]
    assert received.lost == 0


def test_a_state_reports_that_the_last_messages_are_lost() -> None:
    received = Received(10)
    received.take(b"c", Header(MESSAGE, 1, 1), b"x")
    assert received.take(b"c", Header(STATE, 1, 4), b"") == [Lost(b"c", 1, 2, 3)]
    assert received.take(b"c", Header(STATE, 1, 4), b"") == []


def test_an_absurd_sequence_is_a_loss_and_costs_no_memory() -> None:
    received = Received(10)
    received.take(b"c", Header(MESSAGE, 1, 1), b"")
    lost, _ = received.take(b"c", Header(MESSAGE, 1, LAST_SEQUENCE), b"")
    assert lost == Lost(b"c", 1, 2, LAST_SEQUENCE - 2)
    assert received.take(b"c", Header(MESSAGE, 1, 2), b"") == []
    assert received.doubled == 1


def test_a_million_channels_push_out_the_silent_ones_and_are_counted() -> None:
    received = Received(2)
    for channel in (b"a", b"b", b"a", b"c"):  # b was silent for the longest time
        received.take(channel, Header(MESSAGE, 1, received.received + 1), b"")
    assert received.forgotten == 1
    assert received.take(b"a", Header(MESSAGE, 1, 3), b"") == []  # it is remembered
    assert received.take(b"b", Header(MESSAGE, 1, 9), b"") == [Message(b"b", b"", 1, 9)]
    assert received.forgotten == 2


def test_a_publisher_refuses_more_channels_than_it_can_number() -> None:
    published = Published(2)
    assert [published.next(each) for each in (b"a", b"b", b"a")] == [1, 1, 2]
    with pytest.raises(PubSubError, match="at most 2 channels"):
        published.next(b"c")
    assert published.next(b"b") == 2
    assert published.states() == [(b"a", 2), (b"b", 2)]
