"""Requests log in, and the broker decides what each user can do."""

from __future__ import annotations

import asyncio
import json
import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

import httpx
import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from joserfc import jwt
from joserfc.jwk import KeySet, RSAKey

from tests.support.broker_process import BrokerProcess
from tests.support.effort import bound, in_nightly_runs
from tests.support.ports import reserve_port
from tests.support.processes import poll_until
from tidemill.amqp_client.connection import AmqpClient
from tidemill.confluent.asking import TopicQuestions
from tidemill.confluent.clients import Kafka
from tidemill.errors import SettingsError, TidemillError
from tidemill.gateway import users as users_module
from tidemill.gateway.cluster.asking import requests_to
from tidemill.gateway.errors import HttpError
from tidemill.gateway.parts import Parts
from tidemill.gateway.settings import GatewaySettings
from tidemill.gateway.users import Users
from tidemill.kafka_client.errors import UnsupportedSettingError

pytestmark = pytest.mark.skipif(
    not users_module.has_tokens(), reason="tokens need confluent-kafka 2.13"
)

CONFIG = """
[kafka]
mechanisms = "SCRAM-SHA-256, OAUTHBEARER"
[logins]
users_file = "users"
[security]
admin_file = "admins"
[oauth]
jwks = "keys.json"
[gateway]
logins = "basic, bearer"
"""
ADMIN, ALICE = ("admin", "pässword:1"), ("alice", "secret")
RECORD = {"value": "v"}


class Guarded:
    """A broker with rules, and its gateway."""

    def __init__(self, folder: Path) -> None:
        self._signer = RSAKey.generate_key(2048, {"kid": "1"})
        (folder / "keys.json").write_text(json.dumps(KeySet([self._signer]).as_dict(private=False)))
        for name, user in (("users", ALICE), ("admins", ADMIN)):
            (folder / name).write_text(":".join(user) + "\n")
            (folder / name).chmod(0o600)
        (folder / "tidemill.toml").write_text(CONFIG)
        port = reserve_port()
        settings = {"gateway.enabled": "true", "gateway.port": str(port)}
        self.broker = BrokerProcess(folder, settings=settings)
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60, trust_env=False)

    def is_up(self) -> bool:
        try:
            return self.client.get("/docs").status_code == 200
        except httpx.TransportError:
            return False

    def bearer(self, user: str, **claims: object) -> dict[str, str]:
        about = {"sub": user, "exp": int(time.time()) + 600, **claims}
        token = jwt.encode({"alg": "RS256", "kid": "1"}, about, self._signer)
        return {"authorization": f"Bearer {token}"}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    found = Guarded(tmp_path_factory.mktemp("guarded"))
    with found.broker, found.client:
        poll_until(found.is_up, 60, "the gateway answers")
        properties: dict[str, Any] = {
            "bootstrap.servers": found.broker.bootstrap,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.username": ADMIN[0],
            "sasl.password": ADMIN[1],
        }
        admin = AdminClient(properties)
        admin.create_topics([NewTopic("t", 1)])["t"].result(60)
        yield found


def test_a_user_with_rights_reads_and_writes(guarded: Guarded) -> None:
    for login in ({"auth": ADMIN}, {"headers": guarded.bearer("admin")}):
        answer = guarded.client.post("/topics/t", json=RECORD, **cast(Any, login))
        assert answer.status_code in (200, 201), answer.text
        assert guarded.client.get("/topics/t", **cast(Any, login)).status_code == 200


def test_a_user_without_rights_is_refused_by_the_broker(guarded: Guarded) -> None:
    for login in ({"auth": ALICE}, {"headers": guarded.bearer("alice")}):
        answer = guarded.client.post("/topics/t", json=RECORD, **cast(Any, login))
        assert answer.status_code in (403, 404), answer.text  # may not be described: not found
        assert guarded.client.get("/topics", **cast(Any, login)).json()["topics"] == []


@pytest.mark.parametrize("kind", ["basic", *in_nightly_runs("bearer")])
def test_a_query_has_the_rights_of_its_user(guarded: Guarded, kind: str) -> None:
    pytest.importorskip("duckdb", minversion="1.5", reason="the extra tidemill[sql] needs it")

    def rows(user: tuple[str, str]) -> httpx.Response:
        login: Any = {"auth": user} if kind == "basic" else {"headers": guarded.bearer(user[0])}
        body = {"statement": "SELECT count(*) > 0 FROM t"}
        return guarded.client.post("/sql", content=json.dumps(body), **_typed(login))

    assert guarded.client.post("/topics/t", json=RECORD, auth=ADMIN).status_code in (200, 201)
    assert rows(ADMIN).json()["rows"] == [[True]]
    assert rows(ALICE).status_code in (403, 404)


def test_pages_ask_the_broker_with_the_token_of_their_user(guarded: Guarded) -> None:
    with requests_to(as_admin(guarded)) as requests:
        assert [each.port for each in requests.brokers().values()] == [guarded.broker.port]


def as_admin(guarded: Guarded, **claims: object) -> Kafka:
    """The broker, with a token of the administrator."""
    token = guarded.bearer("admin", **claims)["authorization"].partition(" ")[2]
    login: dict[str, Any] = {
        "sasl.mechanism": "OAUTHBEARER",
        "oauth_cb": users_module._Token(token),
    }
    return Kafka(guarded.broker.bootstrap, {**SASL.properties, **login})


class NeverMadeKafka(Kafka):
    """A cluster of which no client of confluent-kafka can be made: with a token, it sleeps."""

    def make(self, kind: Any, config: dict[str, Any]) -> Any:
        raise AssertionError(f"made a {kind.__name__}")


def test_questions_with_a_token_get_the_same_answers_without_a_client_that_sleeps(
    guarded: Guarded,
) -> None:
    for _ in range(2):
        posted = guarded.client.post("/topics/t", json=RECORD, auth=ADMIN)
        assert posted.status_code in (200, 201)
    login = {"sasl.username": ADMIN[0], "sasl.password": ADMIN[1]}
    login["sasl.mechanism"] = "SCRAM-SHA-256"
    slow = TopicQuestions(Kafka(guarded.broker.bootstrap, {**SASL.properties, **login}), "tests")
    token = as_admin(guarded)
    own = TopicQuestions(NeverMadeKafka(token.servers, token.properties), "tests")
    assert own.names() == slow.names() >= {"t"}
    assert own.extents("t") == slow.extents("t")
    assert own.extents("t")[0].end >= 2
    assert own.ends("t") == slow.ends("t")
    assert own.extents("missing") == slow.extents("missing") == {}
    assert own.since("t", [0], -5) == slow.since("t", [0], -5) == {0: 0}
    future_ms = int(time.time() * 1000) + 60_000
    assert own.since("t", [0], future_ms) == slow.since("t", [0], future_ms) == {0: -1}
    for asking in (own, slow):
        assert asking.extents("not/a/name") == {}


def status_of_check(kafka: Kafka) -> int | None:
    """The status with which a login is refused."""
    try:
        users_module._check(kafka)
    except HttpError as error:
        return error.status
    return None


def test_a_token_is_checked_without_a_client_that_sleeps(guarded: Guarded) -> None:
    for kafka, expected in ((as_admin(guarded), None), (as_admin(guarded, exp=1), 401)):
        assert status_of_check(NeverMadeKafka(kafka.servers, kafka.properties)) == expected


@pytest.mark.parametrize(("password", "status"), [(ADMIN[1], None), ("wrong", 401)])
def test_a_login_is_checked_where_connections_need_what_only_librdkafka_has(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch, password: str, status: int | None
) -> None:
    def unsupported(*_: object) -> None:
        raise UnsupportedSettingError("ssl.curves.list is not supported here")

    monkeypatch.setattr(users_module, "requests_to", unsupported)
    login = {"sasl.mechanism": "SCRAM-SHA-256", "sasl.username": ADMIN[0]}
    properties = {**SASL.properties, **login, "sasl.password": password}
    assert status_of_check(Kafka(guarded.broker.bootstrap, properties)) == status


def test_a_broker_that_does_not_answer_or_refuses_tls_is_503_and_not_a_wrong_login(
    guarded: Guarded,
) -> None:
    assert status_of_check(SASL) == 503
    kafka = as_admin(guarded)
    properties = {**kafka.properties, "security.protocol": "SASL_SSL"}
    assert status_of_check(Kafka(kafka.servers, properties)) == 503


def _typed(login: dict[str, Any]) -> dict[str, Any]:
    kind = {"content-type": "application/json"}
    return {**login, "headers": {**login.get("headers", {}), **kind}}


@pytest.mark.parametrize(
    "authorization",
    [
        None,
        "Basic",
        "Basic !!!",
        "Basic YWxpY2U=",  # no colon
        "Basic YWxpY2U6",  # no password
        "Basic OnNlY3JldA==",  # no name
        "Digest username=alice",
        "Bearer",
        "Bearer " + "x" * 20_000,
    ],
)
def test_a_request_without_a_login_is_401(guarded: Guarded, authorization: str | None) -> None:
    headers = {"authorization": authorization} if authorization else {}
    answer = guarded.client.get("/topics", headers=headers)
    assert answer.status_code == 401
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["www-authenticate"].startswith('Basic realm="tidemill"')
    assert answer.json()["error"] == "unauthorized"


def test_a_wrong_login_is_401_and_says_nothing_else(guarded: Guarded) -> None:
    wrong = [
        guarded.client.get("/topics", auth=("bob", "wrong")),
        guarded.client.get("/topics", auth=("carol", "secret")),
        guarded.client.get("/topics", headers=guarded.bearer("admin", exp=1)),
    ]
    assert [each.status_code for each in wrong] == [401, 401, 401]
    assert len({each.text for each in wrong}) == 1


def test_the_documentation_needs_no_login(guarded: Guarded) -> None:
    for path in ("/", "/docs", "/openapi.json"):
        assert guarded.client.get(path, follow_redirects=False).status_code < 400


def test_the_console_shows_what_the_user_may_see(guarded: Guarded) -> None:
    base = str(guarded.client.base_url)
    seen = {}
    for user in (ADMIN, ALICE):
        with httpx.Client(base_url=base, timeout=60, trust_env=False) as browser:
            refused = browser.get("/console/topics")
            assert refused.headers["location"] == "/console/login?next=%2Fconsole%2Ftopics"
            form = browser.get(refused.headers["location"])
            token = re.search(r'name="csrf" value="(\w+)"', form.text)
            assert token is not None
            fields = {"csrf": token[1], "name": user[0], "password": user[1]}
            done = browser.post(refused.headers["location"], data=fields)
            assert done.headers["location"] == "/console/topics", done.text
            found = browser.get("/console/topics.json").json()["topics"]["rows"]
            seen[user[0]] = {each["name"] for each in found}
            assert user[0] in browser.get("/console/topics").text
    assert "t" in seen["admin"]
    assert seen["alice"] == set()


def test_requests_of_a_user_who_was_deleted_are_401_at_once(guarded: Guarded) -> None:
    dora = ("dora", "a password")
    login = {"sasl.mechanism": "SCRAM-SHA-256", "sasl.username": ADMIN[0]}
    admin = AdminClient(
        {
            **SASL.properties,
            **login,
            "sasl.password": ADMIN[1],
            "bootstrap.servers": guarded.broker.bootstrap,
        }
    )
    made = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
    for change in (
        UserScramCredentialUpsertion(dora[0], made, dora[1].encode()),
        UserScramCredentialDeletion(dora[0], ScramMechanism.SCRAM_SHA_256),
    ):
        if isinstance(change, UserScramCredentialDeletion):
            for _ in range(2):  # also of clients that are connected
                assert guarded.client.post("/topics/t", json=RECORD, auth=dora).status_code == 200
                assert guarded.client.get("/topics/t", auth=dora).status_code == 200
        else:
            rule = AclBinding(
                ResourceType.TOPIC,
                "t",
                ResourcePatternType.LITERAL,
                "User:dora",
                "*",
                AclOperation.ALL,
                AclPermissionType.ALLOW,
            )
            admin.create_acls([rule])[rule].result(60)
        admin.alter_user_scram_credentials([change])[dora[0]].result(60)

    def status(method: str, path: str, **body: Any) -> int:
        found = guarded.client.request(method, path, auth=dora, **body).status_code
        assert found in (200, 401)
        return found

    began = time.monotonic()
    with ThreadPoolExecutor(2) as threads:
        for statuses in threads.map(
            lambda request: [status(*request[:2], **request[2]) for _ in range(5)],
            [("POST", "/topics/t", {"json": RECORD}), ("GET", "/topics/t", {})],
        ):
            assert statuses[-1] == 401
    assert time.monotonic() - began < bound(4, normal=30)


# --- without a broker ----------------------------------------------------------------------------


class FakeClock:
    """Seconds that a test sets."""

    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


SASL = Kafka(
    "127.0.0.1:1",
    {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "gateway",
        "sasl.password": "x",
    },
)


def scope(user: str, path: str = "/topics") -> dict[str, Any]:
    value = httpx.BasicAuth(user, "x")._auth_header.encode()
    return {"type": "http", "path": path, "client": ("127.0.0.1", 1)} | {
        "headers": [(b"authorization", value)]
    }


async def test_clients_of_users_are_bounded_and_checked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checks: list[str] = []
    is_refused = False

    def check(kafka: Kafka) -> None:
        checks.append(kafka.properties["sasl.username"])
        if is_refused:
            raise HttpError(401, "unauthorized", "no")

    monkeypatch.setattr(users_module, "_check", check)
    monkeypatch.setattr(users_module, "MOST_USERS", 2)
    own, clock = Parts.start(SASL, GatewaySettings()), FakeClock()
    users = Users(own, frozenset({"basic"}), clock)
    async with users.parts(scope("a")) as first, users.parts(scope("a")) as again:
        assert first is again
        assert first is not own
        assert first.budget is own.budget
        async with users.parts(scope("b")):
            with pytest.raises(HttpError, match="too many users"):
                async with users.parts(scope("c")):
                    pass
        async with users.parts(scope("c")):  # in the place of b
            pass
    assert checks == ["a", "b", "c", "c"]
    clock.seconds = users_module.CHECKED_S + 1
    is_refused = True
    with pytest.raises(HttpError, match="no"):
        async with users.parts(scope("a")):
            pass
    assert len(users._users) == 1  # its clients are gone
    for _ in range(20):
        with pytest.raises(HttpError) as refused:
            async with users.parts(scope("guess")):
                pass
    assert refused.value.status == 429
    await users.close()
    await own.close()


async def test_clients_of_a_login_that_is_not_valid_any_more_are_closed_without_a_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = {  # the first is that to the request
        "deleted": [0, 401, 401],
        "guessed": [0, 401, 0, 401, 0],  # too many have guessed at the name for a moment
        "away": [0, *[503] * 9],
    }
    looks = dict.fromkeys(answers, 0)

    def check(kafka: Kafka) -> None:
        name = kafka.properties["sasl.username"]
        looks[name] += 1
        status = answers[name].pop(0) if answers[name] else 0
        if status:
            raise HttpError(status, "refused", "no")

    monkeypatch.setattr(users_module, "_check", check)
    monkeypatch.setattr(users_module, "LOOK_AGAIN_S", 0.001)
    own = Parts.start(SASL, GatewaySettings())
    users = Users(own, frozenset({"basic"}), FakeClock())
    for name in answers:
        async with users.parts(scope(name)) as parts:
            assert parts is not own
    async with asyncio.timeout(30):
        while looks["away"] < 12 or len(users._users) > 2:
            await asyncio.sleep(0.001)
    left = {each.parts.kafka.properties["sasl.username"] for each in users._users.values()}
    assert left == {"guessed", "away"}
    assert looks["deleted"] == 3  # the login, and two refusals
    await asyncio.gather(users.close(), own.close())


async def test_a_refused_login_that_is_found_twice_at_a_time_is_401(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(users_module, "_check", lambda kafka: None)
    own = Parts.start(SASL, GatewaySettings())
    users = Users(own, frozenset({"basic"}), FakeClock())

    async def refuse(kafka: Kafka) -> None:
        users._forget(next(iter(users._users)))  # the look without a request was faster
        raise HttpError(401, "refused", "no")

    async def fail() -> None:
        async with users.parts(scope("deleted")):
            monkeypatch.setattr(users, "_run", refuse)
            raise HttpError(503, "unavailable", "no")

    with pytest.raises(HttpError) as refused:
        await fail()
    assert refused.value.status == 401
    await asyncio.gather(users.close(), own.close())


async def test_new_tokens_hold_up_no_other_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(users_module, "_check", lambda kafka: None)
    own, longest, at = Parts.start(SASL, GatewaySettings()), 0.0, time.monotonic()
    users = Users(own, frozenset({"bearer"}))

    async def log_in(token: str) -> None:
        headers = [(b"authorization", f"Bearer {token}".encode())]
        about = {"type": "http", "path": "/topics", "headers": headers, "client": ("127.0.0.1", 1)}
        async with users.parts(about) as parts:
            assert parts is not own

    logins = asyncio.gather(*(log_in(token) for token in ("a", "b", "b")))
    while not logins.done():
        await asyncio.sleep(0.01)
        longest, at = max(longest, time.monotonic() - at), time.monotonic()
    await logins
    assert longest < 0.9  # each of the four clients sleeps for a second
    assert len(users._users) == 2
    await asyncio.gather(users.close(), own.close())


async def test_many_wrong_logins_at_a_time_hold_up_nothing_and_few_are_checked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checks: list[str] = []
    gate = threading.Event()

    def check(kafka: Kafka) -> None:
        checks.append(kafka.properties["sasl.username"])
        assert gate.wait(30)
        raise HttpError(401, "unauthorized", "no")

    async def log_in(user: str) -> int:
        with pytest.raises(HttpError) as refused:
            async with users.parts(scope(user)):
                pass
        return refused.value.status

    monkeypatch.setattr(users_module, "_check", check)
    own = Parts.start(SASL, GatewaySettings())
    users = Users(own, frozenset({"basic"}), FakeClock())
    calls = [asyncio.create_task(log_in(f"u{n}")) for n in range(200)]
    async with asyncio.timeout(30):
        while not checks:
            await asyncio.sleep(0.001)
        assert await asyncio.to_thread(len, checks) <= users_module._CHECKS
        gate.set()
        statuses = await asyncio.gather(*calls)
    assert set(statuses) == {401, 429, 503}
    assert 10 <= len(checks) <= 10 + users_module._CHECKS
    assert statuses.count(503) == 100
    await asyncio.gather(users.close(), own.close())


async def test_requests_of_a_new_user_that_come_together_are_checked_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checks: list[str] = []

    def check(kafka: Kafka) -> None:
        checks.append(kafka.properties["sasl.username"])

    async def log_in() -> Parts:
        async with users.parts(scope("a")) as parts:
            return parts

    monkeypatch.setattr(users_module, "_check", check)
    own = Parts.start(SASL, GatewaySettings())
    users = Users(own, frozenset({"basic"}), FakeClock())
    found = await asyncio.gather(*(log_in() for _ in range(50)))
    assert all(each is found[0] for each in found)
    assert checks == ["a"]
    await asyncio.gather(users.close(), own.close())


async def test_logins_that_the_broker_would_not_check_are_refused() -> None:
    own = Parts.start(Kafka("127.0.0.1:1"), GatewaySettings())
    with pytest.raises(SettingsError, match="any password would do"):
        Users(own, frozenset({"basic"}))
    users = Users(own, frozenset())
    async with users.parts(scope("a")) as parts:
        assert parts is own
    await asyncio.gather(users.close(), own.close())


def test_the_management_api_shows_and_closes_what_the_user_may(guarded: Guarded) -> None:
    client = guarded.client

    def names(**login: Any) -> list[str]:
        answer = client.get("/api/connections", **login)
        assert answer.status_code == 200, answer.text
        return [each["name"] for each in answer.json()]

    url = f"amqp://admin:{quote(ADMIN[1])}@127.0.0.1:{guarded.broker.amqp_port}/"
    with AmqpClient(url) as amqp:
        poll_until(lambda: bool(names(auth=ADMIN)), 30, "the connection is listed")
        (name,) = names(auth=ADMIN)
        assert client.get("/api/whoami", auth=ADMIN).json()["name"] == "admin"
        where = f"/api/connections/{quote(name, safe='')}"
        for refused in (
            client.get("/api/connections", auth=ALICE),
            client.get("/api/connections"),
            client.delete(where, auth=ALICE),
            client.delete(where, headers=guarded.bearer("admin")),
        ):
            assert refused.status_code == 401, refused.text
        amqp.call("basic.qos", prefetch_count=1)
        assert client.delete(where, auth=ADMIN).status_code == 204
        with pytest.raises(TidemillError, match="CONNECTION_FORCED"):
            amqp.call("basic.qos", prefetch_count=1)
