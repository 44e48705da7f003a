"""Publishers and subscribers over sockets, with plain programs of pyzmq and pynng as peers."""

from __future__ import annotations

import multiprocessing
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pynng
import pytest
import zmq

from tests.support.hidden_packages import python_without
from tidemill.direct.pubsub import (
    CurveClient,
    CurveKeys,
    CurveServer,
    Lost,
    Message,
    MissingPackageError,
    Publisher,
    PubSubError,
    Puller,
    Pusher,
    Subscriber,
    new_curve_keys,
)

HEADER = struct.Struct(">2sBBQQ")
TIMEOUT_S = 30.0


def until(subscriber: Subscriber, is_done: Callable[[list[Any]], bool]) -> list[Any]:
    """Poll until the events are what the test waits for."""
    events: list[Any] = []
    deadline = time.monotonic() + TIMEOUT_S
    while not is_done(events):
        events += subscriber.poll(0.1)
        assert time.monotonic() < deadline, events[-5:]
    return events


def address_of(kind: str, folder: Path) -> str:
    return {
        "inproc": f"inproc://{folder.name}",
        "ipc": f"ipc://{folder}/s",
        "tcp": "tcp://127.0.0.1:0",
    }[kind]


@pytest.mark.parametrize("library", ["zeromq", "nng"])
@pytest.mark.parametrize("kind", ["inproc", "ipc", "tcp"])
def test_messages_arrive_in_order_by_prefix_of_the_channel(
    library: Any, kind: str, tmp_path: Path
) -> None:
    with (
        Publisher(address_of(kind, tmp_path), library=library) as publisher,
        Subscriber(publisher.address, channels=[b"a"], library=library) as subscriber,
    ):
        assert publisher.wait_for_subscribers(1, TIMEOUT_S)
        for number in range(100):
            assert publisher.publish(b"ab", b"%d" % number)
            assert publisher.publish(b"b", b"not for it")
        events = until(subscriber, lambda events: len(events) >= 100)
        assert events == [
            Message(b"ab", b"%d" % number, publisher.id, number + 1) for number in range(100)
        ]
        assert (publisher.published, publisher.dropped) == (200, 0)
        assert (subscriber.sequences.lost, subscriber.malformed) == (0, 0)


def test_a_full_queue_is_counted_and_the_subscriber_finds_the_loss(tmp_path: Path) -> None:
    with (
        Publisher("inproc://full", queue_size=10) as publisher,
        Subscriber(publisher.address, queue_size=10) as subscriber,
    ):
        assert publisher.wait_for_subscribers(1, TIMEOUT_S)
        taken = sum(publisher.publish(b"c", b"x") for _ in range(1000))
        assert publisher.dropped == 1000 - taken > 0
        assert len(until(subscriber, lambda events: len(events) >= taken)) == taken
        assert publisher.publish_state()
        events = until(subscriber, lambda events: bool(events))
        assert events == [Lost(b"c", publisher.id, taken + 1, publisher.dropped)]
        assert subscriber.sequences.received + subscriber.sequences.lost == 1000


def test_a_publisher_that_waits_loses_nothing_while_the_subscriber_reads() -> None:
    program = """if True:
        import sys
        from tidemill.direct.pubsub import Subscriber
        with Subscriber(sys.argv[1], queue_size=10) as subscriber:
            while subscriber.sequences.received < 20_000:
                subscriber.poll(1.0)
            print(subscriber.sequences.received, subscriber.sequences.lost)
    """
    with Publisher("tcp://127.0.0.1:0", queue_size=10, wait_s=TIMEOUT_S) as publisher:
        reader = subprocess.Popen(
            [sys.executable, "-c", program, publisher.address], stdout=subprocess.PIPE, text=True
        )
        try:
            assert publisher.wait_for_subscribers(1, TIMEOUT_S)
            for _ in range(20_000):
                assert publisher.publish(b"c", b"x" * 100)
            assert reader.communicate(timeout=TIMEOUT_S)[0] == "20000 0\n"
        finally:
            reader.kill()
            reader.wait()
        assert publisher.dropped == 0


def test_a_wait_for_a_subscriber_that_does_not_read_has_a_bound() -> None:
    with (
        Publisher("inproc://bound", queue_size=1, wait_s=0.2) as publisher,
        Subscriber(publisher.address, queue_size=1),
    ):
        assert publisher.wait_for_subscribers(1, TIMEOUT_S)
        while publisher.publish(b"c", b"x"):
            pass
        started = time.monotonic()
        assert not publisher.publish(b"c", b"x")
        assert time.monotonic() - started >= 0.19
        assert publisher.dropped == 2


def test_a_loss_that_nng_hides_is_found_by_the_sequences() -> None:
    with (
        Publisher("inproc://hidden", library="nng", queue_size=1) as publisher,
        Subscriber(publisher.address, library="nng", queue_size=4) as subscriber,
    ):
        assert publisher.wait_for_subscribers(1, TIMEOUT_S)
        publisher.publish(b"c", b"first")
        until(subscriber, lambda events: bool(events))
        for _ in range(5000):
            assert publisher.publish(b"c", b"x")
        sequences = subscriber.sequences
        deadline = time.monotonic() + TIMEOUT_S
        while sequences.received + sequences.lost < 5001:
            publisher.publish_state()
            subscriber.poll(0.05)
            assert time.monotonic() < deadline
        assert sequences.lost > 0
        assert sequences.received + sequences.lost == 5001


def test_a_plain_subscriber_of_pyzmq_gets_channel_header_and_payload() -> None:
    with Publisher("tcp://127.0.0.1:0") as publisher, zmq.Context() as context:
        peer = context.socket(zmq.SUB)
        peer.connect(publisher.address)
        peer.subscribe(b"prices")
        assert publisher.wait_for_subscribers(1, TIMEOUT_S)
        publisher.publish(b"prices", b"1.5")
        assert peer.poll(int(TIMEOUT_S * 1000))
        channel, header, payload = peer.recv_multipart()
        peer.close()
        assert (channel, payload) == (b"prices", b"1.5")
        assert HEADER.unpack(header) == (b"tm", 1, 0, publisher.id, 1)
        assert not publisher.wait_for_subscribers(2, 0)


def test_a_plain_publisher_of_pyzmq_can_send_any_frames() -> None:
    with zmq.Context() as context:
        peer = context.socket(zmq.PUB)
        port = peer.bind_to_random_port("tcp://127.0.0.1")
        with Subscriber(f"tcp://127.0.0.1:{port}", max_message_bytes=1000) as subscriber:
            found: list[Any] = []
            deadline = time.monotonic() + TIMEOUT_S
            number = 0
            while len(found) < 3:
                number += 1
                peer.send_multipart([b"no frames of ours"])
                peer.send_multipart([b"x"] * 10_000)
                peer.send_multipart([b"c", HEADER.pack(b"tm", 1, 0, 5, number), b"x"])
                found += subscriber.poll(0.05)
                assert time.monotonic() < deadline
            assert all(isinstance(each, Message) and each.publisher == 5 for each in found)
            assert subscriber.malformed >= 2
            # A message above the limit is left out, and the connection stays.
            peer.send_multipart([b"c", HEADER.pack(b"tm", 1, 0, 6, 1), b"x" * 100_000])
            while not any(isinstance(each, Message) and each.publisher == 7 for each in found):
                number += 1
                peer.send_multipart([b"c", HEADER.pack(b"tm", 1, 0, 7, number), b"x"])
                found += subscriber.poll(0.05)
                assert time.monotonic() < deadline
            assert not any(each.publisher == 6 for each in found)
            assert subscriber.oversize == 1
        peer.close()


def test_a_plain_subscriber_and_a_plain_publisher_of_pynng(tmp_path: Path) -> None:
    with Publisher(f"ipc://{tmp_path}/ours", library="nng") as publisher:
        peer = pynng.Sub0(topics=[b"prices"], recv_timeout=30_000, dial=publisher.address)
        assert publisher.wait_for_subscribers(1, TIMEOUT_S)
        publisher.publish(b"prices", b"1.5")
        data = peer.recv()
        peer.close()
        assert data[:7] == b"prices\0"
        assert HEADER.unpack(data[7:27]) == (b"tm", 1, 0, publisher.id, 1)
        assert data[27:] == b"1.5"

    plain = pynng.Pub0(listen=f"ipc://{tmp_path}/theirs")
    with Subscriber(f"ipc://{tmp_path}/theirs", library="nng") as subscriber:
        deadline = time.monotonic() + TIMEOUT_S
        number = 0
        while not (subscriber.sequences.received and subscriber.malformed):
            number += 1
            plain.send(b"no channel")
            plain.send(b"c\0" + HEADER.pack(b"tm", 1, 0, 5, number) + b"x")
            subscriber.poll(0.05)
            assert time.monotonic() < deadline
    plain.close()


def test_a_subscriber_can_start_before_its_publisher_and_outlive_it(tmp_path: Path) -> None:
    address = f"ipc://{tmp_path}/s"
    with Subscriber(address) as subscriber:
        ids = []
        for _ in range(2):
            with Publisher(address) as publisher:
                # libzmq subscribes again within a call of the subscriber.
                deadline = time.monotonic() + TIMEOUT_S
                while not publisher.wait_for_subscribers(1, 0.02):
                    assert subscriber.poll(0.02) == []
                    assert time.monotonic() < deadline
                publisher.publish(b"c", b"x")
                [event] = until(subscriber, lambda events: bool(events))
                assert event == Message(b"c", b"x", publisher.id, 1)
                ids.append(publisher.id)
        assert ids[0] != ids[1]
        assert subscriber.sequences.lost == 0


def test_many_subscriptions_come_and_go_and_are_counted() -> None:
    with Publisher("tcp://127.0.0.1:0") as publisher, zmq.Context() as context:
        peer = context.socket(zmq.SUB)
        peer.connect(publisher.address)
        for number in range(500):
            peer.subscribe(b"%d" % number)
        assert publisher.wait_for_subscribers(500, TIMEOUT_S)
        peer.close()
        with Subscriber(publisher.address) as subscriber:
            until_gone = time.monotonic() + TIMEOUT_S
            while publisher.wait_for_subscribers(2, 0.05):
                assert time.monotonic() < until_gone
            assert publisher.wait_for_subscribers(1, TIMEOUT_S)
            publisher.publish(b"c", b"x")
            assert until(subscriber, lambda events: bool(events))


def test_messages_are_shared_among_pullers_and_a_plain_one_of_pyzmq() -> None:
    with Pusher("tcp://127.0.0.1:0") as pusher, zmq.Context() as context:
        peer = context.socket(zmq.PULL)
        peer.connect(pusher.address)
        with Puller(pusher.address) as puller:
            ours: list[bytes] = []
            theirs: list[bytes] = []
            deadline = time.monotonic() + TIMEOUT_S
            sent = 0
            while not (ours and theirs):
                sent += 1
                assert pusher.push(b"%d" % sent)
                ours += puller.poll(0.02)
                theirs += [peer.recv()] if peer.poll(20) else []
                assert time.monotonic() < deadline
            while len(ours) + len(theirs) < sent:
                ours += puller.poll(0.02)
                theirs += [peer.recv()] if peer.poll(20) else []
                assert time.monotonic() < deadline
            assert sorted(ours + theirs, key=int) == [b"%d" % each for each in range(1, sent + 1)]
            assert puller.pulled == len(ours)
        peer.close()


def test_a_pusher_without_a_puller_drops_after_its_wait_and_counts() -> None:
    with Pusher("tcp://127.0.0.1:0", wait_s=0, linger_s=0) as pusher:
        assert not pusher.push(b"x")
        assert (pusher.pushed, pusher.dropped) == (0, 1)


def test_pullers_can_bind_and_leave_out_what_is_not_one_frame() -> None:
    with Puller("tcp://127.0.0.1:0", bind=True) as puller, zmq.Context() as context:
        peer = context.socket(zmq.PUSH)
        peer.connect(puller.addresses[0])
        peer.send_multipart([b"a", b"b"])
        with Pusher(puller.addresses[0], bind=False) as pusher:
            assert pusher.push(b"x")
            found: list[bytes] = []
            deadline = time.monotonic() + TIMEOUT_S
            while not (found and puller.malformed):
                found += puller.poll(0.05)
                assert time.monotonic() < deadline
        peer.close()
        assert found == [b"x"]


def test_curve_lets_in_who_has_an_allowed_key_and_nobody_else() -> None:
    server, friend, stranger = new_curve_keys(), new_curve_keys(), new_curve_keys()
    curve = CurveServer(server, frozenset({friend.public}))
    with Publisher("tcp://127.0.0.1:0", curve=curve) as publisher:
        address = publisher.address
        with (
            Subscriber(address, curve=CurveClient(stranger, server.public)) as refused,
            Subscriber(address) as plain,
            Subscriber(address, curve=CurveClient(friend, server.public)) as allowed,
        ):
            assert publisher.wait_for_subscribers(1, TIMEOUT_S)
            assert not publisher.wait_for_subscribers(2, 0.3)
            publisher.publish(b"c", b"secret")
            [event] = until(allowed, lambda events: bool(events))
            assert event.payload == b"secret"
            assert refused.poll(0) == plain.poll(0) == []


def test_curve_without_a_list_lets_in_each_client_that_knows_the_server() -> None:
    server = new_curve_keys()
    with (
        Puller("tcp://127.0.0.1:0", bind=True, curve=CurveServer(server)) as puller,
        Pusher(
            puller.addresses[0], bind=False, curve=CurveClient(new_curve_keys(), server.public)
        ) as pusher,
    ):
        assert pusher.push(b"secret")
        assert puller.poll(TIMEOUT_S) == [b"secret"]
    assert server.secret.decode() not in repr(server)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Publisher("tcp://nowhere.invalid:1"),
        lambda: Publisher("udp://127.0.0.1:1"),
        lambda: Publisher("", library="nng"),
        lambda: Publisher("tcp://127.0.0.1:99999", library="nng"),
        lambda: Subscriber("no address"),
        lambda: Subscriber([]),
        lambda: Subscriber("inproc://x", channels=[b"\0"]),
        lambda: Publisher("inproc://x", library="carrier pigeon"),  # type: ignore[arg-type]
        lambda: Publisher("inproc://x", queue_size=0),
        lambda: Publisher("inproc://x", library="nng", queue_size=8193),
        lambda: Publisher("inproc://x", library="nng", wait_s=1),
        lambda: Publisher("inproc://x", wait_s=float("nan")),
        lambda: Publisher("inproc://x", wait_s=float("inf")),
        lambda: Publisher("inproc://x", max_message_bytes=2**31),
        lambda: Publisher("inproc://x", max_channels=0),
        lambda: Publisher("inproc://x", max_message_bytes=3).publish(b"c", b"four"),
        lambda: CurveKeys(b"short", b"x" * 40),
        lambda: CurveKeys(b"x" * 40, b"\n" * 40),
    ],
)
def test_what_cannot_be_used_is_refused_with_a_hint(make: Callable[[], object]) -> None:
    with pytest.raises(PubSubError) as raised:
        make()
    assert raised.value.hint


def test_a_closed_socket_is_refused(tmp_path: Path) -> None:
    for library in ("zeromq", "nng"):
        publisher = Publisher(f"ipc://{tmp_path}/{library}", library=library)
        publisher.close()
        publisher.close()
        with pytest.raises(PubSubError, match="closed"):
            publisher.publish(b"c", b"x")


FORKED = """if True:
    import os, sys
    from tidemill.direct.pubsub import ForkedError, Publisher
    publisher = Publisher("tcp://127.0.0.1:0", library={library!r})
    child = os.fork()
    if not child:
        for work in (
            lambda: publisher.publish(b"c", b"x"),
            lambda: publisher.wait_for_subscribers(0, 0),
            lambda: Publisher("tcp://127.0.0.1:0", library={library!r}).close(),
        ):
            try:
                work()
                print("worked")
            except ForkedError as error:
                print("refused", "spawn" in error.hint)
        publisher.close()
        del publisher, work
        sys.exit(7)  # with all that runs at exit
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    assert publisher.publish(b"c", b"x")
"""


@pytest.mark.parametrize(
    ("library", "expected"),
    [
        # libzmq has a new context for the child, so that it can open sockets of its own.
        ("zeromq", ["refused True", "refused True", "worked", "7"]),
        ("nng", ["refused True", "refused True", "refused True", "7"]),
    ],
)
def test_a_forked_child_gets_a_typed_error_and_ends_normally(
    library: str, expected: list[str]
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKED.format(library=library)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert (done.stdout.splitlines(), done.returncode) == (expected, 0), done.stderr


def _publish(address: str) -> None:
    with Publisher(address, library="nng") as publisher:
        assert publisher.wait_for_subscribers(1, TIMEOUT_S)
        publisher.publish(b"c", b"from a spawned process")
        signal.pause()


def test_nng_works_in_a_spawned_process(tmp_path: Path) -> None:
    address = f"ipc://{tmp_path}/s"
    process = multiprocessing.get_context("spawn").Process(target=_publish, args=(address,))
    with Subscriber(address, library="nng") as subscriber:
        process.start()
        try:
            [event] = until(subscriber, lambda events: bool(events))
            assert event.payload == b"from a spawned process"
        finally:
            process.kill()
            process.join()


@pytest.mark.parametrize(("library", "package"), [("zeromq", "pyzmq"), ("nng", "pynng")])
def test_a_missing_library_is_named_with_its_extra(library: str, package: str) -> None:
    program = (
        "from tidemill.direct.pubsub import Publisher\n"
        f"Publisher('inproc://x', library={library!r})"
    )
    done = python_without(["zmq", "pynng"], program)
    assert f"{MissingPackageError.__name__}: the package {package} is not installed" in done.stderr
    assert f"pip install 'tidemill[{library}]'" in done.stderr


def test_the_import_of_the_package_loads_neither_library() -> None:
    program = (
        "import sys, tidemill.direct.pubsub\n"
        "print([each for each in ('zmq', 'pynng', 'asyncio') if each in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=os.environ
    )
    assert done.stdout == "[]\n"
