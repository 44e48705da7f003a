"""Streams over sockets on loopback, with a receiver in C as a peer."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import resource
import socket
import subprocess
import threading
import time
from pathlib import Path

import pytest

from tests.support.ports import reserve_port
from tidemill.direct.multicast import (
    Lost,
    MulticastError,
    MulticastReceiver,
    Received,
    Receiver,
    Restarted,
    RingPublisher,
)
from tidemill.direct.multicast.sockets import Address
from tidemill.direct.multicast.wire import LARGEST_MESSAGE


def received(receiver: MulticastReceiver, end: int, timeout_s: float = 30) -> list[bytes]:
    """Poll until all messages before ``end`` are there."""
    found: list[bytes] = []
    deadline = time.monotonic() + timeout_s
    while receiver.receiver.next is None or receiver.receiver.next < end:
        for event in receiver.poll(0.1):
            assert isinstance(event, Received)
            found.append(event.message)
        assert time.monotonic() < deadline, receiver.receiver.missing
    return found


def test_messages_arrive_in_order_also_those_from_before_the_receiver_was_there(
    group: Address,
) -> None:
    with RingPublisher(group) as publisher:
        messages = [b"%d" % number for number in range(2000)]
        publisher.publish(*messages[:500])
        receiver = Receiver(sequence=1)
        with MulticastReceiver(group, [publisher.requests], receiver=receiver) as stream:
            for message in messages[500:]:
                publisher.publish(message)
            assert received(stream, 2001) == messages
        assert receiver.recovered == 500
        assert publisher.answers.answered > 0


def test_a_receiver_that_was_away_resumes_from_its_position(group: Address) -> None:
    with RingPublisher(group) as publisher:
        with MulticastReceiver(group, [publisher.requests]) as stream:
            publisher.publish(b"1", b"2")
            assert received(stream, 3) == [b"1", b"2"]
            session, position = stream.receiver.session, stream.receiver.next
        publisher.publish(b"3", b"4")
        resumed = Receiver(session, position)
        with MulticastReceiver(group, [publisher.requests], receiver=resumed) as stream:
            publisher.publish(b"5")
            assert received(stream, 6) == [b"3", b"4", b"5"]


def test_the_last_message_is_not_missed_because_heartbeats_follow(group: Address) -> None:
    with RingPublisher(group) as publisher:
        publisher.publish(b"only")
        receiver = Receiver(sequence=1)
        with MulticastReceiver(group, [publisher.requests], receiver=receiver) as stream:
            assert received(stream, 2) == [b"only"]  # nothing is published any more


def test_a_process_with_many_open_descriptors_sends_and_receives(group: Address) -> None:
    """``select.select`` refuses those above 1,023."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 1200:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(1200, hard), hard))
    with contextlib.ExitStack() as opened:
        opened.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        while opened.enter_context(open(os.devnull, "rb")).fileno() < 1024:
            pass
        publisher = opened.enter_context(RingPublisher(group))
        publisher.publish(b"1", b"2")
        receiver = MulticastReceiver(group, [publisher.requests], receiver=Receiver(sequence=1))
        assert received(opened.enter_context(receiver), 3) == [b"1", b"2"]


def test_the_end_of_a_session_ends_the_iteration(group: Address) -> None:
    found: list[object] = []
    publisher = RingPublisher(group)
    with MulticastReceiver(group, [publisher.requests]) as stream:
        publisher.publish(b"a", b"b")
        closer = threading.Thread(target=publisher.close, args=(1.0,))
        closer.start()
        found += stream
        closer.join()
    assert found == [Received(1, b"a"), Received(2, b"b")]


def test_a_restarted_publisher_is_another_session(group: Address) -> None:
    first = RingPublisher(group, session="one")
    with MulticastReceiver(group, [first.requests]) as stream:
        first.publish(b"a")
        assert received(stream, 2) == [b"a"]
        first.close()
        with RingPublisher(group, session="two") as second:
            second.publish(b"b")
            events: list[object] = []
            deadline = time.monotonic() + 10
            while len(events) < 2:
                events += stream.poll(0.1)
                assert time.monotonic() < deadline
    assert events == [Restarted(b"two       "), Received(1, b"b")]


def test_without_a_server_a_gap_is_reported_and_what_follows_is_delivered(group: Address) -> None:
    with RingPublisher(group) as publisher:
        publisher.publish(b"1", b"2")
        receiver = Receiver(sequence=1, give_up_ms=50)
        with MulticastReceiver(group, receiver=receiver) as stream:
            publisher.publish(b"3")
            events: list[object] = []
            deadline = time.monotonic() + 10
            while len(events) < 2:
                events += stream.poll(0.1)
                assert time.monotonic() < deadline
    assert events == [Lost(1, 2), Received(3, b"3")]


def test_a_receiver_in_c_gets_everything_although_it_drops_packets(
    group: Address, mold: Path
) -> None:
    chance = random.Random(1)
    with RingPublisher(group) as publisher:
        messages = [bytes([number % 251]) * chance.randrange(0, 60) for number in range(5000)]
        publisher.publish(*messages[:1000])
        host, port = group
        command = [str(mold), host, str(port), str(publisher.requests[1]), "1", "5000", "7"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as peer:
            assert peer.stdout is not None
            assert peer.stdout.readline() == "ready\n"
            for start in range(1000, 5000, 4):
                publisher.publish(*messages[start : start + 4])
            lines = peer.stdout.read().splitlines()
        assert peer.returncode == 0
    assert lines == [
        f"{number} {len(message)} {message[0] if message else 0}"
        for number, message in enumerate(messages, 1)
    ]


def test_malformed_packets_and_requests_are_counted_and_change_nothing(group: Address) -> None:
    chance = random.Random(2)
    with (
        RingPublisher(group) as publisher,
        MulticastReceiver(group, [publisher.requests]) as stream,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as attacker,
    ):
        attacker.setsockopt(
            socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton("127.0.0.1")
        )
        publisher.publish(b"a")
        assert received(stream, 2) == [b"a"]
        for size in range(60):
            attacker.sendto(chance.randbytes(size), publisher.requests)
            attacker.sendto(b"x" * size if size < 20 else b"x" * 18 + b"\x01" * (size - 18), group)
        publisher.publish(b"b")
        assert received(stream, 3) == [b"b"]
        assert stream.malformed == 60


@pytest.mark.parametrize(
    ("group", "interface"),
    [(("127.0.0.1", 5000), "127.0.0.1"), (("nowhere", 5000), "127.0.0.1"),
     (("239.1.1.1", 5000), "203.0.113.9"), (("239.1.1.1", 70_000), "127.0.0.1")],
)  # fmt: skip
def test_an_address_that_can_t_be_used_is_an_error(group: Address, interface: str) -> None:
    with pytest.raises(MulticastError):
        RingPublisher(group, interface=interface)
    with pytest.raises(MulticastError):
        MulticastReceiver(group, interface=interface)


@pytest.mark.parametrize("server", [("nowhere.invalid", 7001), ("127.0.0.1", 70_000)])
def test_a_server_that_can_t_be_used_is_an_error_and_nothing_stays_open(
    group: Address, server: Address, recwarn: pytest.WarningsRecorder
) -> None:
    with pytest.raises(MulticastError):
        MulticastReceiver(group, [server])
    gc.collect()
    assert not [each for each in recwarn if each.category is ResourceWarning]


def test_a_closed_publisher_takes_no_message(group: Address) -> None:
    publisher = RingPublisher(group)
    publisher.close()
    publisher.close()
    with pytest.raises(MulticastError, match="closed"):
        publisher.publish(b"a")


def test_a_request_port_in_use_is_an_error_and_nothing_stays_open(group: Address) -> None:
    port = reserve_port()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", port))
        with pytest.raises(MulticastError, match="can't bind"):
            RingPublisher(group, ("127.0.0.1", port))


def test_a_message_larger_than_a_datagram_is_refused_and_the_largest_is_sent(
    group: Address,
) -> None:
    with RingPublisher(group) as publisher:
        with pytest.raises(MulticastError):
            publisher.publish(b"x" * (LARGEST_MESSAGE + 1))
        with MulticastReceiver(group, [publisher.requests]) as stream:
            assert publisher.publish(b"x" * LARGEST_MESSAGE) == 1
            assert received(stream, 2) == [b"x" * LARGEST_MESSAGE]
