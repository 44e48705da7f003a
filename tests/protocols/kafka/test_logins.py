"""Logins over the wire: what is served before one, how it is refused, and when it ends."""

from __future__ import annotations

import asyncio
import contextlib
import struct
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from tests.protocols.kafka.keys import API_VERSIONS, FETCH, METADATA, PRODUCE
from tests.protocols.kafka.messages import one_batch
from tests.protocols.kafka.trees import Tree, fetch, fetched, produce
from tests.protocols.kafka.wire import Client, Serving, eventually, request, serving
from tests.support import effort
from tidemill.kafka_client.sasl import Scram
from tidemill.protocols.kafka import login
from tidemill.protocols.kafka.settings import KafkaListener
from tidemill.protocols.logins.failures import (
    MOST_ENTRIES,
    MOST_OF_ADDRESS,
    MOST_OF_USER,
    Failures,
)
from tidemill.protocols.logins.logins import pair
from tidemill.protocols.logins.settings import LoginSettings
from tidemill.state.security.types import ScramMechanism

HANDSHAKE, AUTHENTICATE = 17, 36
MECHANISMS = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
PLAIN = b"\0alice\0secret"
LOGINS = effort.rounds("LOGINS", 200, 1000)
TOPICS = {"topics": [], "allow_auto_topic_creation": False}


@pytest.fixture
def users(tmp_path: Path) -> Path:
    path = tmp_path / "users"
    path.write_text("alice:secret\nbob:builder\n")
    path.chmod(0o600)
    return path


@contextlib.asynccontextmanager
async def guarded(users: Path, *, limits: int = 1000, **logins: int) -> AsyncIterator[Serving]:
    kafka = KafkaListener(port=0, mechanisms=", ".join(MECHANISMS))
    section = LoginSettings(users_file=users, **{"failed_delay_ms": 0} | logins)
    async with serving(kafka, section, connections=limits) as s:
        yield s


async def handshake(client: Client, mechanism: str = "PLAIN", version: int = 1) -> Tree:
    return await client.call(HANDSHAKE, version, {"mechanism": mechanism})


async def authenticate(client: Client, message: bytes, version: int = 2) -> Tree:
    return await client.call(AUTHENTICATE, version, {"auth_bytes": message})


async def logged_in(s: Serving, message: bytes = PLAIN) -> Client:
    client = await greeted(s)
    assert (await authenticate(client, message))["error_code"] == 0
    return client


async def greeted(s: Serving, mechanism: str = "PLAIN", version: int = 1) -> Client:
    """Connect a client, up to its login."""
    client = await s.client()
    assert (await handshake(client, mechanism, version))["error_code"] == 0
    return client


async def check_refused(client: Client, message: bytes) -> None:
    assert (await authenticate(client, message))["error_code"] == 58
    assert await client.is_closed()


async def check_served(client: Client) -> None:
    assert (await client.call(METADATA, 5, TOPICS))["brokers"]
    client.close()


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_after_a_login_requests_are_served_as_the_user(users: Path, version: int) -> None:
    async with guarded(users) as s:
        principals = []
        door = s.engine.door
        s.engine.door = lambda *about: (principals.append(about), door(*about))[1]  # type: ignore
        client = await s.client()
        answer = await client.call(API_VERSIONS, 0, {})
        offered = {each["api_key"] for each in answer["api_keys"]}
        assert {HANDSHAKE, AUTHENTICATE} <= offered
        answer = await handshake(client)
        assert answer["mechanisms"] == MECHANISMS
        answer = await authenticate(client, PLAIN, version)
        assert answer.get("session_lifetime", 0) == 0
        assert (await client.call(METADATA, 5, TOPICS))["brokers"]
        assert [str(each[0]) for each in principals if each] == ["User:alice"]
        client.close()


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
async def test_scram_logs_in(users: Path, mechanism: str) -> None:
    async with guarded(users) as s:
        await check_served(await scram_logged_in(s, "alice", "secret", mechanism))


async def test_version_0_of_the_handshake_is_followed_by_messages_without_headers(
    users: Path,
) -> None:
    async with guarded(users) as s:
        client = await greeted(s, version=0)
        client.writer.write(struct.pack(">i", len(PLAIN)) + PLAIN)
        assert await client.raw_response() == b""
        await check_served(client)
        client = await greeted(s, version=0)
        client.writer.write(struct.pack(">i", 8) + b"\0alice\0x")
        assert await client.is_closed()


async def test_a_request_that_comes_with_the_login_is_answered_after_it(users: Path) -> None:
    async with guarded(users) as s:
        client = await greeted(s)
        client.send(AUTHENTICATE, 2, {"auth_bytes": PLAIN})
        client.send(METADATA, 5, TOPICS)
        assert (await client.response(AUTHENTICATE, 2))[1]["error_code"] == 0
        assert (await client.response(METADATA, 5))[1]["brokers"]
        client.close()


async def test_nothing_else_is_served_before_the_login(users: Path) -> None:
    async with guarded(users) as s:
        for key in (0, 1, 3, 19, 22, AUTHENTICATE, 68):
            client = await s.client()
            asked = struct.pack(">ihhih", 10, key, 1, 1, -1)
            if key == AUTHENTICATE:
                asked = request(key, 0, {"auth_bytes": b""})
            with capture_logs() as logs:
                client.writer.write(asked)
                assert await client.is_closed()
            assert "before the login" in logs[-1]["error"], key


async def test_a_produce_run_before_the_login_is_not_appended(users: Path) -> None:
    async with guarded(users) as s:
        await s.make_topic("t")
        client = await s.client()
        client.writer.write(request(PRODUCE, 9, produce("t", one_batch())) * 3)
        assert await client.is_closed()
        assert s.appended == 0


async def test_an_unknown_mechanism_gets_the_list_and_the_connection_ends(users: Path) -> None:
    async with guarded(users) as s:
        client = await s.client()
        answer = await handshake(client, "GSSAPI")
        assert answer["error_code"] == 33
        assert answer["mechanisms"] == MECHANISMS
        assert await client.is_closed()


async def test_an_open_listener_answers_that_it_needs_no_login() -> None:
    async with serving() as s:
        client = await s.client()
        assert (await handshake(client))["error_code"] == 34
        assert (await authenticate(client, PLAIN))["error_code"] == 34
        await check_served(client)


# --- refusals ------------------------------------------------------------------------------------


async def test_a_failed_login_says_nothing_about_the_user(users: Path) -> None:
    async with guarded(users) as s:
        answers = []
        for message in (b"\0alice\0wrong", b"\0nobody\0wrong", b"malformed"):
            client = await greeted(s)
            with capture_logs() as logs:
                answers.append(await authenticate(client, message))
                assert await client.is_closed()
            assert [each["event"] for each in logs] == ["login.failed"]
            assert "wrong" not in str(logs[0]["user"])
        assert answers[0] == answers[1] == answers[2]
        assert answers[0]["error_code"] == 58
        assert "invalid credentials" in answers[0]["error_message"]


async def test_a_failed_login_is_answered_after_the_delay_and_holds_nobody_back(
    users: Path,
) -> None:
    async with guarded(users, failed_delay_ms=400) as s:
        failing = await greeted(s)
        began = time.monotonic()
        failing.send(AUTHENTICATE, 2, {"auth_bytes": b"\0alice\0wrong"})
        other = await logged_in(s)
        assert time.monotonic() - began < 0.4
        assert (await failing.response(AUTHENTICATE, 2))[1]["error_code"] == 58
        assert time.monotonic() - began >= 0.4
        other.close()


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
async def test_a_name_that_fails_too_often_at_an_address_is_not_checked_there_any_more(
    users: Path, mechanism: str
) -> None:
    async with guarded(users) as s:
        failures = s.server.entrance.logins.by_user
        for _ in range(MOST_OF_USER):
            failures.failed(pair("127.0.0.1", "alice"))
        first = PLAIN if mechanism == "PLAIN" else b"n,,n=alice,r=a"
        await check_refused(await greeted(s, mechanism), first)
        (await logged_in(s, b"\0bob\0builder")).close()
        failures._buckets.clear()
        (await logged_in(s)).close()


async def test_an_address_that_fails_too_often_is_not_checked_any_more(users: Path) -> None:
    async with guarded(users) as s:
        for _ in range(MOST_OF_ADDRESS):
            s.server.entrance.logins.by_address.failed("127.0.0.1")
        await check_refused(await greeted(s), PLAIN)


def test_failures_are_forgotten_with_time_and_bounded() -> None:
    now = 0.0
    failures = Failures(lambda: now, 2, 0.5)
    for _ in range(5):
        failures.failed("a")
    assert not failures.may_try("a")
    now = 2.0
    assert failures.may_try("a")
    for number in range(MOST_ENTRIES + 10):
        failures.failed(str(number))
    assert len(failures._buckets) == MOST_ENTRIES


async def test_clients_that_never_log_in_are_bounded_and_keep_out_nobody(users: Path) -> None:
    async with guarded(users, limits=20) as s:
        idle = [await s.client() for _ in range(10)]
        await eventually(lambda: len(s.server.entrance.logins.pending) == 10)
        client = await logged_in(s)
        assert await idle[0].is_closed()
        assert len(s.server.entrance.logins.pending) == 9
        for each in [*idle, client]:
            each.close()
        await eventually(lambda: not len(s.server.entrance.logins.pending))


async def test_a_client_that_does_not_log_in_is_closed_in_time(
    users: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(login, "LOGIN_SECONDS", 0.05)
    async with guarded(users) as s:
        client = await s.client()
        assert await client.is_closed()


async def test_a_large_request_before_the_login_takes_no_memory(users: Path) -> None:
    async with guarded(users) as s:
        for size in (login.MOST_BYTES + 1, 2**31 - 1, -1):
            client = await s.client()
            client.writer.write(struct.pack(">i", size) + bytes(100))
            assert await client.is_closed()


# --- the end of a login --------------------------------------------------------------------------


async def test_a_login_is_renewed_by_the_same_user_and_mechanism(users: Path) -> None:
    async with guarded(users, max_session_seconds=3600) as s:
        client = await greeted(s)
        answer = await authenticate(client, PLAIN)
        assert 3_590_000 < answer["session_lifetime"] <= 3_600_000
        session = next(iter(s.server.listener._links))._session
        session._expire_login()  # type: ignore[union-attr]
        assert (await handshake(client))["error_code"] == 0
        assert (await authenticate(client, PLAIN))["session_lifetime"] > 3_590_000
        assert (await client.call(METADATA, 5, TOPICS))["brokers"]
        assert (await handshake(client, "SCRAM-SHA-256"))["error_code"] == 34
        assert (await handshake(client, version=0))["error_code"] == 34
        assert (await handshake(client))["error_code"] == 0
        assert (await authenticate(client, b"\0bob\0builder"))["error_code"] == 58
        client.close()


async def test_an_expired_login_ends_the_connection_at_the_next_request(users: Path) -> None:
    async with guarded(users, max_session_seconds=1) as s:
        client = await logged_in(s)
        session = next(iter(s.server.listener._links))._session
        await eventually(lambda: isinstance(session._reader, login.Expired))  # type: ignore
        with capture_logs() as logs:
            client.send(METADATA, 5, TOPICS)
            assert await client.is_closed()
        assert logs[-1]["error"] == "the login has expired"


async def test_a_failed_renewal_ends_the_connection(users: Path) -> None:
    async with guarded(users, max_session_seconds=3600) as s:
        client = await logged_in(s)
        await handshake(client)
        assert (await authenticate(client, b"\0alice\0wrong"))["error_code"] == 58
        client.send(METADATA, 5, TOPICS)
        assert await client.is_closed()


@pytest.mark.parametrize("delay_ms", [0, 100])
async def test_what_follows_a_failed_renewal_is_not_answered(users: Path, delay_ms: int) -> None:
    async with guarded(users, max_session_seconds=3600, failed_delay_ms=delay_ms) as s:
        client = await logged_in(s)
        await handshake(client)
        client.send(AUTHENTICATE, 2, {"auth_bytes": b"\0alice\0wrong"})
        client.send(METADATA, 5, TOPICS)
        assert (await client.response(AUTHENTICATE, 2))[1]["error_code"] == 58
        assert await client.is_closed()


async def test_many_logins_at_once_leave_nothing_behind(users: Path) -> None:
    async with guarded(users, limits=2500) as s:
        for failures in (s.server.entrance.logins.by_user, s.server.entrance.logins.by_address):
            failures._most = 10_000

        async def once(number: int) -> None:
            client = await greeted(s)
            message = PLAIN if number % 2 else b"\0alice\0wrong"
            answer = await authenticate(client, message)
            assert answer["error_code"] == (0 if number % 2 else 58)
            client.close()

        await asyncio.gather(*map(once, range(LOGINS)))
        await eventually(lambda: s.server.listener.connections == 0)
        assert not s.server.shared.logins


async def alter(s: Serving, user: str, password: str | None) -> None:
    """Set the password of a stored user, or delete the user."""
    if password is not None:
        await s.engine.user_admin.set_password(user, password, list(ScramMechanism), 4096)
        return
    gone = [(user, mechanism, None) for mechanism in ScramMechanism]
    assert await s.engine.user_admin.alter(gone, {}) == {user: None}


async def scram_logged_in(
    s: Serving, user: str, password: str, mechanism: str = "SCRAM-SHA-256"
) -> Client:
    client = await greeted(s, mechanism)
    scram = Scram(mechanism[6:].lower().replace("-", ""), user, password)
    first = await authenticate(client, scram.first())
    answer = await authenticate(client, scram.final(first["auth_bytes"]))
    scram.check(answer["auth_bytes"])
    return client


async def test_the_connections_of_a_deleted_user_end_and_those_of_others_stay(
    users: Path,
) -> None:
    async with guarded(users) as s:
        await s.make_topic("t")
        await alter(s, "carol", "pw")
        await alter(s, "dave", "pw")
        theirs = [await logged_in(s, b"\0carol\0pw"), await scram_logged_in(s, "carol", "pw")]
        others = [await logged_in(s), await scram_logged_in(s, "dave", "pw")]
        polling = theirs[0]
        polling.send(FETCH, 11, fetch("t", max_wait=60_000))
        await eventually(lambda: bool(s.reads))
        with capture_logs() as logs:
            await alter(s, "carol", None)
            _, answer = await polling.response(FETCH, 11)  # its long poll ends
            assert fetched(answer) == b""
            for client in theirs:
                assert await client.is_closed()
        (line,) = [each for each in logs if each["event"] == "login.ended"]
        assert (line["user"], line["connections"]) == ("carol", 2)
        for client in others:
            await check_served(client)


async def test_a_user_who_deletes_itself_gets_the_answer_and_then_the_end(users: Path) -> None:
    async with guarded(users) as s:
        await alter(s, "carol", "pw")
        client = await logged_in(s, b"\0carol\0pw")
        gone = [{"name": "carol", "mechanism": number} for number in (1, 2)]
        answer = await client.call(51, 0, {"deletions": gone, "upsertions": []})
        assert [each["error_code"] for each in answer["results"]] == [0]
        client.send(METADATA, 5, TOPICS)
        assert await client.is_closed()


async def test_a_changed_password_or_a_mechanism_less_ends_no_connection(users: Path) -> None:
    async with guarded(users) as s:
        await alter(s, "carol", "pw")
        client = await scram_logged_in(s, "carol", "pw")
        await alter(s, "carol", "another")
        change = ("carol", ScramMechanism.SHA_256, None)
        await s.engine.user_admin.alter([change], {})
        await check_served(client)


async def test_a_user_of_the_file_stays_when_a_stored_user_of_that_name_is_deleted(
    users: Path,
) -> None:
    async with guarded(users) as s:
        await alter(s, "alice", "stored")
        client = await logged_in(s)
        await alter(s, "alice", None)
        await check_served(client)


async def test_a_user_who_is_deleted_during_the_login_does_not_get_in(users: Path) -> None:
    async with guarded(users) as s:
        await alter(s, "carol", "pw")
        client = await greeted(s, "SCRAM-SHA-256")
        scram = Scram("sha256", "carol", "pw")
        first = await authenticate(client, scram.first())
        await alter(s, "carol", None)
        await check_refused(client, scram.final(first["auth_bytes"]))


async def test_many_connections_of_a_deleted_user_end_in_turns(users: Path) -> None:
    async with guarded(users, limits=2500) as s:
        await alter(s, "carol", "pw")
        clients = [await logged_in(s, b"\0carol\0pw") for _ in range(200)]
        other = await logged_in(s)
        await alter(s, "carol", None)
        assert s.server.listener.connections > 100  # the rest ends in later turns
        await alter(s, "dave", "pw")  # another change meanwhile
        await asyncio.gather(*(client.is_closed() for client in clients))
        await eventually(lambda: s.server.listener.connections == 1)
        watched = s.server.entrance.logins._watched
        assert watched is not None
        assert len(watched) == 1
        other.close()
        await eventually(lambda: s.server.listener.connections == 0)
        assert len(watched) == 0
