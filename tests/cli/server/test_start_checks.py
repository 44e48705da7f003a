"""What the broker says at its start about this machine, and what SIGHUP does with TLS."""

from __future__ import annotations

import os
import resource
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from itertools import count
from pathlib import Path

import pika
import pika.exceptions
import pytest
from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic
from structlog.testing import capture_logs

from tests.net.test_tls import make
from tests.support import environment
from tests.support.broker_process import BrokerProcess
from tests.support.processes import StartFailedError, poll_until
from tidemill import system
from tidemill.cli.server import start_checks
from tidemill.errors import SettingsError
from tidemill.protocols.logins.settings import LoginSettings, OauthSettings
from tidemill.settings import Limits, Section, Settings

LIMITED = "import os, resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, ({0}, {1})); "
LIMITED += "os.execv(sys.executable, [sys.executable, '-m', 'tidemill', *sys.argv[1:]])"


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


# --- rights --------------------------------------------------------------------------------------


@pytest.fixture
def umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def test_new_folders_and_files_are_for_their_owner_only(tmp_path: Path, umask: None) -> None:
    with BrokerProcess(tmp_path) as broker:
        broker.terminate()
        assert "data_dir.open_to_others" not in broker.log()
    data = tmp_path / "data"
    assert mode(data) == 0o700
    found = list(data.rglob("*"))
    assert len(found) > 10
    for path in found:
        assert mode(path) == (0o700 if path.is_dir() else 0o600), path


def test_an_existing_folder_is_left_as_it_is_with_a_warning(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    data.chmod(0o755)
    with BrokerProcess(tmp_path) as broker:
        log = broker.log()
    assert "event=data_dir.open_to_others" in log
    assert "mode=0755" in log
    assert mode(data) == 0o755
    data.chmod(0o750)
    with BrokerProcess(tmp_path) as broker:
        assert "data_dir.open_to_others" not in broker.log().rpartition("event=ready")[0][-500:]


# --- address -------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "::1", "localhost"])
def test_a_loopback_address_needs_no_warning(host: str) -> None:
    with capture_logs() as logs:
        start_checks.check_addresses([("kafka", host, 9092)], insecure=False)
    assert logs == []


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.7", "fe80::1%eth0", "broker"])
def test_other_addresses_are_refused_with_the_lines_that_help(host: str) -> None:
    with pytest.raises(SettingsError, match="needs no login") as refused:
        start_checks.check_addresses([("listeners.out", host, 9092)], insecure=False)
    lines = refused.value.hint.splitlines()
    assert [line.partition("=")[0].strip() for line in lines[1:4]] == [
        "[listeners.out]",
        "tls_cert",
        "mechanisms",
    ]
    with capture_logs() as logs:
        start_checks.check_addresses([("kafka", host, 9092)], insecure=True)
    (line,) = logs
    assert (line["event"], line["log_level"]) == ("address.open", "warning")
    assert "need no login" in line["why"]


def test_a_development_broker_says_so_too(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, settings={"telemetry.level": "warning"}) as broker:
        assert broker.log() == ""
        broker.terminate()
    program = "import sys; sys.argv[sys.argv.index('127.0.0.1')] = '0.0.0.0'; "
    program += "from tidemill.cli.main import main; main()"
    command = (sys.executable, "-c", program)
    with BrokerProcess(tmp_path / "open", command=command, settings={"insecure": "true"}) as broker:
        assert "event=address.open" in broker.log()
        assert "host=0.0.0.0" in broker.log()


@pytest.mark.parametrize("verb", ["serve", "dev"])
def test_a_broker_that_is_open_to_others_does_not_start_by_accident(
    verb: str, tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tidemill", verb, "--host", "0.0.0.0", "--kafka-port", "0"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment.without_settings(),
    )
    assert done.returncode == 2
    assert "the listener kafka on 0.0.0.0:0 needs no login" in done.stderr
    assert 'mechanisms = "SCRAM-SHA-256"' in done.stderr
    assert not (tmp_path / "tidemill-data").exists()


@pytest.mark.parametrize("section", [LoginSettings(users_file=Path("u")), OauthSettings(jwks="k")])
def test_a_broker_whose_clients_can_not_log_in_says_so(section: Section) -> None:
    with capture_logs() as logs:
        start_checks.check_users(needed=True, stored=False, settings=Settings())
        for settings, needed, stored in (
            (Settings(), False, False),
            (Settings(), True, True),
            (Settings(sections=(section,)), True, False),
        ):
            start_checks.check_users(needed=needed, stored=stored, settings=settings)
    (line,) = logs
    assert line["event"] == "logins.no_users"
    assert "tidemill user create" in line["hint"]


# --- open files ----------------------------------------------------------------------------------


def test_too_few_open_files_are_told_at_the_start(tmp_path: Path) -> None:
    command = (sys.executable, "-c", LIMITED.format(256, 512))
    with BrokerProcess(tmp_path, command=command) as broker:
        log = broker.log()
    needed = start_checks.needed_files(Limits())
    assert f"event=open_files.too_few allowed=512 needed={needed}" in log
    assert "connections=192 open_files=128" in log


@pytest.mark.parametrize("allowed", [64, 256, 1024, 5000])
def test_the_limits_fit_into_the_open_files_that_the_system_allows(
    allowed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system, "allow_open_files", lambda _: allowed)
    limits = start_checks.fit_open_files(Limits())
    assert limits.connections >= 1
    assert limits.open_files >= 16
    if allowed >= 256:
        assert start_checks.needed_files(limits) <= allowed
        assert limits.connections >= min(1000, (allowed - start_checks.OTHER_FILES) // 2)


def test_limits_that_the_system_allows_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    for allowed in (None, start_checks.needed_files(Limits())):
        monkeypatch.setattr(system, "allow_open_files", lambda _, allowed=allowed: allowed)
        assert start_checks.fit_open_files(Limits()) == Limits()


def test_idle_connections_and_many_partitions_do_not_stop_a_broker_with_few_open_files(
    tmp_path: Path,
) -> None:
    command = (sys.executable, "-c", LIMITED.format(256, 256))
    partitions = 300
    with BrokerProcess(tmp_path, command=command) as broker, ExitStack() as stack:
        config: dict[str, str | int | float | bool] = {"bootstrap.servers": broker.bootstrap}
        producer, admin = Producer({**config, "acks": "all"}), AdminClient(config)
        admin.create_topics([NewTopic("first", 1)])["first"].result(60)
        producer.produce("first", b"v")
        assert producer.flush(60) == 0  # both clients are connected
        for port in (broker.port, broker.amqp_port) * 200:
            stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        topics = [NewTopic(f"t{number}", partitions // 3) for number in range(3)]
        for created in admin.create_topics(topics).values():
            created.result(60)
        failed: list[object] = []
        for topic in topics:
            for partition in range(partitions // 3):
                producer.produce(
                    topic.topic,
                    b"v",
                    partition=partition,
                    on_delivery=lambda error, _: failed.append(error) if error else None,
                )
        assert producer.flush(120) == 0
        assert failed == []
        stack.close()
        broker.kill()
        broker.start()
        consumer = Consumer({**config, "group.id": "g"})
        with closing(consumer):
            for topic in topics:
                for partition in range(partitions // 3):
                    place = TopicPartition(topic.topic, partition)
                    assert consumer.get_watermark_offsets(place, timeout=60) == (0, 1)
        assert "storage.failed" not in broker.log()


def test_a_broker_raises_its_own_limit_of_open_files(tmp_path: Path) -> None:
    needed = start_checks.needed_files(Limits())
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard != resource.RLIM_INFINITY and hard < needed:
        pytest.skip(f"this machine allows {hard} open files only")
    command = (sys.executable, "-c", LIMITED.format(256, needed + 1))
    with BrokerProcess(tmp_path, command=command) as broker:
        assert "open_files" not in broker.log()
        clients = [socket.create_connection(("127.0.0.1", broker.port)) for _ in range(400)]
        for client in clients:
            client.close()
        assert "open files" not in broker.log()


@pytest.mark.skipif(not system.is_linux(), reason="only Linux changes limits of other processes")
def test_without_a_free_descriptor_requests_get_typed_errors_and_the_broker_continues(
    tmp_path: Path,
) -> None:
    with BrokerProcess(tmp_path, fresh=True) as broker:
        config: dict[str, str | int | float | bool] = {"bootstrap.servers": broker.bootstrap}
        admin = AdminClient(config)
        admin.create_topics([NewTopic("t", 1)])["t"].result(60)
        producer = Producer({**config, "acks": "all"})
        producer.produce("t", b"before")
        assert producer.flush(60) == 0
        queues = pika.BlockingConnection(pika.ConnectionParameters(port=broker.amqp_port))
        channel, other = queues.channel(), queues.channel()
        other.confirm_delivery()
        other.queue_declare("q", durable=True)
        before = resource.prlimit(broker.pid, resource.RLIMIT_NOFILE)
        used = {int(each) for each in os.listdir(f"/proc/{broker.pid}/fd")}
        free = next(number for number in count() if number not in used)
        resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (free, before[1]))
        try:
            refused = admin.create_topics([NewTopic("u", 1)])["u"].exception(60)
            assert isinstance(refused, KafkaException)
            assert refused.args[0].code() == KafkaError.KAFKA_STORAGE_ERROR
            assert "too many open files" in refused.args[0].str()
            # Each of these is the first request of its API: its modules are imported now.
            topic = ConfigResource(ConfigResource.Type.TOPIC, "t")
            assert admin.describe_configs([topic])[topic].result(60)
            assert admin.list_consumer_groups().result(60).valid == []
            described = admin.describe_topics(TopicCollection(["t"]))["t"].result(60)
            assert len(described.partitions) == 1
            producer.produce("t", b"meanwhile")
            assert producer.flush(60) == 0
            with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="too many open files"):
                channel.queue_declare("p", durable=True)
            other.basic_publish("", "q", b"meanwhile")
        finally:
            resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, before)
        admin.create_topics([NewTopic("u", 1)])["u"].result(60)
        other.queue_declare("p", durable=True)
        queues.close()
        producer.produce("u", b"after")
        assert producer.flush(60) == 0
        assert "storage.failed" not in broker.log()
        assert "Traceback" not in broker.log()


# --- certificates --------------------------------------------------------------------------------


def certificate_of(port: int) -> bytes:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with (
        socket.create_connection(("127.0.0.1", port), timeout=10) as plain,
        context.wrap_socket(plain) as client,
    ):
        shown = client.getpeercert(binary_form=True)
    assert shown is not None
    return shown


def test_sighup_reloads_the_certificate_and_a_bad_one_keeps_the_old(tmp_path: Path) -> None:
    cert, key = make(tmp_path, "first")
    settings = {"kafka.tls_cert": str(cert), "kafka.tls_key": str(key)}
    with BrokerProcess(tmp_path, settings=settings) as broker:
        first = certificate_of(broker.port)

        new_cert, new_key = make(tmp_path, "second")
        cert.write_bytes(new_cert.read_bytes())  # and not its key yet
        os.kill(broker.pid, signal.SIGHUP)
        poll_until(lambda: "event=tls.reload_failed" in broker.log(), 10, "the error")
        assert "does not belong to the certificate" in broker.log()
        assert certificate_of(broker.port) == first

        key.write_bytes(new_key.read_bytes())
        os.kill(broker.pid, signal.SIGHUP)
        poll_until(lambda: "event=tls.reloaded" in broker.log(), 10, "the reload")
        second = certificate_of(broker.port)
        assert second == ssl.PEM_cert_to_DER_cert(new_cert.read_text())
        assert second != first
        assert broker.terminate() == 0


def test_a_wrong_key_ends_the_start_before_the_data_folder_is_made(tmp_path: Path) -> None:
    cert, _ = make(tmp_path, "a")
    for settings, said in (
        ({"kafka.tls_cert": str(cert)}, "has a certificate and no private key"),
        ({"kafka.tls_key": str(cert)}, "kafka.tls_cert is not"),
    ):
        with pytest.raises(StartFailedError, match=said):
            BrokerProcess(tmp_path, settings=settings).start()
        assert not (tmp_path / "data").exists()
