"""Let a producer outrun a consumer, with each of the three answers, and show what they cost.

    python examples/backpressure/backpressure.py

It starts a broker of its own in a temporary folder. Each policy gets a topic, a fast producer and a
consumer that handles a fixed number of records a second.
"""

import argparse
import functools
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

GROUP = "slow"
VALUE = bytes(1000)


class Broker:
    """``tidemill serve`` in a folder of its own."""

    def __init__(self, folder):
        self.folder = Path(folder)
        command = [sys.executable, "-m", "tidemill", "serve", "--kafka-port", "0"]
        command += ["--set", "amqp.port=0", "--set", "gateway.enabled=false"]
        command += ["--set", "health.enabled=false"]
        command += ["--data-dir", str(self.folder / "data")]
        self.log = (self.folder / "broker.log").open("w+b")
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log)

    @functools.cached_property
    def address(self):
        """Return the address, as soon as it listens."""
        while self.process.poll() is None:
            found = re.search(r"127\.0\.0\.1:\d+", Path(self.log.name).read_text())
            if found:
                return found[0]
            time.sleep(0.05)
        raise SystemExit(Path(self.log.name).read_text())

    def disk_bytes(self, topic):
        return sum(file.stat().st_size for file in self.folder.glob(f"data/{topic}-0/*.log"))

    def memory_bytes(self):
        """Return the resident memory of the broker, where /proc tells it."""
        try:
            pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        except OSError:
            return None
        return pages * os.sysconf("SC_PAGE_SIZE")

    def stop(self):
        self.process.terminate()
        self.process.wait()
        self.log.close()


class SlowConsumer(threading.Thread):
    """Reads records in order, so many a second, and commits as it goes."""

    def __init__(self, broker, topic, rate):
        super().__init__()
        self.rate = rate
        self.seen = []
        self.next_number = 0
        self.stopping = threading.Event()
        self.client = Consumer(
            {
                "bootstrap.servers": broker.address,
                "group.id": GROUP,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                # Fetched records wait in the client. A small queue shows the broker's own policy.
                "queued.max.messages.kbytes": 64,
                "fetch.message.max.bytes": 65536,
                "fetch.queue.backoff.ms": 10,
                "log_level": 3,  # without a warning for each reset of the offset
            }
        )
        self.client.assign([TopicPartition(topic, 0)])

    def run(self):
        began = time.monotonic()
        while not self.stopping.is_set():
            message = self.client.poll(0.1)
            if message is None or message.error():
                continue
            self.seen.append(int(message.key()))
            self.next_number = self.seen[-1] + 1
            if len(self.seen) % 50 == 0:
                self.client.commit(message, asynchronous=True)
                ahead = len(self.seen) / self.rate - (time.monotonic() - began)
                self.stopping.wait(max(ahead, 0))  # the work of a slow consumer
        self.client.close()

    def __enter__(self):
        self.start()

    def __exit__(self, *_):
        self.stopping.set()
        self.join()


def run(broker, policy, records, limit, rate):
    """Produce ``records`` records to a topic with this policy; return what happened."""
    topic = f"readings-{policy}"
    configs = {"lag.policy": policy, "lag.group": GROUP, "lag.max.records": str(limit)}
    configs["segment.bytes"] = str(1 << 20)  # so that dropped records free their disk soon
    admin = AdminClient({"bootstrap.servers": broker.address})
    admin.create_topics([NewTopic(topic, 1, config=configs)])[topic].result()

    consumer = SlowConsumer(broker, topic, rate)
    producer = Producer(
        {"bootstrap.servers": broker.address, "acks": "all", "batch.num.messages": 100}
    )
    most = {"disk": 0, "memory": broker.memory_bytes() or 0, "wait": 0.0, "behind": 0}
    stored = 0

    def measure():
        most["disk"] = max(most["disk"], broker.disk_bytes(topic))
        most["memory"] = max(most["memory"], broker.memory_bytes() or 0)

    def delivered(error, message):
        nonlocal stored
        if error:
            raise SystemExit(f"{policy}: {error}")
        stored += 1
        most["wait"] = max(most["wait"], message.latency())
        most["behind"] = max(most["behind"], stored - consumer.next_number)

    with consumer:
        began = time.monotonic()
        for number in range(records):
            # A producer that keeps few records of its own feels the broker's answer immediately.
            while len(producer) >= 200:
                producer.poll(0.01)
            producer.produce(topic, VALUE, key=b"%d" % number, on_delivery=delivered)
            if number % 200 == 0:
                measure()
        while producer.flush(0.1):
            measure()
        produced_s = time.monotonic() - began
        last = records - 1
        while not consumer.seen or consumer.seen[-1] != last:
            measure()
            time.sleep(0.05)
    measure()
    return {
        "lost": records - len(set(consumer.seen)),
        "produced_s": produced_s,
        "consumed_s": time.monotonic() - began,
        "longest_wait_s": most["wait"],
        "most_behind": most["behind"],
        "disk_bytes": most["disk"],
        "memory_bytes": most["memory"],
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=20_000, help="records of 1 KB per policy")
    parser.add_argument("--limit", type=int, default=1_000, help="lag.max.records")
    parser.add_argument(
        "--rate", type=int, default=4_000, help="records a second that are consumed"
    )
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # its processes end with it
    print(f"{options.records:,} records of 1 KB; the consumer handles {options.rate:,} a second")
    titles = f"{'':10}{'lost':>8}{'behind':>8}{'produced':>11}{'consumed':>11}"
    print(f"{titles}{'wait':>9}{'disk':>10}{'memory':>10}")
    with tempfile.TemporaryDirectory() as folder:
        broker = Broker(folder)
        try:
            for policy in ("buffer", "throttle", "drop"):
                it = run(broker, policy, options.records, options.limit, options.rate)
                print(
                    f"{policy:10}{it['lost']:8,}{it['most_behind']:8,}{it['produced_s']:9.1f} s"
                    f"{it['consumed_s']:9.1f} s{it['longest_wait_s']:7.2f} s"
                    f"{it['disk_bytes'] / 1e6:7.1f} MB{it['memory_bytes'] / 1e6:7.0f} MB"
                )
        finally:
            broker.stop()
    print("lost: records that the consumer never got. behind: how far it was behind the newest")
    print("record. wait: the longest time until a record was acknowledged. disk: the topic's")
    print("largest size, with the records that were consumed. memory: the broker's.")


if __name__ == "__main__":
    main()
