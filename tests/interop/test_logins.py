"""Real clients log in, by each mechanism that they have, with TLS and without; and are refused."""

from __future__ import annotations

import json
import os
import shutil
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import aiokafka
import amqp.exceptions
import kafka
import kombu
import pika
import pytest
from aiokafka.abc import AbstractTokenProvider as AioTokens
from aiokafka.errors import KafkaError as AioError
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient
from joserfc import jwt
from joserfc.jwk import KeySet, RSAKey
from kafka.net.sasl.oauth import AbstractTokenProvider

from tests.interop.java_client import JavaClient
from tests.support.broker_process import BrokerProcess
from tests.support.certificates import self_signed, signed_by
from tests.support.ports import reserve_port
from tidemill.confluent.clients import Kafka
from tidemill.errors import NotAllowedError
from tidemill.gateway.cluster.asking import requests_to

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl program")

MECHANISMS = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]
Login = tuple[str, str]
PROTOCOLS = ["SASL_PLAINTEXT", "SASL_SSL"]
USER, PASSWORD = "alice", "sécret, =1"
OTHER = "bob"
"""The user of wrong logins: after many, the broker checks a name no more."""
CONFIG = """
[kafka]
port = {kafka}

[logins]
users_file = "users"

[oauth]
jwks = "keys.json"
issuer = "https://issuer"
audience = "broker"
scope = "kafka"

[listeners.sasl_plaintext]
protocol = "SASL_PLAINTEXT"
port = {sasl_plaintext}
mechanisms = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]

[listeners.sasl_ssl]
protocol = "SASL_SSL"
port = {sasl_ssl}
mechanisms = "PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER"
tls_cert = "cert.pem"
tls_key = "key.pem"

[listeners.ssl]
protocol = "SSL"
port = {ssl}
tls_cert = "cert.pem"
tls_key = "key.pem"
tls_client_auth = "required"
tls_client_ca = "authority/cert.pem"

[listeners.amqps]
protocol = "AMQPS"
port = {amqps}
mechanisms = "PLAIN, AMQPLAIN, EXTERNAL"
tls_cert = "cert.pem"
tls_key = "key.pem"
tls_client_auth = "requested"
tls_client_ca = "authority/cert.pem"
tls_principal_rules = "RULE:^CN=([a-z]+),.*$/$1/U,DEFAULT"
"""


class Guarded:
    """A broker with a listener of each kind.

    Attributes:
        folder: its certificate, and that of a client with the name ``CN=carol,O=Example``.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        names = ("kafka", "sasl_plaintext", "sasl_ssl", "ssl", "amqps")
        self.ports = {name: reserve_port() for name in names}
        self_signed(folder)
        (folder / "authority").mkdir()
        authority = self_signed(folder / "authority")
        self.certificate, self.key = signed_by(authority, folder, "/O=Example/CN=carol")
        (folder / "users").write_text(f"{USER}:{PASSWORD}\n{OTHER}:{PASSWORD}\ndave:secret\n")
        (folder / "users").chmod(0o600)
        self._signer = RSAKey.generate_key(2048, {"kid": "1"})
        keys = KeySet([self._signer]).as_dict(private=False)
        (folder / "keys.json").write_text(json.dumps(keys))
        (folder / "tidemill.toml").write_text(CONFIG.format(**self.ports))
        self.broker = BrokerProcess(folder)

    def token(self, **claims: object) -> str:
        """Return a token of the user, with other claims."""
        about = {
            "sub": USER,
            "iss": "https://issuer",
            "aud": "broker",
            "scope": "kafka other",
            "exp": int(time.time()) + 3600,
            **claims,
        }
        return jwt.encode({"alg": "RS256", "kid": "1"}, about, self._signer)

    def address(self, protocol: str) -> str:
        return f"localhost:{self.ports[protocol.lower()]}"

    @property
    def trust(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.folder / "cert.pem"))


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    found = Guarded(tmp_path_factory.mktemp("guarded"))
    with found.broker:
        yield found


# --- clients -------------------------------------------------------------------------------------


def librdkafka_properties(
    g: Guarded, protocol: str, mechanism: str, login: Login, token: str
) -> dict[str, Any]:
    """Return the properties of a login; our own clients have the same."""
    properties: dict[str, Any] = {
        "security.protocol": protocol,
        "sasl.mechanism": mechanism,
        "ssl.ca.location": str(g.folder / "cert.pem"),
    }
    if mechanism == "OAUTHBEARER":
        return {**properties, "oauth_cb": lambda _: (token, time.time() + 3600)}
    return {**properties, "sasl.username": login[0], "sasl.password": login[1]}


def with_confluent(g: Guarded, protocol: str, mechanism: str, login: Login, token: str) -> None:
    failures: list[object] = []
    properties = librdkafka_properties(g, protocol, mechanism, login, token)
    properties |= {"bootstrap.servers": g.address(protocol), "log_level": 0}
    properties["error_cb"] = failures.append
    admin = AdminClient(properties)
    admin.poll(0.1)  # calls back for the token
    try:
        admin.list_topics(timeout=1.0)
    except KafkaException as error:
        raise PermissionError(str(failures) + str(error)) from error


def with_kafka_python(g: Guarded, protocol: str, mechanism: str, login: Login, token: str) -> None:
    class Tokens(AbstractTokenProvider):  # type: ignore[misc]
        def token(self) -> str:
            return token

    by_password = {"sasl_plain_username": login[0], "sasl_plain_password": login[1]}
    by_token = {"sasl_oauth_token_provider": Tokens()}
    try:
        client = kafka.KafkaAdminClient(
            bootstrap_servers=g.address(protocol),
            security_protocol=protocol,
            sasl_mechanism=mechanism,
            ssl_cafile=str(g.folder / "cert.pem"),
            bootstrap_timeout_ms=1000,
            **(by_token if mechanism == "OAUTHBEARER" else by_password),
        )
        client.list_topics()
        client.close()
    except kafka.errors.KafkaError as error:
        raise PermissionError(str(error)) from error


async def with_aiokafka(
    g: Guarded, protocol: str, mechanism: str, login: Login, token: str
) -> None:
    class Tokens(AioTokens):  # type: ignore[misc]
        async def token(self) -> str:
            return token

    by_password = {"sasl_plain_username": login[0], "sasl_plain_password": login[1]}
    by_token = {"sasl_oauth_token_provider": Tokens()}
    client = aiokafka.AIOKafkaProducer(
        bootstrap_servers=g.address(protocol),
        security_protocol=protocol,
        sasl_mechanism=mechanism,
        ssl_context=g.trust if protocol == "SASL_SSL" else None,
        **(by_token if mechanism == "OAUTHBEARER" else by_password),
    )
    try:
        await client.start()
    except AioError as error:
        raise PermissionError(str(error)) from error
    finally:
        await client.stop()


def with_our_own(g: Guarded, protocol: str, mechanism: str, login: Login, token: str) -> None:
    properties = librdkafka_properties(g, protocol, mechanism, login, token)
    try:
        with requests_to(Kafka(g.address(protocol), properties)) as requests:
            assert requests.brokers()
    except NotAllowedError as error:
        raise PermissionError(str(error)) from error


Client = Callable[[Guarded, str, str, Login, str], Any]
CLIENTS: Mapping[str, Client] = {
    "our_own": with_our_own,
    "confluent": with_confluent,
    "kafka_python": with_kafka_python,
    "aiokafka": with_aiokafka,
}


async def connect(client: str, *about: Any) -> None:
    found = CLIENTS[client](*about)
    if found is not None:
        await found


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_a_client_logs_in(
    guarded: Guarded, client: str, protocol: str, mechanism: str
) -> None:
    await connect(client, guarded, protocol, mechanism, (USER, PASSWORD), guarded.token())


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_a_wrong_login_is_refused(guarded: Guarded, client: str, mechanism: str) -> None:
    token = guarded.token(aud="other")
    with pytest.raises(PermissionError):
        await connect(client, guarded, "SASL_PLAINTEXT", mechanism, (OTHER, "wrong"), token)


@pytest.mark.parametrize(
    "claims",
    [
        {"exp": 1_700_000_000},
        {"exp": None},
        {"iss": "https://other"},
        {"aud": ["a", "b"]},
        {"scope": "other"},
        {"sub": None},
        {"nbf": 32_000_000_000},
    ],
    ids=lambda claims: next(iter(claims)),
)
async def test_a_token_that_is_not_for_this_broker_is_refused(
    guarded: Guarded, claims: dict[str, object]
) -> None:
    token = guarded.token(**claims)
    with pytest.raises(PermissionError):
        await with_aiokafka(guarded, "SASL_PLAINTEXT", "OAUTHBEARER", ("", ""), token)


def test_a_client_without_a_login_is_closed(guarded: Guarded) -> None:
    admin = AdminClient({"bootstrap.servers": guarded.address("SASL_PLAINTEXT"), "log_level": 0})
    with pytest.raises(KafkaException):
        admin.list_topics(timeout=1)
    assert "before the login" in guarded.broker.log()


def test_a_certificate_is_a_login(guarded: Guarded) -> None:
    properties: dict[str, Any] = {
        "bootstrap.servers": guarded.address("SSL"),
        "security.protocol": "SSL",
        "ssl.ca.location": str(guarded.folder / "cert.pem"),
        "log_level": 0,
    }
    with pytest.raises(KafkaException):
        AdminClient(dict(properties)).list_topics(timeout=1)
    shown = {
        "ssl.certificate.location": str(guarded.certificate),
        "ssl.key.location": str(guarded.key),
    }
    metadata = AdminClient({**properties, **shown}).list_topics(timeout=30)
    assert [each.port for each in metadata.brokers.values()] == [guarded.ports["ssl"]]


@pytest.mark.skipif(shutil.which("kcat") is None, reason="needs kcat")
@pytest.mark.parametrize("mechanism", MECHANISMS[:3])
def test_kcat_logs_in(guarded: Guarded, mechanism: str) -> None:
    given = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": mechanism,
        "sasl.username": "dave",  # librdkafka 2.0 can't log in with , and = in a password
        "sasl.password": "secret",
        "ssl.ca.location": str(guarded.folder / "cert.pem"),
    }
    properties = [part for key, value in given.items() for part in ("-X", f"{key}={value}")]
    done = subprocess.run(
        ["kcat", "-L", "-b", guarded.address("SASL_SSL"), *properties],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr


# --- clients that are there on demand ------------------------------------------------------------


@pytest.fixture(scope="module")
def java_login(java: JavaClient, guarded: Guarded) -> Callable[..., None]:
    """Runs the program of logins."""
    both = guarded.key.read_text() + guarded.certificate.read_text()
    (guarded.folder / "client-both.pem").write_text(both)

    def run(scenario: str, protocol: str, mechanism: str = "", *login: str) -> None:
        about = (protocol, mechanism, *(login or ("", "")), str(guarded.folder))
        java.run("Logins", scenario, guarded.address(protocol), *about)

    return run


@pytest.mark.slow
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_java_logs_in(java_login: Callable[..., None], protocol: str) -> None:
    mechanisms = ",".join(MECHANISMS[:3])
    java_login("accepted", protocol, mechanisms, "dave", "secret")
    java_login("refused", protocol, mechanisms, OTHER, "wrong")


@pytest.mark.slow
def test_java_logs_in_with_a_certificate(java_login: Callable[..., None]) -> None:
    java_login("accepted", "SSL")


KAFKAJS = """
const { Kafka, logLevel } = require('kafkajs');
const [address, mechanism, username, password] = process.argv.slice(1);
const kafka = new Kafka({
  brokers: [address], logLevel: logLevel.NOTHING, retry: { retries: 0 },
  sasl: { mechanism, username, password },
});
const admin = kafka.admin();
admin.connect().then(() => admin.listTopics()).then(
  () => process.exit(0), (error) => { console.error(error.name); process.exit(3); });
"""


@pytest.mark.skipif(
    "TIDEMILL_KAFKAJS" not in os.environ or shutil.which("node") is None,
    reason="needs node, and TIDEMILL_KAFKAJS=FOLDER where npm has installed kafkajs",
)
@pytest.mark.parametrize("mechanism", MECHANISMS[:3])
@pytest.mark.parametrize("login", [(USER, PASSWORD), (OTHER, "wrong")])
def test_kafkajs_logs_in(guarded: Guarded, mechanism: str, login: Login) -> None:
    done = subprocess.run(
        ["node", "-e", KAFKAJS, guarded.address("SASL_PLAINTEXT"), mechanism.lower(), *login],
        capture_output=True,
        text=True,
        cwd=os.environ["TIDEMILL_KAFKAJS"],
        timeout=60,
    )
    assert done.returncode == (0 if login == (USER, PASSWORD) else 3), done.stderr
    if login[0] == OTHER:
        assert "KafkaJSSASLAuthenticationError" in done.stderr


# --- renewed logins ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker whose logins hold for a second."""
    folder = tmp_path_factory.mktemp("short")
    (folder / "users").write_text(f"{USER}:{PASSWORD}\ndave:secret\n")
    (folder / "users").chmod(0o600)
    settings = {
        "kafka.mechanisms": "SCRAM-SHA-256",
        "logins.users_file": str(folder / "users"),
        "logins.max_session_seconds": "1",
    }
    with BrokerProcess(folder, settings=settings) as broker:
        yield broker


def test_confluent_renews_its_login_on_the_open_connection(short: BrokerProcess) -> None:
    producer = Producer(
        {
            "bootstrap.servers": short.bootstrap,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.username": USER,
            "sasl.password": PASSWORD,
            "retries": 0,
            "linger.ms": 0,
        }
    )
    errors: list[object] = []
    end = time.monotonic() + 2.2
    while time.monotonic() < end:
        producer.produce("renewed", b"v", on_delivery=lambda error, _: errors.append(error))
        assert producer.flush(30) == 0
    assert set(errors) == {None}
    assert "the login has expired" not in short.log(10_000_000)


@pytest.mark.nightly
@pytest.mark.slow
def test_java_renews_its_login_on_the_open_connection(
    short: BrokerProcess, java: JavaClient
) -> None:
    about = ("SASL_PLAINTEXT", "SCRAM-SHA-256", "dave", "secret", str(short.folder))
    java.run("Logins", "renews", short.bootstrap, *about)
    assert "the login has expired" not in short.log(10_000_000)


# --- AMQP ----------------------------------------------------------------------------------------


def test_pika_logs_in_with_the_same_users(guarded: Guarded) -> None:
    def connect(user: str, password: str) -> pika.BlockingConnection:
        login = pika.PlainCredentials(user, password)
        return pika.BlockingConnection(
            pika.ConnectionParameters("127.0.0.1", guarded.broker.amqp_port, credentials=login)
        )

    connect(USER, PASSWORD).close()
    with pytest.raises(pika.exceptions.ProbableAuthenticationError):
        connect(OTHER, "wrong")
    with pytest.raises(pika.exceptions.ProbableAuthenticationError):
        connect("guest", "guest")


@pytest.mark.parametrize("has_certificate", [True, False])
def test_pika_logs_in_with_a_certificate(guarded: Guarded, has_certificate: bool) -> None:
    trust = guarded.trust
    if has_certificate:
        trust.load_cert_chain(guarded.certificate, guarded.key)
    parameters = pika.ConnectionParameters(
        "localhost",
        guarded.ports["amqps"],
        ssl_options=pika.SSLOptions(trust, "localhost"),
        credentials=pika.credentials.ExternalCredentials(),
    )
    if not has_certificate:
        with pytest.raises(pika.exceptions.AMQPConnectionError):
            pika.BlockingConnection(parameters)
        return
    connection = pika.BlockingConnection(parameters)
    channel = connection.channel()
    queue = channel.queue_declare("", exclusive=True).method.queue
    channel.basic_publish("", queue, b"v", pika.BasicProperties(user_id="CAROL"))
    assert connection.is_open
    connection.close()


@pytest.mark.parametrize("method", ["PLAIN", "AMQPLAIN"])
@pytest.mark.parametrize("password", [PASSWORD, "wrong"])
def test_kombu_logs_in(guarded: Guarded, method: str, password: str) -> None:
    connection = kombu.Connection(  # type: ignore[no-untyped-call, attr-defined]
        hostname="127.0.0.1",
        port=guarded.broker.amqp_port,
        userid=USER if password == PASSWORD else OTHER,
        password=password,
        login_method=method,
        connect_timeout=10,
    )
    if password == PASSWORD:
        connection.connect()  # type: ignore[no-untyped-call]
        connection.release()  # type: ignore[no-untyped-call]
    else:
        with pytest.raises(amqp.exceptions.AccessRefused):
            connection.connect()  # type: ignore[no-untyped-call]
