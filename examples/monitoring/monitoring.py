"""Watch a service: metrics over StatsD, log lines, rules over streams, alerts that people get.

    python examples/monitoring/monitoring.py

It starts a broker of its own and a simulated service with faults, and prints when each fault was
noticed, and the false alarms of a day. With -b it uses a broker that runs, also of Apache Kafka,
and with --master a Spark cluster.
"""

import argparse
import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from datetime import UTC, datetime
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import expected
import watch
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from service import INSTANCES, START_MS, Minute, Service
from timeline import draw

import tidemill

TOPICS = ("metrics", "logs", "service-alerts", "incidents", "usual")
MINUTE_MS = 60_000
RULE_OF = {
    "crash loop": "crash-loop",
    "high latency": "high-latency",
    "disk full": "disk-full",
    "failing requests": "failing-requests",
    "no traffic": "no-traffic",
}
WATERMARK_MINUTES = 1
NOTICED_WITHIN_MINUTES = 60

BRIDGE = """
name = "app"
kind = "statsd"
topic = "metrics"
managed = false  # this program runs its worker, also beside another broker
options = {{ listen = ["unixgram://{path}"], dialect = "dogstatsd", interval_s = 0.2 }}
"""
ALERTS = """
[alerts]
interval_ms = 100

[[alert]]
name = "service"
topic = "service-alerts"
measure = "events"
summary = "${{rule}} at ${{instance}}: ${{value}}"

[[alert_receiver]]
name = "people"
url = "{url}"
allow_private = true  # the receiver is on this machine
group_by = ["..."]
group_wait_s = 0
group_interval_s = 0
"""


# --- who sends and who receives ------------------------------------------------------------------


class Sender:
    """Sends the minutes of the service: metrics as a StatsD client does, lines to a topic."""

    def __init__(self, service, servers, path):
        self._minutes, self._path = service.run(), path
        self.sent = []
        quiet = {"log_level": 0}  # --kill kills its broker
        self._producer = Producer({"bootstrap.servers": servers, "linger.ms": 20, **quiet})
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)

    def send_until(self, minute):
        """Send all minutes before this one. A datagram that is not taken makes the sender wait."""
        while len(self.sent) < minute * len(INSTANCES):
            minutes = next(self._minutes)
            self._send(minutes)
            self.sent += minutes
        self._flush()

    def end(self):
        """Send a minute of the next day. Time passes only with events: it ends all windows."""
        last = self.sent[-1].at + 24 * 60 * MINUTE_MS
        lines = ((last, "INFO", "served 0 requests"),)
        self._send([Minute(last, name, (("requests", "c", 0.0),), lines) for name in INSTANCES])
        self._flush()

    def close(self):
        self._socket.close()
        self._producer = None  # it would complain about a broker that is gone

    def _send(self, minutes):
        lines = [
            f"{name}:{value:g}|{kind}|T{each.at // 1000}|#instance:{each.instance}"
            for each in minutes
            for name, kind, value in each.metrics
        ]
        self._socket.sendto("\n".join(lines).encode(), self._path)
        log = sorted((line, each.instance) for each in minutes for line in each.lines)
        for (at, level, message), instance in log:
            value = {"at": iso(at), "instance": instance, "level": level, "message": message}
            self._producer.produce("logs", json.dumps(value), instance)
            self._producer.poll(0)

    def _flush(self):
        if self._producer.flush(120):
            sys.exit("error: the broker has not taken all log lines within two minutes")


class People:
    """Get notices: the requests of the alert worker, in Alertmanager's format."""

    def __init__(self):
        self.notices = []
        notices = self.notices

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                for each in body["alerts"]:
                    labels = each["labels"]
                    notices.append((labels.get("rule"), labels.get("instance"), each["status"]))
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_):
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/alerts"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def know(self, fault, status, since):
        """Whether there was a notice, behind the first ones, for each instance of a fault."""
        wanted = {(RULE_OF[fault.kind], name, status) for name in fault.where}
        return wanted <= set(self.notices[since:])

    def close(self):
        self._server.shutdown()
        self._server.server_close()


def iso(at):
    return datetime.fromtimestamp(at / 1000, UTC).isoformat(timespec="milliseconds")


# --- processes -----------------------------------------------------------------------------------


def command(*arguments):
    done = subprocess.run(
        [sys.executable, "-m", "tidemill", *arguments], capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"{' '.join(arguments)}: {done.stderr}")
    return done.stdout


class Processes:
    """Commands of tidemill that are kept running, as systemd would."""

    def __init__(self, folder):
        self._folder = folder
        self._running = {}
        self.starts = 0

    def keep(self, *arguments):
        """Start a command, and start it again when it ends."""
        with (self._folder / f"{arguments[0]}.log").open("a") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "tidemill", *arguments], stdout=log, stderr=log
            )
        self._running[arguments] = process
        self.starts += 1

    def check(self):
        """Start again what has ended."""
        for arguments, process in list(self._running.items()):
            if process.poll() is not None:
                if self.starts > 20:
                    sys.exit((self._folder / f"{arguments[0]}.log").read_text()[-4000:])
                self.keep(*arguments)

    def kill(self, name):
        for arguments, process in self._running.items():
            if arguments[0] == name:
                process.send_signal(signal.SIGKILL)
                process.wait()

    def wait_until(self, condition, what, seconds=180):
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                sys.exit(f"error: not within {seconds} s: {what}")
            self.check()
            time.sleep(0.05)

    def stop(self):
        for process in self._running.values():
            process.terminate()
        for process in self._running.values():
            process.wait(60)


# --- the run -------------------------------------------------------------------------------------


def prepare(service, servers, people, path, folder, processes, options):
    """Create the topics, the bridge and the alerts, and start what works on them."""
    admin = AdminClient({"bootstrap.servers": servers})
    # One partition keeps the order in which things were sent.
    for topic, created in admin.create_topics([NewTopic(each, 1) for each in TOPICS]).items():
        try:
            created.result(30)
        except KafkaException as error:
            sys.exit(f"error: {topic}: {error.args[0].str()}. Use a broker without these topics.")
    producer = Producer({"bootstrap.servers": servers})
    for hour, requests in service.usual().items():
        producer.produce("usual", json.dumps({"hour": hour, "requests": requests}), hour)
    producer.flush(30)
    (folder / "bridge.toml").write_text(BRIDGE.format(path=path))
    (folder / "alerts.toml").write_text(ALERTS.format(url=people.url))
    command("bridge", "create", str(folder / "bridge.toml"), "-b", servers)
    processes.keep("bridge", "run", "app", "-b", servers)
    processes.keep("alert", "run", "--config", str(folder / "alerts.toml"), "-b", servers)
    run = ("pipeline", "run", str(options.rules), "-b", servers, "--master", options.master)
    processes.keep(*run, "--data-dir", str(folder))
    processes.wait_until(lambda: Path(path).exists(), "the bridge listens")


def live_through(service, sender, people, processes, servers, kills):
    """Let the days pass. At each fault, time waits until people know of it, and of its end."""
    for fault in service.faults:
        silence, seen = "", len(people.notices)
        if fault.is_planned:
            labels = [f"rule={RULE_OF[fault.kind]}", *(f"instance={each}" for each in fault.where)]
            text = command("alert", "silence", *labels, "--json", "-b", servers)
            silence = json.loads(text)["id"]
        for kill in kills.pop(fault, ()):
            kill()
        noticed = min(fault.first + NOTICED_WITHIN_MINUTES, fault.end)
        for status, minute in (("firing", noticed), ("resolved", fault.end + 30)):
            sender.send_until(minute)
            processes.wait_until(
                partial(state_is, fault, status, servers)
                if silence
                else partial(people.know, fault, status, seen),
                f"{fault.kind} of {clock(fault.first)} is {status}",
            )
        if silence:
            command("alert", "unsilence", silence, "-b", servers)
            if people.know(fault, "firing", seen):
                sys.exit(f"error: people got a notice of {fault.kind}, which is silenced")
    sender.send_until(service.minutes)
    sender.end()


def state_is(fault, status, servers):
    """Whether the alert worker has a state of the alert of a fault."""
    found = json.loads(command("alert", "list", "--all", "--json", "-b", servers))
    return any(
        each["state"] == status
        and (each["labels"]["rule"], each["labels"]["instance"])
        == (RULE_OF[fault.kind], fault.where[0])
        for each in found["alerts"]
    )


# --- the result ----------------------------------------------------------------------------------


def milliseconds(text):
    return round(datetime.fromisoformat(text).timestamp() * 1000)


def clock(minute):
    return f"day {minute // 1440 + 1} {minute // 60 % 24:02}:{minute % 60:02}"


def check_same(what, found, wanted):
    """Compare what the pipeline wrote, as a list, with what was computed a second time."""
    known = dict(found)
    if len(known) != len(found):
        sys.exit(f"error: {len(found) - len(known)} {what} are there twice")
    keys = sorted(known.keys() | wanted.keys())
    wrong = [key for key in keys if known.get(key) != wanted.get(key)]
    if wrong:
        first = f"{wrong[0]}: {known.get(wrong[0])}, expected {wanted.get(wrong[0])}"
        sys.exit(f"error: {len(wrong)} {what} differ, for example {first}")


def values(topic, servers):
    return [record.json() for record in tidemill.read(topic, bootstrap_servers=servers)]


def has_read_all(servers, last_alert, last_incident):
    """Whether the last alerts and the last incident were written."""
    alerts, incidents = values("service-alerts", servers), values("incidents", servers)
    return any(milliseconds(each["at"]) >= last_alert for each in alerts) and any(
        milliseconds(each["until"]) >= last_incident for each in incidents
    )


def check_results(states, sessions, servers):
    """Compare alerts and incidents with the second computation."""
    found = []
    for each in values("service-alerts", servers):
        labels = each["labels"]
        key = labels["rule"], labels["instance"], milliseconds(each["at"])
        found.append((key, each["state"]))
    check_same("alerts", found, states)
    known = [
        (each["instance"], milliseconds(each["since"]), milliseconds(each["until"]), each["lines"])
        for each in values("incidents", servers)
    ]
    check_same("incidents", [(each, True) for each in known], dict.fromkeys(sessions, True))


def alarms_of(states, minutes):
    """Return (rule, instance, first, last minute) of alerts: one for firing windows in a row.

    Windows that are cut by the end of the simulation are left out.
    """
    alarms = []
    for rule, instance, at in sorted(key for key, state in states.items() if state == "firing"):
        minute = (at - START_MS) // MINUTE_MS + WATERMARK_MINUTES
        if minute > minutes:
            continue
        if alarms and alarms[-1][:2] == (rule, instance) and minute - alarms[-1][3] <= 5:
            alarms[-1] = (*alarms[-1][:3], minute)
        else:
            alarms.append((rule, instance, minute, minute))
    return alarms


def judge(service, alarms, people):
    """Print what was noticed when, and return the false alarms."""
    print("\nfault             where  begins       noticed after  over after  notices")
    for fault in service.faults:
        rule = RULE_OF[fault.kind]
        own = [each for each in alarms if each[0] == rule and is_about(fault, each)]
        if {each[1] for each in own} != set(fault.where):
            sys.exit(f"error: no alert for {fault.kind}, {clock(fault.first)}")
        noticed = max(min(e[2] for e in own if e[1] == name) for name in fault.where) - fault.first
        over = max(each[3] for each in own) + 5 - fault.end
        where = fault.where[0] if len(fault.where) == 1 else "all"
        notices = "silenced" if fault.is_planned else "sent"
        print(
            f"{fault.kind:16}  {where:5}  {clock(fault.first)}  {noticed:9} min  {over:6} min"
            f"  {notices}"
        )
    false = [each for each in alarms if not any(is_about(fault, each) for fault in service.faults)]
    days = service.minutes / 1440
    print(f"\n{len(false)} false alarms, {len(false) / days:.1f} a day:")
    for rule in sorted({each[0] for each in false}):
        times = [clock(each[2]) + " " + each[1] for each in false if each[0] == rule]
        print(f"  {rule}: {', '.join(times)}")
    fired = sum(status == "firing" for _, _, status in people.notices)
    print(f"{len(people.notices)} notices, {fired} of them that an alert fires")
    return false


def is_about(fault, alarm):
    """Whether an alarm of any rule overlaps a fault of its instance."""
    return alarm[1] in fault.where and fault.first <= alarm[3] and alarm[2] <= fault.end + 11


class Killer:
    """Kills the pipeline, the alert worker and the broker at random faults, each once."""

    def __init__(self, broker):
        self.broker, self.port = broker, int(broker.bootstrap_servers.rpartition(":")[2])

    def kills(self, service, processes):
        kills = {}
        jobs = {name: lambda name=name: processes.kill(name) for name in ("pipeline", "alert")}
        for name, job in {**jobs, "broker": self.kill_broker}.items():
            fault = random.choice([each for each in service.faults if not each.is_planned])
            kills.setdefault(fault, []).append(job)
            print(f"the {name} is killed at {clock(fault.first)}", flush=True)
        return kills

    def kill_broker(self):
        os.kill(self.broker.pid, signal.SIGKILL)
        self.broker.stop()
        self.broker = tidemill.Broker(self.broker.data_dir, port=self.port)


def run(options, folder, stack):
    servers, killer, people = options.bootstrap_servers, None, People()
    stack.callback(people.close)
    if servers is None:
        killer = Killer(tidemill.Broker(folder / "broker"))
        stack.callback(lambda: killer.broker.stop())
        servers = killer.broker.bootstrap_servers
    service, path = Service(options.seed, options.days), str(folder / "statsd")
    processes = Processes(folder)
    stack.callback(processes.stop)
    prepare(service, servers, people, path, folder, processes, options)
    sender = Sender(service, servers, path)
    stack.callback(sender.close)
    kills = killer.kills(service, processes) if options.kill else {}
    live_through(service, sender, people, processes, servers, kills)
    states = expected.alerts(sender.sent, service.usual(), watch.AT)
    sessions = expected.incidents(sender.sent, watch.AT)
    ends = max(at for _, _, at in states), max(until for _, _, until, _ in sessions)
    processes.wait_until(partial(has_read_all, servers, *ends), "the pipeline has read all")
    check_results(states, sessions, servers)
    lines = sum(len(each.lines) for each in sender.sent)
    metrics = sum(len(each.metrics) for each in sender.sent)
    print(f"{options.days} days: {metrics:,} metrics over StatsD, {lines:,} log lines")
    print(f"{len(states):,} states of rules, {len(sessions)} incidents: as computed a second time")
    alarms = alarms_of(states, service.minutes)
    false = judge(service, alarms, people)
    draw(options.picture, service, alarms, false)
    print(f"\nAll checks passed. The picture is {options.picture}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bootstrap-servers", "-b", help="a broker; default: one of its own")
    parser.add_argument("--master", default="local[2]", help="Spark's master")
    parser.add_argument("--days", type=int, default=3, help="days of the service, 2 faults each")
    parser.add_argument("--seed", type=int, default=1, help="chooses the faults")
    here = Path(__file__).parent
    parser.add_argument("--rules", type=Path, default=here / "watch.py", help="another edition")
    parser.add_argument("--picture", type=Path, default=Path("monitoring.svg"), help="its file")
    parser.add_argument("--kill", action="store_true", help="kill the parts, each once")
    options = parser.parse_args()
    if options.kill and options.bootstrap_servers:
        parser.error("--kill needs a broker of its own")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # its processes end with it
    with contextlib.ExitStack() as stack:
        run(options, Path(stack.enter_context(tempfile.TemporaryDirectory())), stack)


if __name__ == "__main__":
    main()
