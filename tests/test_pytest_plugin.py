"""The fixtures that users' tests get from tidemill."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

TESTS = """
import json
import tidemill
from confluent_kafka import Producer

def test_one(tidemill_broker, tidemill_topic):
    producer = Producer({"bootstrap.servers": tidemill_broker.bootstrap_servers})
    producer.produce(tidemill_topic, json.dumps({"n": 1}))
    producer.flush(30)
    read = tidemill.read(tidemill_topic, bootstrap_servers=tidemill_broker.bootstrap_servers)
    assert [record.json() for record in read] == [{"n": 1}]

def test_two(tidemill_broker, tidemill_topic):
    read = tidemill.read(tidemill_topic, bootstrap_servers=tidemill_broker.bootstrap_servers)
    assert len(read) == 0

def test_three(tidemill_broker, tidemill_queue):
    import pika
    with pika.BlockingConnection(pika.URLParameters(tidemill_broker.amqp_url)) as connection:
        channel = connection.channel()
        channel.queue_declare(tidemill_queue)
        channel.basic_publish("", tidemill_queue, b"hello")
        assert channel.basic_get(tidemill_queue, auto_ack=True)[2] == b"hello"
"""


def run_pytest(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    for name in [each for each in env if each.startswith("PYTEST_XDIST")]:
        del env[name]
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tidemill.pytest_plugin", *arguments],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_tests_share_a_broker_and_have_topics_and_queues_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "test_shop.py").write_text(TESTS)
    done = run_pytest(tmp_path, "-q")
    assert "3 passed" in done.stdout, done.stdout + done.stderr


def test_the_fixtures_are_listed_with_what_they_are(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, "--fixtures", "-q")
    for name in ("tidemill_broker", "tidemill_topic", "tidemill_queue"):
        assert name in done.stdout
    assert "fresh topic" in done.stdout


def test_the_plugin_costs_tests_without_a_broker_no_import() -> None:
    code = (
        "import sys, tidemill.pytest_plugin\n"
        "print([m for m in sys.modules if m.startswith('tidemill.') or m == 'confluent_kafka'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "['tidemill.pytest_plugin']"
