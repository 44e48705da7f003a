"""The least rules of what tidemill runs, with real workers: none is refused what it needs."""

from __future__ import annotations

import contextlib
import http.server
import sqlite3
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import CommandLine
from tests.support.broker_process import BrokerProcess
from tests.support.ports import reserve_port
from tests.support.processes import poll_until

pytestmark = pytest.mark.nightly

PASSWORD = "p"
WITHOUT_WORKERS = {
    "kafka.mechanisms": "SCRAM-SHA-256",
    **{f"{kind}.run": "false" for kind in ("sources", "webhooks", "bridges")},
}


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker with logins, which runs no workers itself."""
    folder = tmp_path_factory.mktemp("secured")
    env = {"TIDEMILL_ADMIN": f"root:{PASSWORD}"}
    with BrokerProcess(folder, settings=WITHOUT_WORKERS, env=env) as process:
        yield process


class Users:
    """Command lines of users, whose logins are in files."""

    def __init__(self, broker: BrokerProcess, folder: Path) -> None:
        self.broker = broker
        self.folder = folder
        self.root = self.line("root")

    def line(self, user: str) -> CommandLine:
        file = self.folder / f"{user}.properties"
        file.touch(0o600)
        file.write_text(
            f"bootstrap.servers={self.broker.bootstrap}\nsecurity.protocol=SASL_PLAINTEXT\n"
            f"sasl.mechanism=SCRAM-SHA-256\nsasl.username={user}\nsasl.password={PASSWORD}\n"
        )
        line = CommandLine(self.broker.bootstrap, self.folder)
        line.env["TIDEMILL_CLIENT_CONFIG"] = str(file)
        return line

    def create(self, user: str, *flags: str) -> CommandLine:
        create = ("user", "create", user, "--password-file", "-", *flags)
        self.root.ok(*create, stdin=f"{PASSWORD}\n")
        return self.line(user)

    def denied(self, user: str) -> list[str]:
        """Return what the audit log says about a user."""
        lines = self.broker.log_path.read_text().splitlines()
        return [each for each in lines if "access.denied" in each and f"User:{user} " in each]

    @contextlib.contextmanager
    def worker(self, line: CommandLine, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
        process = subprocess.Popen(
            [sys.executable, "-m", "tidemill", *arguments], env=line.env, cwd=self.folder
        )
        try:
            yield process
        finally:
            process.terminate()
            process.wait(30)


@pytest.fixture
def users(secured: BrokerProcess, tmp_path: Path) -> Users:
    return Users(secured, tmp_path)


def wait_until(condition: Callable[[], bool]) -> None:
    poll_until(condition, 60, "the condition comes true", 0.1)


def state(users: Users, *describe: str) -> str:
    return str(users.root.json(*describe).get("state"))


def test_a_source(users: Users, tmp_path: Path) -> None:
    with contextlib.closing(sqlite3.connect(tmp_path / "shop.db")) as database:
        database.execute("create table orders(id integer primary key)")
        database.execute("insert into orders values(1)")
        database.commit()
    line = users.create("cap", "--for", "source", "--name", "shop", "--write", "shop.*")
    file = tmp_path / "shop.toml"
    file.write_text(
        'name = "shop"\nkind = "sqlite"\nmanaged = false\ntables = ["orders"]\n'
        f'database.path = "{tmp_path}/shop.db"\n'
    )
    users.root.ok("source", "create", str(file))
    with users.worker(line, "source", "run", "shop"):
        wait_until(lambda: state(users, "source", "describe", "shop") == "running")
        wait_until(lambda: "shop.main.orders" in users.root.ok("topic", "list"))
    assert users.denied("cap") == []


def test_a_webhook(users: Users, tmp_path: Path) -> None:
    delivered = threading.Event()

    class Endpoint(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.end_headers()
            delivered.set()

        def log_message(self, *arguments: object) -> None:
            """Print nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Endpoint)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    users.root.ok("topic", "create", "events")
    line = users.create("hooks", "--for", "webhook", "--name", "billing", "--read", "events")
    (tmp_path / "secret").write_text("whsec_" + "QUJD" * 10)
    file = tmp_path / "billing.toml"
    file.write_text(
        'name = "billing"\ntopic = "events"\nallow_private = true\n'
        f'url = "http://127.0.0.1:{server.server_port}/"\n'
        f'secrets = ["${{file:{tmp_path}/secret}}"]\n'
    )
    users.root.ok("webhook", "create", str(file))
    with users.worker(line, "webhook", "run", "--all"):
        wait_until(lambda: state(users, "webhook", "describe", "billing") == "running")
        users.root.ok("topic", "produce", "events", stdin="hello\n")
        assert delivered.wait(60)
    server.shutdown()
    server.server_close()
    assert users.denied("hooks") == []


def test_a_bridge(users: Users, tmp_path: Path) -> None:
    line = users.create("bridges", "--for", "bridge", "--write", "metrics")
    port = reserve_port()
    file = tmp_path / "app.toml"
    file.write_text(
        'name = "app"\nkind = "statsd"\ntopic = "metrics"\n'
        f'options = {{ listen = ["udp://127.0.0.1:{port}"], interval_s = 1 }}\n'
    )
    users.root.ok("bridge", "create", str(file))
    with users.worker(line, "bridge", "run", "--all"):
        wait_until(lambda: state(users, "bridge", "describe", "app") == "running")
        wait_until(lambda: "metrics" in users.root.ok("topic", "list"))
    assert users.denied("bridges") == []


def test_a_gateway(users: Users) -> None:
    users.root.ok("topic", "create", "web")
    line = users.create("gate", "--for", "gateway", "--read", "web", "--write", "web")
    port = reserve_port()
    url = f"http://127.0.0.1:{port}/topics/web"

    def posted() -> bool:
        headers = {"content-type": "application/json"}
        request = urllib.request.Request(url, b'{"value": "hello"}', headers)
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    with users.worker(line, "gateway", "--port", str(port)):
        wait_until(posted)
        with urllib.request.urlopen(f"{url}/partitions/0?from=beginning", timeout=10) as answer:
            assert b"hello" in answer.read()
    assert users.denied("gate") == []


PIPELINE = """
from tidemill.spark import ChangelogSink, Pipeline, TopicSink

pipeline = Pipeline("flights")
pipeline.stream("departures", schema="airport STRING, delay INT")


@pipeline.query(sink=TopicSink("departures.late", key="airport"))
def late(departures):
    return departures.df.filter("delay > 15").select("airport", "delay")


@pipeline.query(sink=ChangelogSink("departures.now", key="airport"), mode="update")
def now(departures):
    return departures.df.groupBy("airport").agg({"delay": "sum"}).toDF("airport", "delay")
"""


@pytest.mark.spark
def test_a_pipeline(users: Users, tmp_path: Path) -> None:
    users.root.ok("topic", "create", "departures")
    users.root.ok("topic", "produce", "departures", stdin='{"airport": "JFK", "delay": 20}\n')
    flags = ("--read", "departures*", "--write", "departures.*")
    line = users.create("delays", "--for", "pipeline", "--name", "flights", *flags)
    file = tmp_path / "flights.py"
    file.write_text(PIPELINE)
    run = [*line.command("pipeline", "run", str(file)), "--until-caught-up"]
    done = subprocess.run(run, env=line.env, cwd=tmp_path, capture_output=True, timeout=600)
    assert done.returncode == 0, done.stderr.decode()
    (record,) = users.root.records("departures.late", "--from", "beginning", "--until-end")
    assert "JFK" in record["value"]
    assert users.denied("delays") == []
