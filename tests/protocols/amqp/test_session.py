"""A connection from its header to its end: the handshake, channels, and what closes them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from unittest.mock import Mock

import pytest

from tests.protocols.amqp.client import CAPABILITIES, Broker, Client, publish_bytes
from tidemill.engine.queues.publish import LivePublisher
from tidemill.net.budget import Hold
from tidemill.protocols.amqp.codec import methods
from tidemill.protocols.amqp.codec.frames import FRAME_MAX
from tidemill.protocols.amqp.handshake import HEADER
from tidemill.protocols.amqp.settings import AmqpListener
from tidemill.protocols.logins.settings import LoginSettings
from tidemill.settings import Limits, Settings
from tidemill.state.security.types import ScramMechanism

HEARTBEAT = b"\x08\x00\x00\x00\x00\x00\x00\xce"
EMPTY_BODY = b"\x03\x00\x01\x00\x00\x00\x00\xce"


async def test_a_client_of_another_protocol_gets_the_header_and_is_closed(broker: Broker) -> None:
    for other in (
        b"AMQP\x00\x01\x00\x00",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x00\x00\x00\x10\x00\x03\x00",
    ):
        client = broker.client()
        client.feed(other)
        assert bytes(client.link.sent) == HEADER
        assert client.link.is_closing


async def test_the_header_can_arrive_byte_by_byte(broker: Broker) -> None:
    client = broker.client()
    for byte in HEADER:
        client.feed(bytes((byte,)))
    assert client.names() == ["Connection.Start"]


async def test_the_broker_names_what_clients_look_for(broker: Broker) -> None:
    client = broker.client()
    client.feed(HEADER)
    ((_, start),) = client.heard()
    properties = start.server_properties
    assert properties["product"] == "RabbitMQ"  # kombu chooses the meaning of basic.qos by it
    assert (3, 3) <= tuple(map(int, properties["version"].split("."))) < (4, 0)
    for capability in (
        "publisher_confirms",
        "basic.nack",
        "consumer_cancel_notify",
        "exchange_exchange_bindings",
        "connection.blocked",
    ):
        assert properties["capabilities"][capability] is True
    assert set(start.mechanisms.split()) == {"PLAIN", "AMQPLAIN"}


def login(client: Client, response: bytes, mechanism: str = "PLAIN", **properties: object) -> None:
    client.feed(HEADER)
    client.say(
        0,
        "connection.start-ok",
        client_properties=properties or CAPABILITIES,
        mechanism=mechanism,
        response=response,
        locale="en_US",
    )


AMQPLAIN = b"\x05LOGINS\x00\x00\x00\x05guest\x08PASSWORDS\x00\x00\x00\x05guest"


@pytest.mark.parametrize(
    ("mechanism", "response", "host", "accepted"),
    [
        ("PLAIN", b"\0guest\0guest", "127.0.0.1", True),
        ("PLAIN", b"\0guest\0guest", "::1", True),
        ("PLAIN", b"\0guest\0guest", "10.0.0.1", False),
        ("PLAIN", b"\0guest\0wrong", "127.0.0.1", False),
        ("PLAIN", b"\0other\0", "127.0.0.1", False),
        ("PLAIN", b"guest", "127.0.0.1", False),
        ("AMQPLAIN", AMQPLAIN, "127.0.0.1", True),
        ("AMQPLAIN", AMQPLAIN[:-1], "127.0.0.1", False),
        ("AMQPLAIN", b"\xff" * 30, "127.0.0.1", False),
        ("EXTERNAL", b"", "127.0.0.1", False),
    ],
)
async def test_login(
    broker: Broker, mechanism: str, response: bytes, host: str, accepted: bool
) -> None:
    client = broker.client()
    client.session._handshake._host = host
    login(client, response, mechanism)
    expected = "Connection.Tune" if accepted else "Connection.Close"
    name, frame = client.heard()[-1]
    assert name == expected
    if not accepted and mechanism != "EXTERNAL":
        assert frame.reply_code == 403
        assert frame.reply_text.startswith("ACCESS_REFUSED - Login was refused")


async def test_an_old_client_with_a_wrong_password_is_just_closed(broker: Broker) -> None:
    client = broker.client()
    login(client, b"\0guest\0wrong", nothing=True)
    assert client.names() == ["Connection.Start"]
    assert client.link.is_closing


async def test_users_of_a_file_log_in_from_anywhere_and_guest_does_not(
    broker: Broker, tmp_path: Path
) -> None:
    users = tmp_path / "users"
    users.write_text("# a comment\nann:secret:with:colons\n\nben:b\n")
    server = broker.server_with(
        Settings(sections=(AmqpListener(users_file=users), LoginSettings(failed_delay_ms=0)))
    )
    for response, expected in (
        (b"\0ann\0secret:with:colons", "Connection.Tune"),
        (b"\0ben\0b", "Connection.Tune"),
        (b"\0guest\0guest", "Connection.Close"),
    ):
        client = broker.client(server)
        client.session._handshake._host = "10.0.0.1"
        login(client, response)
        assert client.names()[-1] == expected


@pytest.mark.parametrize(
    ("tune", "problem"),
    [
        ({"channel_max": 0}, "negotiated channel_max = 0 (no limit) is higher than"),
        ({"channel_max": 2048}, "negotiated channel_max = 2048 is higher than"),
        ({"frame_max": 0}, "negotiated frame_max = 0 (no limit) is higher than"),
        ({"frame_max": 4095}, "negotiated frame_max = 4095 is lower than"),
        ({"frame_max": 131_073}, "negotiated frame_max = 131073 is higher than"),
    ],
)
async def test_limits_that_do_not_fit_are_refused(
    broker: Broker, tune: dict[str, int], problem: str
) -> None:
    client = broker.client()
    login(client, b"\0guest\0guest")
    client.say(0, "connection.tune-ok", **{"channel_max": 9, "frame_max": 8192, **tune})
    name, frame = client.heard()[-1]
    assert (name, frame.reply_code) == ("Connection.Close", 530)
    assert problem in frame.reply_text


async def test_only_the_default_vhost_exists(broker: Broker) -> None:
    client = broker.client()
    login(client, b"\0guest\0guest")
    client.say(0, "connection.tune-ok", channel_max=9, frame_max=8192)
    client.say(0, "connection.open", virtual_host="other")
    name, frame = client.heard()[-1]
    assert (name, frame.reply_code) == ("Connection.Close", 530)


async def test_methods_before_the_connection_is_open_close_it(broker: Broker) -> None:
    client = broker.client()
    client.feed(HEADER)
    client.say(1, "channel.open")
    name, frame = client.heard()[-1]
    assert (name, frame.reply_code) == ("Connection.Close", 503)


async def test_content_before_the_connection_is_open_takes_no_memory(broker: Broker) -> None:
    client = broker.client()
    client.feed(HEADER)
    whole = publish_bytes(1, "", "q", b"x" * 1_000_000)
    client.feed(whole[:-9])  # without its end
    name, frame = client.heard()[-1]
    assert (name, frame.reply_code) == ("Connection.Close", 503)
    assert client.server.listener.budget.used < 70_000


async def test_a_frame_before_the_login_has_64_kib_at_most(broker: Broker) -> None:
    client = broker.client()
    client.feed(HEADER)
    client.feed(b"\x01\x00\x00" + (100_000).to_bytes(4, "big"))
    client.feed(bytes(60_000))
    name, frame = client.heard()[-1]
    assert (name, frame.reply_code) == ("Connection.Close", 501)
    assert client.server.listener.budget.used < 70_000


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (methods.encode(1, "channel.open"), 504),
        (methods.encode(7, "basic.qos"), 504),
        (publish_bytes(7, "", "q", b"x"), 504),
        (methods.encode(300, "channel.open"), 530),
        (methods.encode(0, "basic.qos"), 503),
        (methods.encode(1, "basic.qos", prefetch_size=1), 540),
        (methods.encode(1, "channel.flow", active=False), 540),
        (methods.encode(1, "basic.recover", requeue=False), 540),
        (methods.encode(1, "basic.deliver"), 503),
        (b"\x01\x00\x01\x00\x00\x00\x04\x00\x3c\x00\x63\xce", 540),
        (b"\x01\x00\x01\x00\x00\x00\x04\x00\x3c\x00\x0a\xce", 502),
        (b"\x01\x00\x01\x00\x00\x00\x04\x00\x3c\x00\x0a\xcd", 501),
        (b"\x09\x00\x01\x00\x00\x00\x04\x00\x3c\x00\x0a\xce", 501),
        (b"\x01\x00\x01\x7f\x00\x00\x04\x00\x3c\x00\x0a\xce", 501),
        (b"\x03\x00\x01\x00\x00\x00\x04\x00\x3c\x00\x0a\xce", 505),
        (publish_bytes(1, "", "q", b"x", immediate=True), 540),
    ],
)
async def test_what_closes_a_connection(broker: Broker, data: bytes, code: int) -> None:
    client = await broker.client().open(channel_max=200)
    client.feed(data)
    await client.settle()
    name, frame = client.heard()[-1]
    assert (name, frame.reply_code) == ("Connection.Close", code), frame
    assert not client.link.is_closing
    client.say(0, "connection.close-ok")
    assert client.link.is_closing or code == 501
    await client.closed()


async def test_a_channel_that_is_closed_by_an_error_ignores_what_follows_until_close_ok(
    broker: Broker,
) -> None:
    client = await broker.client().open(channels=2)
    stream = (
        publish_bytes(1, "nowhere", "k", b"1")
        + publish_bytes(1, "nowhere", "k", b"2")
        + methods.encode(1, "queue.declare", queue="q")
        + methods.encode(2, "queue.declare", queue="other")
    )
    client.feed(stream)
    await client.settle()
    (_, closed), (name, _) = client.heard()
    assert (closed.reply_code, closed.class_id, closed.method_id) == (404, 60, 40)
    assert closed.reply_text == "NOT_FOUND - no exchange 'nowhere' in vhost '/'"
    assert name == "Queue.DeclareOk"
    assert broker.names() == {"other"}
    client.say(1, "channel.close-ok")
    assert (await client.ask(1, "channel.open")).name == "Channel.OpenOk"


async def test_a_method_that_waits_holds_back_what_follows(broker: Broker) -> None:
    client = await broker.client().open()
    broker.disk.hold()
    client.feed(
        methods.encode(1, "queue.declare", queue="q")
        + publish_bytes(1, "", "q", b"after", mandatory=True)
    )
    await client.settle()
    assert client.names() == []
    assert client.link.holds == {Hold.QUEUE}
    broker.disk.release()
    await client.settle()
    assert client.names() == ["Queue.DeclareOk"]
    assert client.link.holds == set()
    assert await broker.values() == [b"after"]


async def test_a_long_stream_is_read_in_turns_and_in_order(broker: Broker) -> None:
    client = await broker.client_with_queue()
    count = 20_000
    client.feed(b"".join(publish_bytes(1, "", "q", b"%d" % n) for n in range(count)))
    async with asyncio.timeout(300):
        while broker.queue().published < count or client.link.holds:
            await asyncio.sleep(0)
    await client.settle()
    assert [int(value) for value in await broker.values()] == list(range(count))


@pytest.mark.parametrize("frame", [HEARTBEAT, EMPTY_BODY], ids=["heartbeats", "empty-bodies"])
async def test_a_flood_of_frames_without_effect_is_read_in_turns(
    broker: Broker, frame: bytes
) -> None:
    client = await broker.client_with_queue()
    # The method and the header of a message whose body is 5 bytes.
    client.feed(publish_bytes(1, "", "q", b"hello")[: -len(EMPTY_BODY) - 5])
    server = client.server
    server.shared.turns.spend(1.0)  # the others had this turn
    client.feed(frame * 20_000)
    assert client.link.holds == {Hold.QUEUE}
    looks = 0
    while client.link.holds:
        await asyncio.sleep(0)
        looks += 1
    assert looks > 1
    client.feed(EMPTY_BODY.replace(b"\0\xce", b"\5hello\xce"))
    await client.settle()
    assert await broker.values() == [b"hello"]


async def test_unfinished_messages_on_2000_channels_close_their_connection(
    broker: Broker,
) -> None:
    limit = 1 << 20
    server = broker.server_with(Settings(limits=Limits(connection_inflight_bytes=limit)))
    client = await broker.client(server).open(channels=2000)
    other = await broker.client(server).open()
    most = 0
    body = b"x" * (FRAME_MAX - 7)
    for channel in range(1, 2001):
        client.feed(publish_bytes(channel, "", "q", body)[:-9])  # without the second of two frames
        most = max(most, server.listener.budget.used)
    assert limit - 200_000 < most < limit + 200_000
    await client.settle()
    name, frame = client.heard()[-1]
    assert (name, frame.reply_code) == ("Connection.Close", 506)
    assert "limits.connection_inflight_bytes" in frame.reply_text
    assert server.listener.budget.used < 200_000
    client.say(0, "connection.close-ok")
    await client.closed()
    assert server.listener.budget.used == 0
    assert (await other.ask(1, "queue.declare", queue="q")).name == "Queue.DeclareOk"


async def test_a_message_over_the_limit_closes_the_channel_and_its_body_is_skipped(
    broker: Broker,
) -> None:
    client = broker.client(broker.server_with(Settings(limits=Limits(request_bytes=1024))))
    await client.open(channels=2)
    client.feed(publish_bytes(1, "", "q", b"x" * 2000) + methods.encode(2, "tx.select"))
    await client.settle()
    (_, closed), (name, _) = client.heard()
    assert (closed.name, closed.reply_code) == ("Channel.Close", 406)
    assert name == "Tx.SelectOk"


async def test_update_secret_is_accepted(broker: Broker) -> None:
    client = await broker.client().open()
    answer = await client.ask(0, "connection.update-secret", new_secret=b"s", reason="r")
    assert answer.name == "Connection.UpdateSecretOk"


async def test_closing_a_connection_ends_what_is_its_own_first(broker: Broker) -> None:
    client = await broker.client().open()
    await client.ask(1, "queue.declare", queue="mine", exclusive=True)
    answer = await client.ask(0, "connection.close", reply_code=200, reply_text="bye")
    assert answer.name == "Connection.CloseOk"
    assert broker.names() == set()
    assert client.link.is_finished
    client.say(1, "basic.publish", exchange="nowhere")  # what follows is read, and dropped
    client.feed(b"no frame" * 1000)
    assert client.heard() == []
    assert not client.link.is_closing
    await client.closed()


async def test_a_lost_connection_ends_what_is_its_own(broker: Broker) -> None:
    client = await broker.client().open()
    await client.ask(1, "queue.declare", queue="mine", exclusive=True)
    await client.closed()
    assert broker.names() == set()
    assert client.server.shared.tasks == set()


async def test_a_stop_asks_the_client_to_close(broker: Broker) -> None:
    client = await broker.client().open()
    client.session.stop()
    ((name, frame),) = client.heard()
    assert (name, frame.reply_code) == ("Connection.Close", 320)
    assert "shutdown" in frame.reply_text
    client.say(0, "connection.close-ok")
    assert client.link.is_closing


async def test_a_client_is_held_back_while_consumers_of_what_it_publishes_are_behind(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher = Mock()
    monkeypatch.setattr(LivePublisher, "hold_ms", publisher.hold_ms)
    client = await broker.client_with_queue()
    publisher.hold_ms.return_value = 60_000
    client.publish(1, "", "q", b"x")
    await client.settle()
    ((name, frame),) = client.heard()
    assert (name, frame.reason) == ("Connection.Blocked", "consumers are behind")
    assert Hold.LAG in client.link.holds
    publisher.hold_ms.return_value = 0
    async with asyncio.timeout(300):
        while not (names := client.names()) or Hold.LAG in client.link.holds:
            await asyncio.sleep(0.01)
    assert names == ["Connection.Unblocked"]


async def test_a_client_learns_that_it_waits_for_a_full_disk(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LivePublisher, "is_disk_full", True)
    client = await broker.client_with_queue()
    client.publish(1, "", "q", b"x")
    await client.settle()
    ((name, frame),) = client.heard()
    assert (name, frame.reason) == ("Connection.Blocked", "low on disk")


async def test_a_held_connection_is_read_now_and_then_and_stays_blocked(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher = Mock()
    monkeypatch.setattr(LivePublisher, "hold_ms", publisher.hold_ms)
    client = await broker.client_with_queue()
    publisher.hold_ms.return_value = 1
    client.publish(1, "", "q", b"x")
    await client.settle()
    assert client.names() == ["Connection.Blocked"]
    async with asyncio.timeout(300):
        while Hold.LAG in client.link.holds:
            await asyncio.sleep(0.01)
    client.publish(1, "", "q", b"x")
    await client.settle()
    assert Hold.LAG in client.link.holds
    assert client.names() == []


async def test_a_client_that_publishes_while_memory_is_short_is_blocked_and_unblocked(
    broker: Broker,
) -> None:
    client = await broker.client_with_queue()
    budget = client.server.listener.budget
    broker.disk.hold()
    budget.used += budget.limit + 1
    client.publish(1, "", "q", b"x")
    await client.settle()
    ((name, frame),) = client.heard()
    assert (name, frame.reason) == ("Connection.Blocked", "low on memory")
    budget.used -= budget.limit + 1
    async with asyncio.timeout(300):
        while not (names := client.names()):
            await asyncio.sleep(0.01)
    assert names == ["Connection.Unblocked"]


async def test_the_connections_of_a_deleted_user_end(broker: Broker) -> None:
    admin = broker.engine.user_admin
    for user in ("ann", "ben"):
        await admin.set_password(user, "pw", list(ScramMechanism), 4096)
    sessions = {}
    for user in ("ann", "ben"):
        client = sessions[user] = broker.client()
        login(client, f"\0{user}\0pw".encode())
        await client.settle()
        client.say(0, "connection.tune-ok", channel_max=2047, frame_max=131_072)
        client.say(0, "connection.open", virtual_host="/")
        await client.settle()
        assert client.names()[-1] == "Connection.OpenOk"
    half = broker.client()  # it has logged in, and not opened the virtual host
    login(half, b"\0ann\0pw")
    await half.settle()
    assert half.names()[-1] == "Connection.Tune"

    await admin.set_password("ann", "another", list(ScramMechanism), 4096)
    assert sessions["ann"].names() == []
    await admin.alter([("ann", mechanism, None) for mechanism in ScramMechanism], {})
    for client in (sessions["ann"], half):
        ((name, frame),) = client.heard()
        assert (name, frame.reply_code) == ("Connection.Close", 320)
        assert "the user was deleted" in frame.reply_text
        client.say(0, "connection.close-ok")
        assert client.link.is_closing
    assert sessions["ben"].names() == []
    assert not sessions["ben"].link.is_closing


async def test_guest_stays_when_the_first_user_is_created(broker: Broker) -> None:
    client = await broker.client().open()
    await broker.engine.user_admin.set_password("ann", "pw", list(ScramMechanism), 4096)
    assert (client.names(), client.link.is_closing) == ([], False)
