"""A dashboard that moves: from topics to a page, without a JVM.

    python examples/dashboard/dashboard.py

It starts a broker, a gateway and a pipeline, plays an evening of a shop, kills the pipeline twice
meanwhile, and shows the evening in a page. In the end it computes every figure again from the list
of events, and compares. With -b it uses a broker that runs, also of Apache Kafka.
"""

import argparse
import contextlib
import http.server
import json
import random
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pipeline
import shop
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

import tidemill
import tidemill.sql

HERE = Path(__file__).parent
WAIT_S = 90
SHOWN = ("minutes", "products", "funnel")  # the tables that the page follows

# --- topics, events ------------------------------------------------------------------------------


def create_topics(servers):
    """Create the topics of the events and of the tables, which keep the last row of each key."""
    compacted = {"cleanup.policy": "compact"}
    topics = [NewTopic(name, 2, 1) for name in pipeline.EVENTS]
    topics += [NewTopic(f"shop.{name}", 1, 1, config=compacted) for name in pipeline.TABLES]
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 3})
    try:
        for created in admin.create_topics(topics).values():
            created.result(60)
    except KafkaException as error:
        sys.exit(
            f"error: {error.args[0].str()}\nhint: Delete the topics of an earlier run (shop.*)."
        )


def play(events, servers, seconds):
    """Write the events as they arrive, in so many seconds. A record has the time of its arrival."""
    producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True, "linger.ms": 5})
    first, last = events[0].arrives, events[-1].arrives
    begun = time.monotonic()
    for event in events:
        due = begun + seconds * ((event.arrives - first) / (last - first))
        while (left := due - time.monotonic()) > 0:
            time.sleep(min(left, 0.05))
        sent_ms = round(event.arrives.timestamp() * 1000)
        value = json.dumps(event.value())
        producer.produce(event.topic, value, event.visitor, timestamp=sent_ms)
        producer.poll(0)
    if producer.flush(WAIT_S):
        sys.exit("error: events were not stored")


# --- the pipeline as a process -------------------------------------------------------------------


class Pipeline:
    """Keeps the pipeline at work in a process of its own: what ends is started again."""

    def __init__(self, servers, broken):
        self.command = [sys.executable, HERE / "pipeline.py", servers, *filter(None, [broken])]
        self.starts = 0
        self.stopped = threading.Event()
        self.process = None
        self.thread = threading.Thread(target=self.keep, daemon=True)
        self.thread.start()

    def keep(self):
        while not self.stopped.is_set():
            self.starts += 1
            self.process = subprocess.Popen(self.command)
            self.process.wait()
            self.stopped.wait(0.2)

    def kill(self):
        """Kill the process, as ``kill -9`` does."""
        if self.process is not None:
            self.process.kill()

    def stop(self):
        self.stopped.set()
        while self.thread.is_alive():
            self.kill()
            self.thread.join(0.2)


def wait_until_all_is_counted(servers):
    """Wait until the pipeline has committed positions at the ends of the topics."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "shop.dashboard"})
    places = [TopicPartition(name, number) for name in pipeline.EVENTS for number in (0, 1)]
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        with contextlib.suppress(Exception):  # the broker may be on its way back
            done = {(p.topic, p.partition): p.offset for p in consumer.committed(places, timeout=5)}
            ends = [consumer.get_watermark_offsets(place, timeout=5)[1] for place in places]
            if all(done[p.topic, p.partition] >= end for p, end in zip(places, ends, strict=True)):
                return consumer.close()
        time.sleep(0.1)
    sys.exit(f"error: the pipeline did not read all events within {WAIT_S} s")


# --- the page ------------------------------------------------------------------------------------


class Page(http.server.BaseHTTPRequestHandler):
    """Serves one file. What moves in it comes from the gateway, as server-sent events."""

    gateway = ""

    def do_GET(self):
        body = (HERE / "page.html").read_text().replace("{gateway}", self.gateway).encode()
        self.send_response(200 if self.path == "/" else 404)
        self.send_header("content-type", "text/html; charset=utf-8")
        self.end_headers()
        self.wfile.write(body if self.path == "/" else b"")

    def log_message(self, *_):
        """Print nothing."""


@contextlib.contextmanager
def served_page(servers, port):
    """Serve the page and, for it alone, the topics. Yield both addresses."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Page)
    server.daemon_threads = True
    page = f"http://127.0.0.1:{server.server_port}"
    with tidemill.Gateway(servers, settings={"gateway.origins": page}) as gateway:
        Page.gateway = gateway.url
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield page, gateway.url
        finally:
            server.shutdown()
            server.server_close()


class Viewer:
    """Does what the page does: follows a table as server-sent events, from its beginning on."""

    def __init__(self, gateway, table):
        self.url = f"{gateway}/topics/shop.{table}?from=beginning"
        self.rows, self.changes, self.last = {}, 0, ""
        threading.Thread(target=self.follow, daemon=True).start()

    def follow(self):
        while True:
            headers = {"accept": "text/event-stream"}
            if self.last:  # as a browser: where the connection was lost
                headers["last-event-id"] = self.last
            with contextlib.suppress(OSError, ValueError):
                request = urllib.request.Request(self.url, headers=headers)
                with urllib.request.urlopen(request, timeout=60) as lines:
                    self.take(lines)
            time.sleep(0.1)

    def take(self, lines):
        identity = ""
        for line in lines:
            name, _, text = line.decode().rstrip("\r\n").partition(": ")
            if name == "id":
                identity = text
            elif name == "data" and "value" in (record := json.loads(text)):
                self.rows[record["key"]] = json.loads(record["value"])
                self.changes += 1
            elif not name and identity:
                self.last = identity


# --- the check -----------------------------------------------------------------------------------


def expected_tables(events):
    """Compute the tables from the list of all events: by sets and sums, and not step by step."""
    orders = {event.order: event for event in reversed(events) if event.order}  # the first counts
    seen = {page: {} for page in ("home", "product", "cart")}
    for event in sorted(events, key=lambda event: event.at, reverse=True):
        if event.topic == "shop.visits":
            seen[event.page][event.visitor] = event.at
    minutes, products = {}, {}
    key = lambda at: at.strftime("%Y-%m-%dT%H:%MZ")  # noqa: E731
    arrivals = Counter(key(at) for at in seen["home"].values())
    for minute in arrivals.keys() | {key(order.at) for order in orders.values()}:
        there = [order for order in orders.values() if key(order.at) == minute]
        late = [order for order in there if order.arrives - order.at > timedelta(minutes=1)]
        minutes[minute] = {
            "minute": minute,
            "visitors": arrivals[minute],
            "orders": len(there),
            "cents": sum(order.cents for order in there),
            "late_cents": sum(order.cents for order in late),
        }
    for name in {order.product for order in orders.values()}:
        of = [order.cents for order in orders.values() if order.product == name]
        products[name] = {"product": name, "orders": len(of), "cents": sum(of)}
    looked = seen["home"].keys() & seen["product"].keys()
    carts = looked & seen["cart"].keys()
    in_time = {
        order.visitor
        for order in orders.values()
        if order.visitor in carts and order.at - seen["cart"][order.visitor] <= pipeline.JOIN
    }
    groups = dict(zip(pipeline.STEPS, (seen["home"], looked, carts, in_time), strict=True))
    funnel = {step: {"step": step, "visitors": len(who)} for step, who in groups.items()}
    return {"minutes": minutes, "products": products, "funnel": funnel}


def differences(what, found, expected):
    """Print how many rows are equal; return how many are not."""
    keys = found.keys() | expected.keys()
    wrong = sorted(key for key in keys if found.get(key) != expected.get(key))
    print(f"  {what:<28}{len(keys) - len(wrong):>6,} of {len(keys):,} rows equal")
    for key in wrong[:2]:
        print(f"    {key}: {found.get(key)}, expected {expected.get(key)}")
    return len(wrong)


def check(servers, viewers, events):
    """Compare what the topics have, what a page shows and what SQL says with the events."""
    expected = expected_tables(events)
    print("Check, against the list of events:")
    wrong = 0
    for table, rows in expected.items():
        records = tidemill.read(f"shop.{table}", bootstrap_servers=servers)
        stored = {record.key.decode(): record.json() for record in records}
        wrong += differences(f"topic shop.{table}", stored, rows)
        deadline = time.monotonic() + 10  # the last of it is still on its way
        while viewers[table].rows != stored and time.monotonic() < deadline:
            time.sleep(0.05)
        wrong += differences(f"page, {table}", viewers[table].rows, rows)
    question = """SELECT count(*), sum(cents)
        FROM (SELECT DISTINCT "order", cents FROM "shop.orders")"""
    found = tidemill.sql.connect(servers).execute(question).fetchone()
    minutes = expected["minutes"].values()
    truth = tuple(sum(row[name] for row in minutes) for name in ("orders", "cents"))
    wrong += differences("SQL on topic shop.orders", {"total": found}, {"total": truth})
    if wrong:
        sys.exit(f"error: {wrong} rows differ")


def summary(viewers, starts):
    """Print what the page shows."""
    minutes, funnel = viewers["minutes"].rows, viewers["funnel"].rows
    cents = sum(row["cents"] for row in minutes.values())
    late = sum(row["late_cents"] for row in minutes.values())
    best = max(minutes.values(), key=lambda row: row["cents"])
    euros = lambda cents: f"{cents / 100:,.2f} EUR"  # noqa: E731
    print(f"Revenue      {euros(cents)}, {euros(late)} of it arrived late and corrected a minute")
    print(f"Best minute  {best['minute'][11:16]} with {euros(best['cents'])}")
    top = sorted(viewers["products"].rows.values(), key=lambda row: -row["cents"])[:3]
    print("Products    ", ", ".join(f"{row['product']} {euros(row['cents'])}" for row in top))
    print(
        "Funnel      ",
        " > ".join(f"{step} {funnel[step]['visitors']:,}" for step in pipeline.STEPS),
    )
    changes = sum(viewer.changes for viewer in viewers.values())
    print(f"Page         {changes:,} changes of rows; the pipeline was started {starts} times")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bootstrap-servers", "-b", help="a broker; default: one of its own")
    parser.add_argument("--seconds", type=float, default=40, help="how long the evening takes")
    parser.add_argument("--kills", type=int, default=2, help="how often the pipeline is killed")
    parser.add_argument("--seed", type=int, default=1, help="of the evening")
    parser.add_argument("--port", type=int, default=0, help="of the page; default: a free one")
    parser.add_argument("--keep", action="store_true", help="keep the page until Ctrl-C")
    parser.add_argument("--break", dest="broken", choices=pipeline.BREAKABLE, help="a rule")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # its processes end with it
    yesterday = datetime.now(UTC).replace(hour=17, minute=0, second=0, microsecond=0)
    events = shop.evening(arguments.seed, yesterday - timedelta(days=1))
    with contextlib.ExitStack() as stack:
        servers = arguments.bootstrap_servers
        if servers is None:
            servers = stack.enter_context(tidemill.Broker()).bootstrap_servers
        create_topics(servers)
        page, gateway = stack.enter_context(served_page(servers, arguments.port))
        viewers = {table: Viewer(gateway, table) for table in SHOWN}
        worker = Pipeline(servers, arguments.broken)
        stack.callback(worker.stop)
        print(f"Open {page}/ to see {len(events):,} events as they come", flush=True)
        for _ in range(arguments.kills):
            after = random.uniform(0.1, 0.9) * arguments.seconds
            stack.enter_context(timer(after, worker.kill))
        play(events, servers, arguments.seconds)
        wait_until_all_is_counted(servers)
        summary(viewers, worker.starts)
        check(servers, viewers, events)
        print("All checks passed.", flush=True)
        if arguments.keep:
            print("Ctrl-C ends it.", flush=True)
            with contextlib.suppress(KeyboardInterrupt):
                threading.Event().wait()


@contextlib.contextmanager
def timer(after, call):
    """Call something after so many seconds, unless the block ends before."""
    waiting = threading.Timer(after, call)
    waiting.daemon = True
    waiting.start()
    try:
        yield
    finally:
        waiting.cancel()


if __name__ == "__main__":
    main()
