"""Dashboards of other projects show data: their metrics exist under their names and join.

A real Prometheus scrapes a broker with clients. Each expression has the form that the published
dashboards use (RabbitMQ-Overview; kafka_exporter's) and must return a value for each metric that
they name.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pika
import pytest
from confluent_kafka import Consumer, Producer

from tests.support.broker_process import BrokerProcess
from tests.support.ports import reserve_port
from tests.support.processes import poll_until

MESSAGES = 20
GAUGES = (
    *("connections", "channels", "queues", "global_consumers", "global_publishers"),
    *("queue_messages_ready", "queue_messages_unacked", "process_open_fds", "process_max_fds"),
    *("process_resident_memory_bytes", "resident_memory_limit_bytes"),
    *("disk_space_available_bytes", "disk_space_available_limit_bytes"),
)
COUNTERS = (
    *("connections_opened", "connections_closed", "channels_opened", "channels_closed"),
    *("queues_declared", "queues_created", "queues_deleted"),
    *(f"global_messages_{name}" for name in ("received", "received_confirm", "confirmed")),
    *(f"global_messages_{name}" for name in ("routed", "redelivered", "acknowledged")),
    *(f"global_messages_unroutable_{name}" for name in ("dropped", "returned")),
    *(f"global_messages_delivered{name}" for name in ("", "_consume_auto_ack")),
    *(f"global_messages_delivered{name}" for name in ("_get_auto_ack", "_get_manual_ack")),
    *("global_messages_delivered_consume_manual_ack", "global_messages_get_empty"),
)
SIZES = ("100.0", "1000.0", "10000.0", "100000.0", "1e+06", "1e+07", "5e+07", "1e+08", "+Inf")
"""Values of le, as the dashboard selects them."""


def joined(metric: str) -> str:
    """Join a metric with the name of the cluster, as each expression of the dashboard does."""
    identity = 'rabbitmq_identity_info{rabbitmq_cluster="tidemill",namespace=""}'
    return f"{metric} * on(instance, job) group_left(rabbitmq_cluster, rabbitmq_node) {identity}"


EXPRESSIONS = (
    *(f"sum({joined(f'rabbitmq_{name}')}) by(rabbitmq_node)" for name in GAUGES),
    *(f"sum({joined(f'rate(rabbitmq_{name}_total[60s])')}) by(rabbitmq_node)" for name in COUNTERS),
    *(joined(f'increase(rabbitmq_message_size_bytes_bucket{{le="{le}"}}[60s])') for le in SIZES),
    joined("increase(rabbitmq_message_size_bytes_sum[60s])"),
    joined("increase(rabbitmq_message_size_bytes_count[60s])"),
    "rabbitmq_erlang_uptime_seconds * on(instance, job) group_left(rabbitmq_version, "
    f"erlang_version) {joined('rabbitmq_build_info')}",
    'count(rabbitmq_identity_info{rabbitmq_endpoint="aggregated"})',
    'sum(rate(kafka_topic_partition_current_offset{topic=~"orders"}[60s])) by (topic)',
    'sum(kafka_consumergroup_lag{topic=~"orders"}) by (consumergroup, topic)',
    'sum(delta(kafka_consumergroup_current_offset{topic=~"orders"}[60s])) by (consumergroup)',
    'sum by(topic) (kafka_topic_partitions{topic=~"orders"})',
)


def own_expressions() -> list[str]:
    """Return the expressions of our own dashboard that such a broker has values for."""
    file = Path(__file__).parents[2] / "deploy" / "grafana" / "dashboards" / "tidemill.json"
    targets = (each.get("targets", ()) for each in json.loads(file.read_text())["panels"])
    found = (target["expr"] for panel in targets for target in panel)
    others = re.compile("tidemill_(source|query|webhook|errors)_")
    return [
        each.replace("$__rate_interval", "60s").replace("$instance", ".*")
        for each in found
        if not others.search(each)
    ]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    settings = {
        "health.enabled": "true",
        "health.port": str(reserve_port()),
        "telemetry.metrics_names": "kafka_exporter, rabbitmq",
    }
    with BrokerProcess(tmp_path_factory.mktemp("broker"), settings=settings) as process:
        yield process


def work_with_queues(connection: pika.BlockingConnection) -> None:
    """Publish, confirm, return, deliver, reject, acknowledge and get messages."""
    channel = connection.channel()
    channel.queue_declare("work")
    channel.queue_declare("idle")
    channel.basic_publish("", "work", b"x" * 5_000)
    channel.basic_publish("", "missing", b"dropped")
    channel.confirm_delivery()
    for _ in range(MESSAGES):
        channel.basic_publish("", "work", b"x" * 50)
    with pytest.raises(pika.exceptions.UnroutableError):
        channel.basic_publish("", "missing", b"returned", mandatory=True)
    other = connection.channel()
    got, _, _ = other.basic_get("work")
    other.basic_nack(got.delivery_tag)
    got, _, _ = other.basic_get("work")
    assert got.redelivered
    other.basic_ack(got.delivery_tag)
    other.basic_get("work", auto_ack=True)
    assert other.basic_get("idle")[0] is None
    other.basic_consume("work", lambda *_: None)
    for _ in range(2):
        connection.process_data_events(0.05)
    channel.queue_delete("idle")
    connection.channel().close()


def shown(broker: BrokerProcess, path: str = "/metrics") -> dict[str, float]:
    page = httpx.get(f"http://{broker.ready_event['health']}{path}", trust_env=False, timeout=60)
    samples = (line.rpartition(" ") for line in page.text.splitlines() if line[:1] != "#")
    return {name: float(value) for name, _, value in samples}


def connect(broker: BrokerProcess) -> pika.BlockingConnection:
    return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.amqp_port))


def test_what_amqp_clients_do_is_counted_under_the_names_of_rabbitmq(
    broker: BrokerProcess,
) -> None:
    before = shown(broker)

    def risen(name: str) -> float:
        key = f"rabbitmq_global_messages_{name}_total" + '{protocol="amqp091"}'
        return shown(broker)[key] - before[key]

    connection = connect(broker)
    work_with_queues(connection)
    poll_until(lambda: risen("delivered_consume_manual_ack") == MESSAGES - 1, 30, "delivered")
    poll_until(lambda: shown(broker)["rabbitmq_queues"] == 1, 30, "the page is new")
    assert risen("received") == MESSAGES + 3
    assert risen("received_confirm") == MESSAGES + 1
    poll_until(lambda: risen("confirmed") == MESSAGES + 1, 30, "the last confirm is counted")
    assert risen("routed") == MESSAGES + 1
    assert (risen("unroutable_dropped"), risen("unroutable_returned")) == (1, 1)
    assert (risen("delivered_get_manual_ack"), risen("delivered_get_auto_ack")) == (2, 1)
    assert (risen("redelivered"), risen("acknowledged"), risen("get_empty")) == (1, 1, 1)
    now = shown(broker)
    assert now["rabbitmq_queue_messages_unacked"] == MESSAGES - 1
    assert now["rabbitmq_channels"] == 2
    assert now['rabbitmq_global_publishers{protocol="amqp091"}'] == 1
    assert now['rabbitmq_message_size_bytes_bucket{protocol="amqp091",le="100.0"}'] == MESSAGES + 2
    connection.close()
    poll_until(lambda: shown(broker)["rabbitmq_channels"] == 0, 30, "the channels are closed")
    closed = shown(broker)
    assert closed['rabbitmq_global_publishers{protocol="amqp091"}'] == 0
    assert closed["rabbitmq_connections"] == 0
    assert closed["rabbitmq_queue_messages_ready"] == MESSAGES - 1


def query(http: httpx.Client, expression: str) -> list[Any]:
    answer = http.get("/api/v1/query", params={"query": expression})
    if answer.status_code == 503:  # it is starting
        return []
    assert answer.status_code == 200, (expression, answer.text)
    found: list[Any] = answer.json()["data"]["result"]
    return found


def keep_working(broker: BrokerProcess, stop: threading.Event) -> None:
    """Let clients work until ``stop``, so that rates have values."""
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "g",
            "auto.offset.reset": "earliest",
            "auto.commit.interval.ms": 200,
        }
    )
    consumer.subscribe(["orders"])
    while not stop.is_set():
        producer.produce("orders", "x")
        producer.flush(10)
        consumer.poll(0.2)
        with connect(broker) as connection:
            work_with_queues(connection)
    consumer.close()


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="the package prometheus is not installed"
)
def test_each_expression_of_the_published_dashboards_has_a_value(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    port, target = reserve_port(), broker.ready_event["health"]
    jobs = [
        {"job_name": name, "metrics_path": path, "static_configs": [{"targets": [target]}]}
        for name, path in (("tidemill", "/metrics"), ("partitions", "/metrics/partitions"))
    ]
    config = tmp_path / "prometheus.yml"
    config.write_text(json.dumps({"global": {"scrape_interval": "1s"}, "scrape_configs": jobs}))
    command = [
        *("prometheus", f"--config.file={config}", f"--storage.tsdb.path={tmp_path / 'data'}"),
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    stop = threading.Event()
    clients = threading.Thread(target=keep_working, args=(broker, stop))
    log = (tmp_path / "log").open("wb")
    process = subprocess.Popen(command, stdout=log, stderr=log)
    clients.start()
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False) as http:
            left = [*EXPRESSIONS, *own_expressions()]

            def all_have_values() -> bool:
                try:
                    left[:] = [each for each in left if not query(http, each)]
                except httpx.TransportError:
                    return False
                return not left

            try:
                poll_until(all_have_values, 120, "each expression has a value", 0.5)
            except TimeoutError:
                pytest.fail(f"without a value: {left}")
    finally:
        stop.set()
        clients.join()
        process.terminate()
        process.wait(30)
        log.close()
