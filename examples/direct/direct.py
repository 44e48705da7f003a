"""Show what is lost without a log, and recovered with it: multicast and StatsD.

    python examples/direct/direct.py

It starts a broker and the receivers, and stops them at the end. In the first part, prices go to a
multicast group while one receiver is away twice: on bare UDP, and as a stream of a topic. In the
second part, a program counts with StatsD, and the broker is killed while it counts.
"""

import argparse
import contextlib
import json
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tidemill.direct.multicast import (
    Lost,
    MulticastReceiver,
    Received,
    Receiver,
    decode_record,
)

GROUP = "239.5.6.7"
LOOPBACK = socket.inet_aton("127.0.0.1")
PER_SECOND = 500

BRIDGES = """
[[bridge]]
name = "prices"
kind = "multicast"
topic = "prices"
options = {{ group = "{group}:{port}", requests = "127.0.0.1:{requests}" }}

[[bridge]]
name = "app"
kind = "statsd"
topic = "metrics"
options = {{ listen = ["udp://127.0.0.1:{statsd}"], interval_s = 0.5 }}
"""


# --- multicast -----------------------------------------------------------------------------------


def bare_receiver(port, is_away, end, found):
    """Receive datagrams of a group. While it is away, it has left the group."""
    while not end.is_set():
        if is_away.is_set():
            time.sleep(0.01)
            continue
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as group:
            group.bind((GROUP, port))
            membership = struct.pack("4s4s", socket.inet_aton(GROUP), LOOPBACK)
            group.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, membership)
            group.settimeout(0.05)
            while not (end.is_set() or is_away.is_set()):
                try:
                    found.append(group.recv(2000))
                except TimeoutError:
                    continue


def stream_receiver(port, requests, is_away, end, found, lost):
    """Receive a stream of tidemill. It resumes from its position."""
    receiver = Receiver(sequence=1)
    while not end.is_set():
        if is_away.is_set():
            time.sleep(0.01)
            continue
        with MulticastReceiver((GROUP, port), [("127.0.0.1", requests)], receiver=receiver) as link:
            while not (end.is_set() or is_away.is_set()):
                for event in link.poll(0.05):
                    if isinstance(event, Lost):
                        lost.append(event.count)
                    elif isinstance(event, Received) and (record := decode_record(event.message)):
                        found.append(record.value)


def with_absences(count, is_away, send):
    """Send messages at a steady rate. The receiver is away for a fifth of the time, twice."""
    began = time.monotonic()
    for number in range(count):
        time.sleep(max(began + number / PER_SECOND - time.monotonic(), 0))
        share = number / count
        if 0.2 <= share < 0.4 or 0.6 <= share < 0.8:
            is_away.set()
        else:
            is_away.clear()
        send(b"price %d" % number)


def multicast_bare(count):
    """Return what arrives on bare UDP."""
    port, is_away, end, found = free_port(), threading.Event(), threading.Event(), []
    thread = threading.Thread(target=bare_receiver, args=(port, is_away, end, found))
    thread.start()
    time.sleep(0.2)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, LOOPBACK)
        with_absences(count, is_away, lambda message: sender.sendto(message, (GROUP, port)))
    time.sleep(0.2)
    end.set()
    thread.join()
    return found


def multicast_stream(count, servers, port, requests):
    """Return what arrives through a topic and its stream."""
    is_away, end, found, lost = threading.Event(), threading.Event(), [], []
    arguments = (port, requests, is_away, end, found, lost)
    thread = threading.Thread(target=stream_receiver, args=arguments)
    thread.start()
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 1})

    def send(message):
        producer.produce("prices", message)
        producer.poll(0)

    with_absences(count, is_away, send)
    producer.flush()
    wait_for(lambda: len(found) + sum(lost) >= count, "the stream is complete")
    end.set()
    thread.join()
    return found


# --- StatsD --------------------------------------------------------------------------------------


def count_with_statsd(count, port, broker):
    """Count with StatsD while the broker is killed, and return what the program has sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for number in range(count):
            sender.sendto(b"orders.placed:1|c", ("127.0.0.1", port))
            time.sleep(1 / PER_SECOND)
            if number == count // 2:
                broker.kill()
                broker.start()
    return count


def counted(servers, topic="metrics"):
    """Return the sum of a counter over all intervals, and the packets that the kernel dropped."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "direct",
            "auto.offset.reset": "earliest",
            "log_level": 0,
        }
    )
    consumer.subscribe([topic])
    orders = drops = 0
    deadline = time.monotonic() + 4
    while time.monotonic() < deadline:
        message = consumer.poll(0.2)
        if message is None or message.error():
            continue
        document = json.loads(message.value())
        if document["name"] == "orders.placed":
            orders += document["value"]
        drops += document.get("drops", 0)
    consumer.close()
    return int(orders), drops


# --- the program ---------------------------------------------------------------------------------


class Broker:
    """A broker, with its workers, on a folder of its own."""

    def __init__(self, folder, settings):
        self.folder, self.settings, self.port = folder, settings, free_port()
        self.servers = f"127.0.0.1:{self.port}"
        self._process = None

    def start(self):
        command = [sys.executable, "-m", "tidemill", "serve", "--config", str(self.settings)]
        options = ["--data-dir", str(self.folder / "data"), "--kafka-port", str(self.port)]
        # The bridges are a process of their own here, which the broker's crash does not touch.
        off = ("amqp.enabled", "gateway.enabled", "bridges.run")
        more = [text for name in off for text in ("--set", f"{name}=false")]
        with (self.folder / "broker.log").open("a") as log:
            self._process = subprocess.Popen([*command, *options, *more], stdout=log, stderr=log)
        wait_for(lambda: connects(self.port), "the broker listens")

    def kill(self):
        """End the broker as a crash would."""
        self._process.kill()
        self._process.wait()

    def stop(self):
        if self._process is not None:
            self._process.terminate()
            self._process.wait()


def create_topic(servers, name):
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic(name, 1)])[name].result(30)


@contextlib.contextmanager
def run_broker(folder, settings):
    """Run a broker, and its bridges beside it. Ctrl-C and SIGTERM end both with this program."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    broker, bridges = Broker(folder, settings), None
    try:
        broker.start()
        create_topic(broker.servers, "prices")
        bridges = start_bridges(folder, settings, broker.servers)
        yield broker
    finally:
        if bridges is not None:
            bridges.terminate()
            bridges.wait()
        broker.stop()


def start_bridges(folder, settings, servers):
    command = [sys.executable, "-m", "tidemill", "bridge", "run", "--all", "-b", servers]
    with (folder / "bridges.log").open("w") as log:
        return subprocess.Popen(
            [*command, "--declared", str(settings)], stdout=log, stderr=log, cwd=folder
        )


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def connects(port):
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


def wait_for(is_true, what):
    deadline = time.monotonic() + 60
    while not is_true():
        if time.monotonic() > deadline:
            sys.exit(f"error: {what}: not after 60 s")
        time.sleep(0.05)


def is_running(servers, name):
    command = [
        sys.executable,
        "-m",
        "tidemill",
        "bridge",
        "describe",
        name,
        "--json",
        "-b",
        servers,
    ]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    return found.returncode == 0 and json.loads(found.stdout)["state"] == "running"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=2000, help="messages of each part")
    count = parser.parse_args().messages
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        port, requests, statsd = free_port(), free_port(), free_port()
        settings = folder / "tidemill.toml"
        settings.write_text(
            BRIDGES.format(group=GROUP, port=port, requests=requests, statsd=statsd)
        )
        with run_broker(folder, settings) as broker:
            for bridge in ("prices", "app"):
                wait_for(lambda bridge=bridge: is_running(broker.servers, bridge), bridge)
            expected = [b"price %d" % number for number in range(count)]
            bare = multicast_bare(count)
            stream = multicast_stream(count, broker.servers, port, requests)
            print(f"{'multicast':<12} {'arrived':>8} {'lost':>6}  in order")
            for way, found in (("bare UDP", bare), ("with a log", stream)):
                in_order = "yes" if found == [each for each in expected if each in found] else "no"
                print(f"{way:<12} {len(found):>8} {count - len(found):>6}  {in_order}")
            sent = count_with_statsd(count, statsd, broker)
            time.sleep(2)
            orders, drops = counted(broker.servers)
            print(
                f"\nStatsD: {sent} counted by the program, {orders} in the topic, {drops} dropped"
            )
    if stream != expected or orders + drops != sent:
        sys.exit("error: the log has lost something")


if __name__ == "__main__":
    main()
