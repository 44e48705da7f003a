"""Look for fraud among card payments: rules over streams, alerts as webhooks, cases for analysts.

    python examples/fraud/fraud.py

It starts a broker of its own, compares each alert with a second computation of the rules, and
prints how good the rules are. With -b it uses a broker that runs, also of Apache Kafka, and with
--master a Spark cluster.
"""

import argparse
import base64
import contextlib
import json
import os
import random
import secrets
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import reference
import rules
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from desk import Desk
from payments import SCENARIOS, generate
from picture import draw

import tidemill
from tidemill.errors import TidemillError
from tidemill.eventstore.store import Store

SEEDS = (1, 2, 3, 4, 5, 6)
TOPICS = {"payments": 2, "chargebacks": 1, "alerts": 2}
DAY_MS = 86_400_000
CHARGEBACK_MS = 7 * DAY_MS
URGENT = ("small-then-large", "travel")
RULES = ("amount", "velocity", *URGENT, "terminal")
BASELINE_CENTS = 21_000
"""The best single limit of an amount, also found on seed 1."""

SOURCE = """
name = "bank"
kind = "sqlite"
topic_configs = { "min.compaction.lag.ms" = "10368000000" }  # versions of 120 days
[database]
path = "bank.db"
"""
WEBHOOK = """
name = "analysts"
topic = "alerts"
url = "{url}"
secrets = ["${{file:{secret}}}"]
types = {types}
start_at = "beginning"
order = "key"
managed = false  # this program runs its worker, also beside another broker
retries_s = [0.2, 0.5, 1, 2, 5, 5, 5, 5, 5, 5, 5, 5]
allow_private = true  # the desk is on this machine
"""


# --- what the bank does --------------------------------------------------------------------------


def iso(at):
    return datetime.fromtimestamp(at / 1000, UTC).isoformat(timespec="seconds")


def chargebacks_of(bank):
    """A week after each fraud, the customer complains."""
    return [
        (each.at + CHARGEBACK_MS, each.terminal, each.id) for each in bank.payments if each.fraud
    ]


def create_topics(servers):
    admin = AdminClient({"bootstrap.servers": servers})
    for topic, created in admin.create_topics([NewTopic(*it) for it in TOPICS.items()]).items():
        try:
            created.result(30)
        except KafkaException as error:
            sys.exit(f"error: {topic}: {error.args[0].str()}. Use a broker without these topics.")


def keep_cards(banks, folder, servers, start):
    """Write the cards into a database whose changes are captured, and then change some of them."""
    with contextlib.closing(sqlite3.connect(folder / "bank.db", isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute(
            "CREATE TABLE cards (card TEXT PRIMARY KEY, x INT, y INT, usual INT, changed_at TEXT)"
        )
        cards = [card for bank in banks for card in bank.cards]
        db.executemany(
            "INSERT INTO cards VALUES (?, ?, ?, ?, ?)",
            [(c.id, c.x, c.y, c.usual[0][1], iso(c.usual[0][0])) for c in cards],
        )
        (folder / "bank.toml").write_text(SOURCE)
        command("source", "create", str(folder / "bank.toml"), "-b", servers)
        start("source", "run", "bank", "-b", servers)

        def captured():
            try:
                return len(tidemill.read("bank.main.cards", bootstrap_servers=servers))
            except TidemillError:  # there is no topic yet
                return 0

        wait_until(lambda: captured() >= len(cards), "all cards are captured")
        rises = [(iso(since), usual, c.id) for c in cards for since, usual in c.usual[1:]]
        db.executemany("UPDATE cards SET changed_at = ?, usual = ? WHERE card = ?", rises)
        wait_until(lambda: captured() >= len(cards) + len(rises), "all changes are captured")
    return len(cards), len(rises)


def send_payments(banks, servers):
    """Send payments and chargebacks. The labels stay here: no rule ever sees them."""
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 20, "compression.type": "lz4"})

    def send(topic, key, value):
        while True:
            try:
                return producer.produce(topic, json.dumps(value), key)
            except BufferError:  # the broker is slower than this loop
                producer.poll(0.1)

    payments = sorted((each for bank in banks for each in bank.payments), key=lambda it: it.at)
    for each in payments:
        value = {"payment": each.id, "at": iso(each.at), "card": each.card}
        value |= {"terminal": each.terminal, "x": each.x, "y": each.y, "cents": each.cents}
        send("payments", each.card, value)
    reports = sorted(report for bank in banks for report in chargebacks_of(bank))
    for reported, terminal, payment in reports:
        value = {"chargeback": payment, "terminal": terminal, "reported": iso(reported)}
        send("chargebacks", terminal, value)
    # Event time passes only with events: a heartbeat a month later ends all windows.
    end = iso(payments[-1].at + 40 * DAY_MS)
    nothing = {"payment": "", "card": "", "terminal": "", "x": 0, "y": 0, "cents": 0}
    send("payments", "", {**nothing, "at": end})
    send("chargebacks", "", {"chargeback": "", "terminal": "", "reported": end})
    if producer.flush(120):
        sys.exit("error: the broker has not taken all payments within two minutes")
    return len(payments), len(reports)


# --- processes -----------------------------------------------------------------------------------


def command(*arguments):
    done = subprocess.run(
        [sys.executable, "-m", "tidemill", *arguments], capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"{' '.join(arguments)}: {done.stderr}")


@contextlib.contextmanager
def workers(folder):
    """Yield a function that starts a worker. All of them are stopped at the end."""
    started = []

    def start(*arguments):
        with (folder / f"{arguments[0]}.log").open("a") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "tidemill", *arguments], stdout=log, stderr=log
            )
        started.append(process)
        return process

    try:
        yield start
    finally:
        for process in started:
            process.terminate()
        for process in started:
            process.wait(60)


def run_pipeline(file, folder, servers, master, start, kills=()):
    """Run the pipeline until it has caught up. It is started again if it ends too early.

    Args:
        kills: (seconds, what to call then with the process), the soonest first.
    """
    arguments = ["pipeline", "run", str(file), "-b", servers, "--master", master]
    arguments += ["--data-dir", str(folder), "--until-caught-up"]
    kills, began = list(kills), time.monotonic()
    for attempt in range(5):
        process = start(*arguments)
        while process.poll() is None:
            if kills and time.monotonic() - began > kills[0][0]:
                kills.pop(0)[1](process)
            time.sleep(0.1)
        if process.returncode == 0:
            return attempt
    sys.exit((folder / "pipeline.log").read_text()[-4000:])


def wait_until(condition, what, seconds=180):
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            sys.exit(f"error: not within {seconds} s: {what}")
        time.sleep(0.1)


class Killer:
    """Kills the pipeline and the broker, each at a random moment, and starts the broker again."""

    def __init__(self, broker):
        self.broker, self.port = broker, int(broker.bootstrap_servers.rpartition(":")[2])

    def kills(self):
        pipeline = (random.uniform(2, 25), self.kill_pipeline)
        return sorted([pipeline, (random.uniform(2, 25), self.kill_broker)])

    def kill_pipeline(self, process):
        process.kill()
        print("killed the pipeline", flush=True)

    def kill_broker(self, _):
        os.kill(self.broker.pid, signal.SIGKILL)
        print("killed the broker", flush=True)
        self.broker.stop()
        self.broker = tidemill.Broker(self.broker.data_dir, port=self.port)


# --- the result ----------------------------------------------------------------------------------


def check_alerts(found, expected):
    """Compare the alerts of the pipeline with those of the second computation, rule by rule.

    Args:
        found: the ids of the alerts, as often as they are in the topic.
        expected: the set of ids of each rule.
    """
    errors = [f"{alert} is there {n} times" for alert, n in Counter(found).items() if n > 1][:3]
    for rule in RULES:
        seen = {alert for alert in found if alert.startswith(f"{rule}:")}
        missing, unexpected = expected[rule] - seen, seen - expected[rule]
        if missing or unexpected:
            errors.append(
                f"rule {rule}: {len(missing)} alerts are missing, {len(unexpected)} are unexpected,"
                f" for example {min(missing | unexpected)}"
            )
    if errors:
        sys.exit("\n".join(f"error: {error}" for error in errors))


def judge(banks, alerts):
    """Print precision and recall of each seed, and return the figures of the picture."""
    suspicious = reference.suspicious(alerts)
    rows, caught = [], {}
    print("\nseed  payments  frauds   rules: precision  recall   one limit: precision  recall")
    for bank in banks:
        fraud = {each.id for each in bank.payments if each.fraud}
        ours = {each for each in suspicious if each.startswith(f"{bank.seed}-")}
        base = {each.id for each in bank.payments if each.cents > BASELINE_CENTS}
        row = (*reference.quality(ours, fraud), *reference.quality(base, fraud))
        note = "   (fitted on it)" if bank.seed == 1 else ""
        print(
            f"{bank.seed:4}  {len(bank.payments):8,}  {len(fraud):6,}          {row[0]:9.2f}"
            f"  {row[1]:6.2f}              {row[2]:9.2f}  {row[3]:6.2f}{note}"
        )
        rows.append((bank.seed, *row))
    print("\nscenario              frauds   found by the rules   by one limit")
    unseen = [each for bank in banks if bank.seed != 1 for each in bank.payments]
    for scenario in SCENARIOS:
        frauds = [each for each in unseen if each.fraud == scenario]
        ours = sum(each.id in suspicious for each in frauds) / len(frauds)
        base = sum(each.cents > BASELINE_CENTS for each in frauds) / len(frauds)
        print(f"{scenario:20}  {len(frauds):6,}   {ours:18.0%}   {base:12.0%}")
        caught[scenario] = (ours, base)
    return rows, caught


def close_cases(desk, alerts, expected, servers):
    """Close each case as the chargebacks say, and check the cases."""
    urgent = set().union(*(expected[rule] for rule in URGENT))
    wait_until(lambda: len(set(desk.alerts())) >= len(urgent), "the webhook delivers all alerts")
    taken = desk.alerts()
    if sorted(taken) != sorted(urgent):
        sys.exit(f"error: the desk took {len(taken)} alerts, expected {len(urgent)}, each once")
    cards = {each["card"] for each in alerts if each["type"] in URGENT}
    read = tidemill.read("chargebacks", bootstrap_servers=servers)
    verdicts = desk.decide(cards, {record.json()["chargeback"] for record in read})
    print(f"\n{len(taken):,} urgent alerts by webhook: {len(verdicts):,} cases, ", end="")
    print(", ".join(f"{n:,} {verdict}" for verdict, n in Counter(verdicts.values()).most_common()))


def fit():
    """Print the thresholds that are best on seed 1, and nothing else is looked at."""
    bank = generate(1)
    fraud = {each.id for each in bank.payments if each.fraud}
    second = reference.Reference(bank, [report[:2] for report in chargebacks_of(bank)])
    return reference.fit(second, fraud, rules.AT), reference.fit_baseline(bank.payments, fraud)


def run(options, folder, stack):
    master, servers, killer = options.master, options.bootstrap_servers, None
    if servers is None:
        killer = Killer(tidemill.Broker(folder / "broker"))
        stack.callback(lambda: killer.broker.stop())
        servers = killer.broker.bootstrap_servers
    start = stack.enter_context(workers(folder))
    banks = [generate(seed, options.days, options.cards, 2 * options.cards) for seed in SEEDS]
    create_topics(servers)
    cards, rises = keep_cards(banks, folder, servers, start)
    print(f"{cards:,} cards in SQLite are captured, and {rises} changes of them", flush=True)
    payments, reports = send_payments(banks, servers)
    print(f"{payments:,} payments of {options.days} days, {reports:,} chargebacks", flush=True)

    secret = "whsec_" + base64.b64encode(secrets.token_bytes(32)).decode()
    (folder / "secret").write_text(secret)
    store = stack.enter_context(Store(servers, "cases", folder=folder))
    desk = Desk(store, secret)
    stack.callback(desk.close)
    definition = WEBHOOK.format(url=desk.url, secret=folder / "secret", types=json.dumps(URGENT))
    (folder / "analysts.toml").write_text(definition)
    command("webhook", "create", str(folder / "analysts.toml"), "-b", servers)
    start("webhook", "run", "analysts", "-b", servers)

    began = time.monotonic()
    kills = killer.kills() if options.kill else ()
    restarts = run_pipeline(options.rules, folder, servers, master, start, kills)
    again = f", and was started again {restarts} times" if restarts else ""
    print(f"the pipeline has read all in {time.monotonic() - began:.0f} s{again}", flush=True)

    expected = {rule: set() for rule in RULES}
    for bank in banks:
        second = reference.Reference(bank, [report[:2] for report in chargebacks_of(bank)])
        for rule, found in second.alerts(rules.AT).items():
            expected[rule] |= found
    alerts = [record.json() for record in tidemill.read("alerts", bootstrap_servers=servers)]
    check_alerts([each["alert"] for each in alerts], expected)
    counts = ", ".join(f"{len(expected[rule]):,} {rule}" for rule in RULES)
    print(f"{len(alerts):,} alerts, each as in the second computation: {counts}")
    rows, caught = judge(banks, [each["alert"] for each in alerts])
    close_cases(desk, alerts, expected, servers)
    draw(options.picture, rows, caught)
    print(f"\nAll checks passed. The picture is {options.picture}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bootstrap-servers", "-b", help="a broker; default: one of its own")
    parser.add_argument("--master", default="local[2]", help="Spark's master")
    parser.add_argument("--days", type=int, default=60, help="days of payments")
    parser.add_argument("--cards", type=int, default=200, help="cards of each seed")
    here = Path(__file__).parent
    parser.add_argument("--rules", type=Path, default=here / "rules.py", help="another edition")
    parser.add_argument("--picture", type=Path, default=Path("fraud.svg"), help="its file")
    parser.add_argument("--fit", action="store_true", help="find the thresholds on seed 1 and end")
    parser.add_argument(
        "--kill",
        action="store_true",
        help="kill the pipeline and the broker: the result is the same",
    )
    options = parser.parse_args()
    if options.kill and options.bootstrap_servers:
        parser.error("--kill needs a broker of its own")
    if options.fit:
        print(*fit(), sep="\n")
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # its processes end with it
    with contextlib.ExitStack() as stack:
        run(options, Path(stack.enter_context(tempfile.TemporaryDirectory())), stack)


if __name__ == "__main__":
    main()
