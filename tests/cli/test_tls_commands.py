"""Commands and a broker of which only one speaks TLS: the error says so, and what to set."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import CommandLine
from tests.support.broker_process import BrokerProcess
from tests.support.certificates import self_signed

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl program")


@pytest.fixture(scope="module")
def tls_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tls")


@pytest.fixture(scope="module")
def tls_broker(tls_folder: Path) -> Iterator[BrokerProcess]:
    cert, key = self_signed(tls_folder)
    settings = {"kafka.tls_cert": str(cert), "kafka.tls_key": str(key)}
    with BrokerProcess(tls_folder / "broker", settings=settings) as process:
        yield process


@pytest.mark.parametrize("command", [["topic", "list"], ["group", "list"], ["transaction", "list"]])
def test_a_client_without_tls_learns_that_the_broker_has_it(
    tls_broker: BrokerProcess,
    tls_folder: Path,
    command: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tidemill = CommandLine(tls_broker.bootstrap, tls_folder)
    done = tidemill.run(*command)
    assert (done.returncode, done.stdout) == (5, "")
    error, hint = done.stderr.splitlines()
    assert (
        error == f"error: the server at {tls_broker.bootstrap} speaks TLS, and this client does not"
    )
    assert "-X security.protocol=SSL" in hint
    trust = ("-X", "security.protocol=SSL", "-X", f"ssl.ca.location={tls_folder / 'cert.pem'}")
    tidemill.ok(*command, *trust)
    monkeypatch.setattr("tidemill.cli.client.CONNECT_SECONDS", 1.0)  # librdkafka tries so long
    done = tidemill.run(*command, "-X", "security.protocol=SSL")
    assert done.returncode == 5
    assert "its certificate is not valid here" in done.stderr
    assert "-X ssl.ca.location=FILE" in done.stderr


def test_a_command_with_tls_causes_no_failed_handshake(
    tls_broker: BrokerProcess, tls_folder: Path
) -> None:
    before = tls_broker.log().count("TLS handshake failed")
    tidemill = CommandLine(tls_broker.bootstrap, tls_folder)
    trust = ("-X", "security.protocol=SSL", "-X", f"ssl.ca.location={tls_folder / 'cert.pem'}")
    tidemill.ok("topic", "list", *trust)
    assert tls_broker.log().count("TLS handshake failed") == before


def test_a_client_with_tls_learns_that_the_broker_has_none(tidemill: CommandLine) -> None:
    done = tidemill.run("topic", "list", "-X", "security.protocol=SSL")
    assert done.returncode == 5
    assert "does not speak TLS" in done.stderr
    assert "Leave out -X security.protocol" in done.stderr


def test_doctor_recognizes_a_broker_with_tls(tls_broker: BrokerProcess, tls_folder: Path) -> None:
    tidemill = CommandLine(tls_broker.bootstrap, tls_folder)
    port = ("doctor", "--kafka-port", str(tls_broker.port))
    other = tidemill.ok(*port, "--data-dir", str(tls_folder / "other"))
    assert "a server answers with TLS. It may be a broker with another data folder" in other
    assert f"tidemill topic list -b {tls_broker.bootstrap} -X security.protocol=SSL" in other
    own = tidemill.ok(*port, "--data-dir", str(tls_broker.data_dir))
    assert "a server answers with TLS, and the data folder is in use" in own
