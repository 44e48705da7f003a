"""The receiver over a network that drops, doubles, delays and reorders packets."""

from __future__ import annotations

import heapq
import itertools
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.effort import examples
from tidemill.direct.multicast.answers import Answers
from tidemill.direct.multicast.receiver import Event, Lost, Received, Receiver, Restarted
from tidemill.direct.multicast.ring import Ring
from tidemill.direct.multicast.wire import Packet, Request, decode_packet, pack

A, B = b"session-a ", b"session-b "


class Network:
    """A publisher, a re-request server and a receiver, with a bad network in between.

    Args:
        loss: the share of datagrams that are dropped, in each direction.
        double: the share that comes twice.
        delay_ms: each takes up to so long, so they overtake each other.
    """

    def __init__(
        self, receiver: Receiver, seed: int, *, loss: float, double: float, delay_ms: int
    ) -> None:
        self.receiver = receiver
        self.ring = Ring(A, 1 << 30)
        self.answers = Answers(self.ring, packet_size=120, most_packets=3)
        self.events: list[Event] = []
        self.requests = 0
        self.now_ms = 0
        self._random = random.Random(seed)
        self._loss, self._double, self._delay_ms = loss, double, delay_ms
        self._flights: list[tuple[int, int, bytes, bool]] = []
        self._numbers = itertools.count()

    def publish(self, messages: list[bytes]) -> None:
        first = self.ring.end
        for message in messages:
            self.ring.add(message)
        for data, _ in pack(A, first, messages, 120):
            self._send(data, is_answer=False)

    def heartbeat(self, *, is_end: bool = False) -> None:
        self._take(Packet(A, self.ring.end, (), is_end=is_end))

    def advance(self, by_ms: int) -> None:
        """Let time pass: datagrams arrive, and the receiver asks."""
        end = self.now_ms + by_ms
        while self.now_ms < end:
            self.now_ms += 1
            while self._flights and self._flights[0][0] <= self.now_ms:
                _, _, data, is_answer = heapq.heappop(self._flights)
                self.events += self.receiver.take(
                    decode_packet(data), self.now_ms, is_answer=is_answer
                )
            for request in self.receiver.requests(self.now_ms):
                self.requests += 1
                if self._random.random() >= self._loss:
                    for data in self.answers.answer(request, "127.0.0.1", self.now_ms):
                        self._send(data, is_answer=True)
            self.events += self.receiver.expire(self.now_ms)

    def _take(self, packet: Packet) -> None:
        self.events += self.receiver.take(packet, self.now_ms)

    def _send(self, data: bytes, *, is_answer: bool) -> None:
        if self._random.random() < self._loss:
            return
        for _ in range(1 + (self._random.random() < self._double)):
            at = self.now_ms + self._random.randint(0, self._delay_ms)
            heapq.heappush(self._flights, (at, next(self._numbers), data, is_answer))


@given(
    seed=st.integers(0, 2**32),
    loss=st.sampled_from([0.0, 0.01, 0.1, 0.4]),
    double=st.sampled_from([0.0, 0.2]),
    delay_ms=st.sampled_from([0, 3, 40]),
    is_ordered=st.booleans(),
    sizes=st.lists(st.integers(1, 12), max_size=30),
)
@settings(max_examples=examples(60), deadline=None)
def test_nothing_is_missing_and_nothing_comes_twice(
    seed: int, loss: float, double: float, delay_ms: int, is_ordered: bool, sizes: list[int]
) -> None:
    receiver = Receiver(A, 1, is_ordered=is_ordered, give_up_ms=10**9, seed=seed)
    network = Network(receiver, seed, loss=loss, double=double, delay_ms=delay_ms)
    messages = []
    for number, size in enumerate(sizes):
        batch = [b"" if each % 5 == 4 else b"%d-%d" % (number, each) for each in range(size)]
        messages += batch
        network.publish(batch)
        network.advance(3)
    for _ in range(200):
        network.heartbeat()
        network.advance(50)
        if receiver.next == network.ring.end:
            break
    found = [(each.sequence, each.message) for each in network.events if isinstance(each, Received)]
    assert (found if is_ordered else sorted(found)) == list(enumerate(messages, 1))
    assert not any(isinstance(each, (Lost, Restarted)) for each in network.events)
    assert receiver.next == network.ring.end
    if loss == 0 and delay_ms == 0:
        assert network.requests == 0


def test_all_open_gaps_are_asked_for_together() -> None:
    receiver = Receiver(A, 1, delay_ms=0)
    for sequence in range(2, 100, 2):
        receiver.take(Packet(A, sequence, [b"x"]), 0)
    found = receiver.requests(1)
    assert [(each.sequence, each.count) for each in found] == [(n, 1) for n in range(1, 99, 2)]
    assert receiver.requests(1) == []  # not again before the pause is over


def test_requests_come_after_a_random_delay_and_then_after_longer_pauses() -> None:
    first_due = set()
    for seed in range(50):
        receiver = Receiver(A, 1, delay_ms=20, longest_pause_ms=300, give_up_ms=10**6, seed=seed)
        receiver.take(Packet(A, 5, [b"x"]), 0)
        asked = [now for now in range(5000) if receiver.requests(now)]
        first_due.add(asked[0])
        pauses = [b - a for a, b in itertools.pairwise(asked)]
        assert pauses[0] >= 80
        assert pauses[1] >= 160
        assert all(300 <= each <= 320 for each in pauses[3:])
    assert len(first_due) > 10
    assert max(first_due) <= 20


def test_what_the_server_does_not_have_any_more_is_reported_as_lost() -> None:
    receiver = Receiver(A, 1, delay_ms=0)
    receiver.take(Packet(A, 10, [b"ten"]), 0)
    (request,) = receiver.requests(1)
    assert (request.sequence, request.count) == (1, 9)
    # The server begins at 7.
    assert receiver.take(Packet(A, 7), 2, is_answer=True) == [Lost(1, 6)]
    found = receiver.take(Packet(A, 7, [b"7", b"8", b"9"]), 2, is_answer=True)
    assert [each.sequence for each in found if isinstance(each, Received)] == [7, 8, 9, 10]
    assert (receiver.lost, receiver.recovered, receiver.missing) == (6, 3, 0)


def test_a_gap_without_an_answer_is_lost_in_the_end_and_the_rest_is_delivered() -> None:
    receiver = Receiver(A, 1, give_up_ms=1000)
    assert receiver.take(Packet(A, 3, [b"3"]), 0) == []
    assert receiver.expire(999) == []
    assert receiver.expire(1000) == [Lost(1, 2), Received(3, b"3")]


def test_an_absurd_jump_of_the_sequence_costs_neither_memory_nor_time() -> None:
    receiver = Receiver(A, 1, give_up_ms=1000)
    receiver.take(Packet(A, 2**63, [b"x"]), 0)
    assert len(receiver.requests(100)) == 1
    assert receiver.expire(1000) == [Lost(1, 2**63 - 1), Received(2**63, b"x")]


def test_messages_that_wait_are_bounded() -> None:
    receiver = Receiver(A, 1, most_waiting=10)
    events: list[Event] = []
    for sequence in range(2, 14):
        events += receiver.take(Packet(A, sequence, [b"%d" % sequence]), 0)
    assert events[0] == Lost(1, 1)
    assert [each.sequence for each in events if isinstance(each, Received)] == list(range(2, 14))


def test_another_session_is_reported_with_what_the_old_one_owes() -> None:
    receiver = Receiver(A, 1)
    receiver.take(Packet(A, 3, [b"3"]), 0)
    events = receiver.take(Packet(B, 1, [b"one"]), 1)
    assert events == [Lost(1, 2), Received(3, b"3"), Restarted(B), Received(1, b"one")]
    assert receiver.take(Packet(A, 9, [b"late"]), 2, is_answer=True) == []


def test_a_receiver_resumes_from_its_position() -> None:
    receiver = Receiver(A, 5, delay_ms=0)
    assert receiver.take(Packet(A, 7), 0) == []  # a heartbeat: 5 and 6 were missed
    (request,) = receiver.requests(1)
    assert (request.sequence, request.count) == (5, 2)


def test_a_new_receiver_starts_with_what_comes_first() -> None:
    receiver = Receiver()
    assert receiver.take(Packet(A, 100, [b"x"]), 0) == [Received(100, b"x")]
    assert receiver.requests(1000) == []


def test_losses_are_reported_in_the_order_of_the_messages() -> None:
    receiver = Receiver(A, 1, give_up_ms=100)
    assert receiver.take(Packet(A, 3, [b"3"]), 0) == []
    assert receiver.take(Packet(A, 6, [b"6"]), 0) == []
    assert receiver.take(Packet(A, 2, [b"2"]), 50, is_answer=True) == []
    assert receiver.expire(100) == [
        Lost(1, 1), Received(2, b"2"), Received(3, b"3"), Lost(4, 2), Received(6, b"6")
    ]  # fmt: skip
    assert (receiver.lost, receiver.next) == (3, 7)


def test_without_order_a_loss_is_reported_at_once() -> None:
    receiver = Receiver(A, 1, is_ordered=False)
    receiver.take(Packet(A, 3, [b"3"]), 0)
    assert receiver.take(Packet(A, 2), 0, is_answer=True) == [Lost(1, 1)]
    assert receiver.take(Packet(A, 2, [b"2"]), 0) == [Received(2, b"2")]
    assert receiver.next == 4


class TestAnswers:
    """Who is answered, and how much."""

    def _answers(self, **options: Any) -> Answers:
        ring = Ring(A, 1000)
        for number in range(1, 101):
            ring.add(b"%03d" % number * 10)
        return Answers(ring, **options)

    def _asked(
        self, answers: Answers, first: int, count: int, host: str = "127.0.0.1"
    ) -> list[Packet]:
        return [decode_packet(each) for each in answers.answer(Request(A, first, count), host, 0)]

    def test_one_answer_has_a_few_packets(self) -> None:
        answers = self._answers(packet_size=100, most_packets=2)
        found = self._asked(answers, 90, 65_534)
        assert [each.sequence for each in found] == [90, 92]
        assert [len(each.messages) for each in found] == [2, 2]

    def test_below_the_first_message_the_answer_says_where_the_messages_begin(self) -> None:
        answers = self._answers()
        found = self._asked(answers, 1, 10)
        assert [(each.sequence, len(each.messages)) for each in found] == [(68, 0)]
        found = self._asked(answers, 60, 10)
        assert [(each.sequence, len(each.messages)) for each in found] == [(68, 0), (68, 2)]

    def test_beyond_the_end_nothing_is_answered(self) -> None:
        assert self._asked(self._answers(), 101, 5) == []
        assert self._asked(self._answers(), 2**64 - 1, 65_534) == []

    def test_others_than_members_are_not_answered(self) -> None:
        answers = self._answers()
        assert self._asked(answers, 90, 1, host="192.0.2.1") == []
        assert self._asked(answers, 90, 1, host="::1") != []
        assert answers.refused == 1

    def test_the_bytes_for_an_address_are_bounded(self) -> None:
        answers = self._answers(bytes_per_s=1000, packet_size=100)
        found = [each for _ in range(100) for each in self._asked(answers, 70, 30)]
        assert sum(len(b"".join(each.messages)) for each in found) < 1200
        assert answers.throttled > 90
        assert self._asked(answers, 70, 1, host="127.0.0.2") != []


@pytest.mark.parametrize("seed", range(3))
def test_half_of_all_packets_lost_is_recovered_soon(seed: int) -> None:
    receiver = Receiver(A, 1, seed=seed, give_up_ms=10**6)
    network = Network(receiver, seed, loss=0.5, double=0, delay_ms=2)
    for number in range(200):
        network.publish([b"%d" % number])
        network.advance(1)
    waited = 0
    while receiver.next != network.ring.end:
        network.heartbeat()
        network.advance(10)
        waited += 10
        assert waited < 20_000
    assert sum(isinstance(each, Received) for each in network.events) == 200
