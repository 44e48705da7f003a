"""A broker that a program starts for itself."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pika
import psutil
import pytest

import tidemill
from tests.support.processes import poll_until
from tidemill.confluent.clients import Kafka
from tidemill.local.broker import Broker, BrokerProcessError


def test_a_broker_with_a_temporary_folder_leaves_nothing_behind() -> None:
    with tidemill.Broker(amqp=True) as broker:
        process = psutil.Process(broker.pid)
        Kafka(broker.bootstrap_servers).create_topics("test", {"t": (3, {})})
        assert len(Kafka(broker.bootstrap_servers).partitions("test", "t")) == 3
        with pika.BlockingConnection(pika.URLParameters(broker.amqp_url)) as connection:
            connection.channel().queue_declare("q")
        folder = broker.data_dir.parent
        assert folder.exists()
        assert broker.bootstrap_servers in repr(broker)
    assert not process.is_running()
    assert not folder.exists()
    assert "stopped" in repr(broker)
    broker.stop()
    with pytest.raises(BrokerProcessError, match="stopped"):
        _ = broker.pid


def test_a_data_folder_is_kept_for_the_next_broker(tmp_path: Path) -> None:
    with tidemill.Broker(tmp_path / "data", settings={"default_partitions": "2"}) as broker:
        Kafka(broker.bootstrap_servers).create_topics("test", {"t": (-1, {})})
    with tidemill.Broker(tmp_path / "data") as broker:
        assert len(Kafka(broker.bootstrap_servers).partitions("test", "t")) == 2
    assert (tmp_path / "data.log").exists()


def test_a_broker_that_was_killed_is_followed_by_one_with_its_port(tmp_path: Path) -> None:
    with tidemill.Broker(tmp_path / "data") as killed:
        Kafka(killed.bootstrap_servers).create_topics("test", {"t": (2, {})})
        address = killed.bootstrap_servers
        psutil.Process(killed.pid).kill()
    port = int(address.rpartition(":")[2])
    with tidemill.Broker(tmp_path / "data", port=port) as broker:
        assert broker.bootstrap_servers == address
        assert len(Kafka(address).partitions("test", "t")) == 2


def test_a_broker_ends_with_the_program_that_started_it(tmp_path: Path) -> None:
    code = "import tidemill\nb = tidemill.Broker()\nprint(b.pid, flush=True)\ninput()"
    program = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert program.stdout is not None
    assert program.stdin is not None
    process = psutil.Process(int(program.stdout.readline()))
    program.send_signal(signal.SIGKILL)
    program.wait(30)
    program.stdout.close()
    program.stdin.close()
    poll_until(lambda: not process.is_running(), 30, "the broker ends")


def test_a_setting_that_is_not_known_is_reported() -> None:
    with pytest.raises(BrokerProcessError, match="default_partition") as raised:
        tidemill.Broker(settings={"default_partition": "2"})
    assert raised.value.hint == ""


def test_a_folder_that_can_not_be_written_is_reported() -> None:
    with pytest.raises(BrokerProcessError, match="can't write to /proc") as raised:
        tidemill.Broker("/proc/nosuch/data")
    assert "data_dir" in raised.value.hint


def test_a_broker_that_ends_is_noticed_with_its_reason(tmp_path: Path) -> None:
    with Broker(tmp_path / "data", log_file=tmp_path / "broker.log") as broker:
        broker.check_running()
        process = psutil.Process(broker.pid)
        process.kill()
        poll_until(lambda: _ended(broker), 10, "the broker is found to have ended")


def test_a_broker_that_can_not_start_says_why(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file where the data folder should be")
    with (
        pytest.raises(BrokerProcessError) as raised,
        Broker(tmp_path / "data", log_file=tmp_path / "broker.log"),
    ):
        pass
    assert "exit code" in str(raised.value)
    assert "broker.log" in raised.value.hint


def _ended(broker: Broker) -> bool:
    try:
        broker.check_running()
    except BrokerProcessError:
        return True
    return False
