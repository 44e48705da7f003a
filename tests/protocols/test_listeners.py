"""Listeners by name: their settings, their certificates, and what clients of each get."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from tests.protocols.kafka.wire import Client, eventually
from tests.support.certificates import self_signed, signed_by
from tests.support.faultyfs import HeldDisk
from tidemill.cli.server import settings_file
from tidemill.engine.engine import Engine
from tidemill.errors import SettingsError
from tidemill.net.budget import Budget
from tidemill.net.tls import ListenerTls
from tidemill.protocols.kafka.protocol import PROTOCOL
from tidemill.protocols.kafka.settings import KafkaListener
from tidemill.protocols.listeners import NamedListener
from tidemill.protocols.logins.logins import Logins
from tidemill.settings import Settings

METADATA = (3, 5, {"topics": [], "allow_auto_topic_creation": False})


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ('protocol = "SSL"\nport = 1', "SSL needs tls_cert"),
        ('protocol = "PLAINTEXT"\nport = 1\ntls_cert = "x"', "PLAINTEXT has no TLS"),
        ('protocol = "PLAINTEXT"\nport = 1\nmechanisms = "PLAIN"', "PLAINTEXT has no logins"),
        ('protocol = "TLS"\nport = 1', "protocol = 'TLS'"),
        ('protocol = "PLAINTEXT"', "port is missing"),
        ('protocol = "PLAINTEXT"\nport = 1\nhots = "a"', "unknown key hots"),
        ('protocol = "PLAINTEXT"\nport = 70000', "port = 70000"),
        ('protocol = "PLAINTEXT"\nport = 1\nhost = "http://a"', "expected a host name"),
    ],
)
def test_a_listener_that_does_not_fit_is_refused_with_its_name(
    tmp_path: Path, table: str, problem: str
) -> None:
    file = tmp_path / "tidemill.toml"
    file.write_text(f"[listeners.outside]\n{table}\n")
    with pytest.raises(SettingsError, match="outside") as refused:
        settings_file.load(file, environ={})
    assert problem in str(refused.value)


@pytest.mark.parametrize("text", ["listeners = 1", "listeners = [1]", "[listeners]\na = 1"])
def test_listeners_are_tables_with_names(tmp_path: Path, text: str) -> None:
    file = tmp_path / "tidemill.toml"
    file.write_text(text + "\n")
    with pytest.raises(SettingsError, match="listeners is not a table of tables"):
        settings_file.load(file, environ={})


@pytest.mark.parametrize("name", ["kafka", "PID", '"a b"', '""', '"a.b"'])
def test_a_name_is_short_and_has_no_other_meaning(tmp_path: Path, name: str) -> None:
    file = tmp_path / "tidemill.toml"
    file.write_text(f'[listeners.{name}]\nprotocol = "PLAINTEXT"\nport = 1\n')
    with pytest.raises(SettingsError, match="name"):
        settings_file.load(file, environ={})


def test_mechanisms_are_a_text_or_a_list(tmp_path: Path) -> None:
    file = tmp_path / "tidemill.toml"
    for value in ('["plain", "SCRAM-SHA-256"]', '"plain,SCRAM-SHA-256 ,"'):
        file.write_text(f"[kafka]\nmechanisms = {value}\n")
        kafka = settings_file.load(file, environ={}).settings.section(KafkaListener)
        assert kafka.mechanism_names() == ("PLAIN", "SCRAM-SHA-256")
        assert kafka.security_protocol() == "SASL_PLAINTEXT"


@pytest.mark.parametrize(
    ("mechanisms", "problem"),
    [("GSSAPI", "unknown mechanism 'GSSAPI'"), ("OAUTHBEARER", "needs oauth.jwks")],
)
def test_a_mechanism_that_can_not_be_served_is_refused(mechanisms: str, problem: str) -> None:
    settings = Settings(sections=(KafkaListener(port=0, mechanisms=mechanisms),))
    with pytest.raises(SettingsError, match=problem):
        PROTOCOL.servers(Engine(settings), settings, Budget(1), Logins(settings))


async def test_clients_of_each_listener_get_its_address() -> None:
    named = [
        NamedListener(name="inside", protocol="PLAINTEXT", port=0, advertised_host="inner"),
        NamedListener(name="outside", protocol="PLAINTEXT", port=0, advertised_port=9),
    ]
    settings = Settings(data_dir=Path("/tmp"), sections=(KafkaListener(port=0), *named))
    engine = Engine(settings, fs=HeldDisk())
    await engine.start()
    servers = PROTOCOL.servers(engine, settings, Budget(1 << 20), Logins(settings))
    found = []
    for server in servers:
        address = await server.start()
        client = await Client.connect(address)
        (broker,) = (await client.call(*METADATA))["brokers"]
        found.append((server.listener.name, broker["host"], broker["port"] == address[1]))
        client.close()
    assert found == [
        ("kafka", "127.0.0.1", True),
        ("inside", "inner", True),
        ("outside", "127.0.0.1", False),
    ]
    assert len({id(server.shared.turns) for server in servers}) == 1
    for server in servers:
        await server.stop(1)
    await engine.stop()


@pytest.mark.parametrize("named", [{"tls_client_auth": "required"}, {"tls_client_ca": Path("x")}])
def test_certificates_of_clients_need_an_authority_and_the_other_way(
    named: dict[str, object],
) -> None:
    section = KafkaListener.model_validate({"port": 0, **named})
    with pytest.raises(SettingsError, match="is set and"):
        ListenerTls.of(section).context()


async def test_the_certificate_is_read_again_when_its_files_change(tmp_path: Path) -> None:
    for each in ("one", "two"):
        (tmp_path / each).mkdir()
        self_signed(tmp_path / each)
    cert, key = tmp_path / "one" / "cert.pem", tmp_path / "one" / "key.pem"
    settings = Settings(
        data_dir=Path("/tmp"), sections=(KafkaListener(port=0, tls_cert=cert, tls_key=key),)
    )
    engine = Engine(settings, fs=HeldDisk())
    await engine.start()
    (server,) = PROTOCOL.servers(engine, settings, Budget(1 << 20), Logins(settings))
    server.listener.watch_seconds = 0.01
    address = await server.start()

    async def shown() -> bytes:
        trust = ssl.create_default_context()
        trust.check_hostname, trust.verify_mode = False, ssl.CERT_NONE
        client = await Client.connect(address, ssl=trust)
        found = client.writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        client.close()
        return bytes(found)

    before = await shown()
    with capture_logs() as logs:
        (tmp_path / "two" / "cert.pem").replace(cert)  # the key does not fit yet
        await eventually(lambda: any(each["event"] == "tls.reload_failed" for each in logs))
        assert await shown() == before
    (tmp_path / "two" / "key.pem").replace(key)
    async with asyncio.timeout(60):
        while await shown() == before:
            await asyncio.sleep(0.01)
    await server.stop(1)
    await engine.stop()


async def test_a_certificate_that_no_rule_matches_ends_the_connection(tmp_path: Path) -> None:
    cert, key = self_signed(tmp_path)
    client_cert, client_key = signed_by((cert, key), tmp_path, "/O=Example/CN=carol")
    section = KafkaListener(
        port=0,
        tls_cert=cert,
        tls_key=key,
        tls_client_auth="requested",
        tls_client_ca=cert,
        tls_principal_rules="RULE:^CN=alice$/alice/",
    )
    settings = Settings(data_dir=Path("/tmp"), sections=(section,))
    engine = Engine(settings, fs=HeldDisk())
    await engine.start()
    (server,) = PROTOCOL.servers(engine, settings, Budget(1 << 20), Logins(settings))
    address = await server.start()
    trust = ssl.create_default_context(cafile=str(cert))
    client = await Client.connect(address, ssl=trust, server_hostname="localhost")
    assert (await client.call(*METADATA))["brokers"]  # without a certificate
    client.close()
    trust.load_cert_chain(client_cert, client_key)
    with capture_logs() as logs:
        client = await Client.connect(address, ssl=trust, server_hostname="localhost")
        assert await client.is_closed()
    assert "no rule" in logs[-1]["error"]
    await server.stop(1)
    await engine.stop()
