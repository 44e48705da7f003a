"""Send a shop's events to a receiver that fails: with a bare POST, and as webhooks of a topic.

    python examples/webhooks/webhooks.py

It starts a broker and the receiver, and stops them at the end. The receiver answers 500 to one
request in five, and is killed twice. It is a process of its own: this program with --receive.
"""

import argparse
import base64
import contextlib
import hmac
import json
import os
import random
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import defaultdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

CUSTOMERS = 10
PER_SECOND = 150
FAILS = 0.2
DOWN_S = 0.5

WEBHOOK = """
name = "shop"
topic = "orders"
url = "{url}"
secrets = ["${{file:{secret}}}"]
order = "key"                     # a customer's orders arrive in their order
start_at = "beginning"
retries_s = [0.2, 0.5, 1, 2, 5, 5, 5, 5, 5]
allow_private = true              # the receiver is on this machine
"""


# --- the receiver --------------------------------------------------------------------------------


def is_signed(headers, body, secret):
    """Check the signature as Standard Webhooks describes: all that a receiver needs."""
    signed = b"%s.%s.%s" % (
        headers["webhook-id"].encode(),
        headers["webhook-timestamp"].encode(),
        body,
    )
    key = base64.b64decode(secret.removeprefix("whsec_"))
    expected = "v1," + base64.b64encode(hmac.digest(key, signed, "sha256")).decode()
    given = headers["webhook-signature"].split()
    return any(hmac.compare_digest(expected, each) for each in given)


def receive(port, file, secret):
    """Write a line for each event. It is written before the answer, so that none is lost here."""
    out, lock = file.open("a"), threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if random.random() < FAILS:
                self.answer(500)
            elif "webhook-id" in self.headers and not is_signed(self.headers, body, secret):
                self.answer(401)
            else:
                line = {"id": self.headers["webhook-id"], **json.loads(body)}
                with lock:
                    out.write(json.dumps(line) + "\n")
                    out.flush()
                self.answer(204)

        def answer(self, status):
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_):
            return

    ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()


class Receiver:
    """The receiver as a process that can be killed."""

    def __init__(self, folder, name, secret):
        self.port, self.file, self._secret = free_port(), folder / f"{name}.jsonl", secret
        self.url = f"http://127.0.0.1:{self.port}/"
        self._process, self._is_over, self._lock = None, False, threading.Lock()

    def start(self):
        arguments = ["--receive", str(self.port), str(self.file), str(self._secret)]
        with self._lock:
            if self._is_over:
                return
            self._process = subprocess.Popen([sys.executable, __file__, *arguments])
        wait_for_port(self.port)

    def kill(self):
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()

    def close(self):
        """End it, also if it is just to be started again."""
        with self._lock:
            self._is_over = True
        self.kill()

    def events(self):
        return [json.loads(line) for line in self.file.read_text().splitlines()]


# --- the two ways --------------------------------------------------------------------------------


def orders(count):
    """Yield events at a steady rate."""
    for number in range(count):
        yield {"type": "order.placed", "number": number, "customer": number % CUSTOMERS}
        time.sleep(1 / PER_SECOND)


def with_kills(receiver, count, events):
    """Yield events, and kill the receiver after a third and after two thirds of them."""
    restart = None
    for number, event in enumerate(events):
        if number in (count // 3, 2 * count // 3):
            if restart is not None:
                restart.join()
            receiver.kill()
            restart = threading.Timer(DOWN_S, receiver.start)
            restart.start()
        yield event
    if restart is not None:
        restart.join()


def post_each(receiver, count):
    """Post each event once, as many programs do. What fails is lost."""
    for event in with_kills(receiver, count, orders(count)):
        request = urllib.request.Request(receiver.url, json.dumps(event).encode(), method="POST")
        try:
            urllib.request.urlopen(request, timeout=5).close()
        except OSError:  # also an answer that is not 2xx
            continue


def through_a_topic(receiver, count, servers, folder, secret):
    """Write each event to a topic, which tidemill delivers."""
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic("orders", 3)])["orders"].result(30)
    definition = folder / "shop.toml"
    definition.write_text(WEBHOOK.format(url=receiver.url, secret=secret))
    tidemill("webhook", "create", str(definition), "-b", servers)
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 5})
    for event in with_kills(receiver, count, orders(count)):
        producer.produce("orders", json.dumps(event), str(event["customer"]))
        producer.poll(0)
    producer.flush()
    deadline = time.monotonic() + 120
    while len({each["number"] for each in receiver.events()}) < count:
        if time.monotonic() > deadline:
            tidemill("webhook", "describe", "shop", "-b", servers)
            return
        time.sleep(0.1)


def judge(receiver, count):
    """Return (arrived, lost, repeated, out of order), without what a receiver has seen already."""
    seen, last, out_of_order, repeated = set(), defaultdict(lambda: -1), 0, 0
    for event in receiver.events():
        identity = event["id"] or event["number"]
        if identity in seen:
            repeated += 1
            continue
        seen.add(identity)
        out_of_order += event["number"] < last[event["customer"]]
        last[event["customer"]] = max(event["number"], last[event["customer"]])
    return len(seen), count - len(seen), repeated, out_of_order


# --- processes -----------------------------------------------------------------------------------


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_for_port(port):
    deadline = time.monotonic() + 60
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=5).close()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
        else:
            return


def tidemill(*arguments):
    subprocess.run([sys.executable, "-m", "tidemill", *arguments], check=True)


@contextlib.contextmanager
def run_broker(folder):
    """Run a broker with its workers, and yield its address."""
    port = free_port()
    command = [sys.executable, "-m", "tidemill", "serve", "--data-dir", str(folder / "data")]
    options = ["--kafka-port", str(port), "--set", "amqp.port=0", "--set", "gateway.enabled=false"]
    with (folder / "broker.log").open("w") as log:
        made = subprocess.Popen([*command, *options], stdout=log, stderr=log, cwd=folder)
    try:
        wait_for_port(port)
        yield f"127.0.0.1:{port}"
    finally:
        made.terminate()
        made.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--events", type=int, default=300, help="events of each way")
    parser.add_argument("--receive", nargs=3, metavar=("PORT", "FILE", "SECRET"))
    options = parser.parse_args()
    if options.receive:
        port, file, secret = options.receive
        receive(int(port), Path(file), Path(secret).read_text().strip())
        return 0
    count, found = options.events, {}
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # its processes end with it
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        secret = folder / "secret"
        secret.write_text("whsec_" + base64.b64encode(secrets.token_bytes(32)).decode())
        os.chmod(secret, 0o600)
        bare, hooks = (Receiver(folder, each, secret) for each in ("bare", "webhooks"))
        for receiver in (bare, hooks):
            stack.callback(receiver.close)
            receiver.start()
        servers = stack.enter_context(run_broker(folder))
        print(f"{count} events with a bare POST", flush=True)
        post_each(bare, count)
        print(f"{count} events through a topic and its webhook", flush=True)
        through_a_topic(hooks, count, servers, folder, secret)
        for way, receiver in (("bare POST", bare), ("webhook", hooks)):
            found[way] = judge(receiver, count)
    print("\nway        arrived  lost  repeated  out of order")
    for way, (arrived, lost, repeated, disorder) in found.items():
        print(f"{way:<9}  {arrived:7}  {lost:4}  {repeated:8}  {disorder:12}")
    print("\nA repeated webhook has the id of the first one, so the receiver can leave it out.")
    _, lost, _, disorder = found["webhook"]
    return 1 if lost or disorder else 0


if __name__ == "__main__":
    sys.exit(main())
