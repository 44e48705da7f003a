"""Show what a ZeroMQ subscriber loses without a log, and gets with it.

    python examples/direct/zeromq.py

It starts a broker and a bridge, and stops them at the end. Prices are published while a subscriber
is away twice: with ZeroMQ alone, and from a topic that a bridge publishes. In the end another
subscriber comes late, and asks for the last price of each currency.
"""

import argparse
import sys
import tempfile
import threading
import time
from pathlib import Path

from confluent_kafka import Producer

from direct import free_port, is_running, run_broker, wait_for
from tidemill.direct.pubsub import LogSubscriber, Message, Publisher, Subscriber

PER_SECOND = 500
CURRENCIES = [b"eurusd", b"eurchf", b"eurgbp"]

BRIDGE = """
[[bridge]]
name = "prices"
kind = "zeromq"
topic = "prices"
options = {{ publish = "{publish}", requests = "{requests}" }}
"""


class Receiver(threading.Thread):
    """Receives prices in a thread. While it is away, it is not connected."""

    def __init__(self):
        super().__init__()
        self.found = []
        self.is_away, self.is_over = threading.Event(), threading.Event()

    def run(self):
        while not self.is_over.is_set():
            if self.is_away.is_set():
                time.sleep(0.01)
                continue
            with self.connect() as subscriber:
                while not (self.is_over.is_set() or self.is_away.is_set()):
                    self.take(subscriber, subscriber.poll(0.05))

    def stop(self):
        self.is_over.set()
        self.join()
        return self.found


class AloneReceiver(Receiver):
    """Subscribes to a publisher without a log."""

    def __init__(self, address):
        super().__init__()
        self.address = address

    def connect(self):
        return Subscriber(self.address)

    def take(self, subscriber, events):
        self.found += [each.payload for each in events if isinstance(each, Message)]


class LogReceiver(Receiver):
    """Subscribes to a topic that a bridge publishes, and resumes from its position."""

    def __init__(self, addresses):
        super().__init__()
        self.addresses, self.start_from = addresses, "earliest"

    def connect(self):
        return LogSubscriber(*self.addresses, start=self.start_from)

    def take(self, subscriber, events):
        self.found += [each.value for each in events]
        self.start_from = subscriber.positions or "earliest"


def with_absences(count, receiver, send):
    """Send prices at a steady rate. The receiver is away for a fifth of the time, twice."""
    began = time.monotonic()
    for number in range(count):
        time.sleep(max(began + number / PER_SECOND - time.monotonic(), 0))
        if 5 * number // count in (1, 3):
            receiver.is_away.set()
        else:
            receiver.is_away.clear()
        send(CURRENCIES[number % len(CURRENCIES)], b"price %d" % number)


def zeromq_alone(count):
    """Return what arrives from a publisher without a log."""
    with Publisher("tcp://127.0.0.1:0") as publisher:
        receiver = AloneReceiver(publisher.address)
        receiver.start()
        publisher.wait_for_subscribers(1, 10.0)
        with_absences(count, receiver, publisher.publish)
        time.sleep(0.3)
        return receiver.stop()


def with_a_log(count, servers, addresses):
    """Return what arrives from a topic that a bridge publishes."""
    receiver = LogReceiver(addresses)
    receiver.start()
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 1})

    def send(currency, price):
        producer.produce("prices", price, currency)
        producer.poll(0)

    with_absences(count, receiver, send)
    producer.flush()
    wait_for(lambda: len(receiver.found) >= count, "all prices are there")
    return receiver.stop()


def last_prices(addresses):
    """Return the last price of each currency, as a subscriber gets it that comes late."""
    with LogSubscriber(*addresses, start="last-values") as subscriber:
        found = []
        while not subscriber.is_live:
            found += subscriber.poll(0.1)
        return {each.key: each.value for each in found}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=2000, help="messages of each part")
    count = parser.parse_args().messages
    expected = [b"price %d" % number for number in range(count)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        addresses = [f"tcp://127.0.0.1:{free_port()}" for _ in range(2)]
        settings = folder / "tidemill.toml"
        settings.write_text(BRIDGE.format(publish=addresses[0], requests=addresses[1]))
        with run_broker(folder, settings) as broker:
            wait_for(lambda: is_running(broker.servers, "prices"), "the bridge runs")
            alone = zeromq_alone(count)
            logged = with_a_log(count, broker.servers, addresses)
            last = last_prices(addresses)
    print(f"{'ZeroMQ':<12} {'arrived':>8} {'lost':>6}  in order")
    for way, found in (("alone", alone), ("with a log", logged)):
        in_order = "yes" if found == [each for each in expected if each in set(found)] else "no"
        print(f"{way:<12} {len(found):>8} {count - len(found):>6}  {in_order}")
    for currency, price in sorted(last.items()):
        print(f"last of {currency.decode()}: {price.decode()}")
    wanted = {CURRENCIES[number % len(CURRENCIES)]: expected[number] for number in range(count)}
    if logged != expected or last != wanted:
        sys.exit("error: the log has lost something")


if __name__ == "__main__":
    main()
