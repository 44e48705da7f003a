"""Users, rules and decisions on the command line, with a broker that asks for logins."""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pika
import pika.exceptions
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.cli.conftest import CommandLine, Done
from tests.support.broker_process import BrokerProcess

CODES = OK, FAILURE, USAGE, NOT_FOUND, CONFLICT, UNREACHABLE = range(6)
ADMIN, PASSWORD = "root", "geheim-1"


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker with SCRAM logins, whose first super user comes from the environment."""
    settings = {"kafka.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512,PLAIN"}
    folder = tmp_path_factory.mktemp("secured")
    env = {"TIDEMILL_ADMIN": f"{ADMIN}:{PASSWORD}"}
    with BrokerProcess(folder, settings=settings, env=env) as process:
        yield process


class Users:
    """Calls the command line as a user."""

    def __init__(self, line: CommandLine) -> None:
        self._line = line

    def run(
        self,
        *arguments: str,
        user: str = ADMIN,
        password: str = PASSWORD,
        mechanism: str = "SCRAM-SHA-256",
        stdin: str = "",
    ) -> Done:
        login = {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": mechanism,
            "sasl.username": user,
            "sasl.password": password,
        }
        flags = [text for key, value in login.items() for text in ("-X", f"{key}={value}")]
        return self._line.run(*arguments, *flags, stdin=stdin)

    def ok(self, *arguments: str, stdin: str = "", **login: str) -> str:
        done = self.run(*arguments, stdin=stdin, **login)
        assert done.returncode == OK, f"{arguments}: {done.stderr}"
        return done.stdout


@pytest.fixture
def line(secured: BrokerProcess, tmp_path: Path) -> Users:
    return Users(CommandLine(secured.bootstrap, tmp_path))


def create_user(line: Users, name: str, *flags: str) -> str:
    return line.ok("user", "create", name, "--password-file", "-", *flags, stdin="p\n")


# --- users ---------------------------------------------------------------------------------------


def test_a_user_is_created_and_logs_in_by_each_mechanism_until_it_is_deleted(line: Users) -> None:
    assert create_user(line, "ann") == "created user ann\n"
    for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN"):
        line.ok("topic", "list", user="ann", password="p", mechanism=mechanism)
    line.ok("user", "set-password", "ann", "--password-file", "-", stdin="q\n")
    assert line.run("topic", "list", user="ann", password="p").returncode == UNREACHABLE
    line.ok("topic", "list", user="ann", password="q")
    found = {
        each["user"]: each["credentials"] for each in json.loads(line.ok("user", "list", "--json"))
    }
    assert [each["mechanism"] for each in found["ann"]] == ["SCRAM-SHA-256", "SCRAM-SHA-512"]
    assert line.ok("user", "delete", "ann", "--dry-run") == "would delete user ann\n"
    assert line.ok("user", "delete", "ann", "--yes") == "deleted user ann\n"
    assert line.run("topic", "list", user="ann", password="q").returncode == UNREACHABLE
    assert line.run("user", "delete", "ann", "--yes").returncode == NOT_FOUND
    assert line.run("user", "set-password", "ann", "--password-file", "-").returncode == NOT_FOUND


def test_a_password_is_needed_and_never_an_argument(line: Users, tmp_path: Path) -> None:
    missing = line.run("user", "create", "bob")
    assert (missing.returncode, "--password-file" in missing.stderr) == (USAGE, True)
    empty = line.run("user", "create", "bob", "--password-file", "-", stdin="\n")
    assert (empty.returncode, "empty" in empty.stderr) == (USAGE, True)
    assert (
        line.run("user", "create", "bob", "--password-file", str(tmp_path / "no")).returncode
        == USAGE
    )
    file = tmp_path / "password"
    file.write_text("p\nsecond line\n")
    line.ok("user", "create", "bob", "--password-file", str(file))
    line.ok("topic", "list", user="bob", password="p")


def test_one_mechanism_can_be_chosen(line: Users) -> None:
    create_user(line, "cem", "--mechanism", "SCRAM-SHA-512", "--iterations", "8192")
    line.ok("topic", "list", user="cem", password="p", mechanism="SCRAM-SHA-512")
    assert line.run("topic", "list", user="cem", password="p").returncode == UNREACHABLE


# --- the first super user ------------------------------------------------------------------------


def test_the_first_super_user_is_created_while_the_broker_is_stopped(
    tmp_path: Path, clean_environment: None
) -> None:
    create = ["user", "create", "boss", "--admin", "--password-file", "-"]
    with BrokerProcess(tmp_path / "b", settings={"kafka.mechanisms": "PLAIN"}) as broker:
        folder = str(broker.data_dir)
        line = CommandLine(broker.bootstrap, tmp_path)
        running = line.run(*create, "--data-dir", folder, stdin="p\n")
        assert running.returncode == CONFLICT, running.stderr
        broker.terminate()
        created = line.run(*create, "--data-dir", folder, stdin="p\n")
        assert created.stdout == "created user boss as a super user\n", created.stderr
        broker.start()
        users = Users(line)
        login = {"user": "boss", "password": "p", "mechanism": "PLAIN"}
        users.ok("acl", "create", "ann", "read", "topic:t", **login)
        assert users.run("acl", "list", user="boss", password="q").returncode == UNREACHABLE
    assert line.run(*create, stdin="p\n").returncode == USAGE
    missing = line.run(*create, "--data-dir", str(tmp_path / "typo"), stdin="p\n")
    assert (missing.returncode, (tmp_path / "typo").exists()) == (FAILURE, False)


LAST = "everyone who can connect may do everything then"
LOCKED_OUT = "no user can change users and rules then"


def test_a_super_user_becomes_an_ordinary_user_while_the_broker_is_stopped(
    tmp_path: Path, clean_environment: None
) -> None:
    with BrokerProcess(tmp_path / "b", settings={"kafka.mechanisms": "PLAIN"}) as broker:
        folder = ["--data-dir", str(broker.data_dir)]
        line = CommandLine(broker.bootstrap, tmp_path)
        revoke = ["user", "revoke-admin", *folder]
        assert line.run(*revoke, "boss", "--yes").returncode == CONFLICT  # it runs
        broker.terminate()
        assert line.run(*revoke, "boss", "--yes").returncode == NOT_FOUND
        create = ["user", "create", "--admin", "--password-file", "-", *folder]
        for name in ("boss", "chief"):
            line.run(*create, name, stdin="p\n")
        assert "--yes" in line.run(*revoke, "boss").stderr
        tried = line.run(*revoke, "boss", "--dry-run")
        assert (tried.stdout, tried.stderr) == ("would make boss an ordinary user\n", "")
        done = line.run(*revoke, "boss", "--yes")
        assert (done.stdout, done.stderr) == ("made boss an ordinary user\n", "")
        broker.start()
        users = Users(line)
        boss, chief = (
            {"user": each, "password": "p", "mechanism": "PLAIN"} for each in ("boss", "chief")
        )
        assert "not allowed" in users.run("user", "list", **boss).stderr
        users.ok("user", "delete", "boss", "--yes", **chief)
        gone = users.run("user", "delete", "chief", "--yes", **chief)
        assert (gone.returncode, LOCKED_OUT in gone.stderr) == (OK, True)
        broker.terminate()
        line.run(*create, "boss", stdin="p\n")  # the mark of chief is still there
        assert LOCKED_OUT in line.run(*revoke, "boss", "--yes").stderr
        assert LAST in line.run(*revoke, "chief").stderr
        settings = tmp_path / "tidemill.toml"
        settings.write_text('[security]\nsuper_users = "User:chief"\n')
        named = line.run(*revoke, "chief", "--yes", "--config", str(settings))
        assert LAST not in named.stderr
        assert "stays a super user" in named.stderr


def test_super_users_come_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "admins"
    file.write_text("boss:p\n")
    file.chmod(0o600)
    settings = {"kafka.mechanisms": "PLAIN", "security.admin_file": str(file)}
    with BrokerProcess(tmp_path / "b", settings=settings) as broker:
        users = Users(CommandLine(broker.bootstrap, tmp_path))
        login = {"user": "boss", "password": "p", "mechanism": "PLAIN"}
        assert "boss" in users.ok("user", "list", **login)
        file.write_text("boss:new\n")
        broker.terminate()
        broker.start()
        assert users.run("user", "list", **login).returncode == UNREACHABLE
        users.ok("user", "list", **{**login, "password": "new"})


def test_no_worker_and_no_output_has_the_password(secured: BrokerProcess) -> None:
    shown = secured.log_path.read_text()
    assert PASSWORD not in shown
    children = subprocess.run(
        ["ps", "e", "--ppid", str(secured.pid), "-o", "args="], capture_output=True, text=True
    ).stdout
    assert PASSWORD not in children


# --- rules ---------------------------------------------------------------------------------------


def test_rules_are_created_listed_explained_and_deleted(line: Users) -> None:
    create_user(line, "dora")
    line.ok("topic", "create", "orders")
    login = {"user": "dora", "password": "p"}
    assert "orders" not in line.ok("topic", "list", **login)
    assert line.ok("acl", "create", "dora", "read,write", "topic:ord*") == (
        "created: allow User:dora read topic:ord*\ncreated: allow User:dora write topic:ord*\n"
    )
    assert "orders" in line.ok("topic", "list", **login)
    line.ok("topic", "produce", "orders", stdin="hello\n", **login)
    line.ok("acl", "create", "*", "write", "topic:orders", "--deny", "--from", "10.9.9.9")
    assert line.ok("acl", "explain", "dora", "write", "topic:orders") == (
        "allowed: allow User:dora write topic:ord*\n"
    )
    assert line.ok("acl", "explain", "dora", "write", "topic:orders", "--from", "10.9.9.9") == (
        "denied: deny User:* write topic:orders from 10.9.9.9\n"
    )
    assert line.ok("acl", "explain", "dora", "describe", "topic:orders").startswith("allowed")
    assert line.ok("acl", "explain", "dora", "delete", "topic:orders") == (
        "denied: there are rules for this resource, and none allows it\n"
    )
    assert line.ok("acl", "explain", "root", "alter", "cluster") == (
        "allowed: a super user may do everything\n"
    )
    found = json.loads(line.ok("acl", "list", "--user", "dora", "--json"))
    assert [(each["operation"], each["resource"]) for each in found] == [
        ("read", "topic:ord*"),
        ("write", "topic:ord*"),
    ]
    assert "User:*" in line.ok("acl", "list", "--resource", "topic:orders")
    assert line.run("acl", "delete").returncode == USAGE
    line.ok("acl", "delete", "--user", "dora", "--operation", "write", "--yes")
    assert "would delete: allow User:dora read" in line.ok(
        "acl", "delete", "--user", "dora", "--dry-run"
    )
    line.ok("acl", "delete", "--user", "dora", "--yes")
    assert "orders" not in line.ok("topic", "list", **login)
    assert line.run("acl", "delete", "--user", "dora", "--yes").returncode == NOT_FOUND


def test_the_name_of_a_user_can_have_a_colon(line: Users) -> None:
    create_user(line, "svc:carl")
    line.ok("topic", "create", "colon")
    login = {"user": "svc:carl", "password": "p"}
    line.ok("acl", "create", "svc:carl", "read", "topic:colon", "--from", "0:0:0:0:0:0:0:1")
    assert "colon" not in line.ok("topic", "list", **login)
    shown = line.ok("acl", "create", "svc:carl", "read", "topic:colon")
    assert shown == "created: allow User:svc:carl read topic:colon\n"
    assert "colon" in line.ok("topic", "list", **login)
    assert "::1" in line.ok("acl", "list", "--user", "svc:carl")
    line.ok("acl", "delete", "--user", "User:svc:carl", "--yes")
    assert "colon" not in line.ok("topic", "list", **login)


@pytest.mark.parametrize(
    "arguments",
    [
        ("dora", "read", "orders"),
        ("dora", "read", "table:orders"),
        ("dora", "read", "topic:"),
        ("dora", "look", "topic:orders"),
        ("User:", "read", "topic:orders"),
        ("dora", "read", "topic:orders", "--from", "10.0.0.0/8"),
        ("dora", "read", "topic:orders", "--from", "localhost"),
    ],
)
def test_an_invalid_rule_is_a_usage_error(line: Users, arguments: tuple[str, ...]) -> None:
    assert line.run("acl", "create", *arguments).returncode == USAGE


def test_a_broker_without_access_control_says_in_a_hint_what_to_do(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    open_line = CommandLine(broker.bootstrap, tmp_path)
    for arguments in (("list",), ("create", "ann", "read", "topic:t")):
        done = open_line.run("acl", *arguments)
        error, hint = done.stderr.splitlines()
        assert error.endswith(": No Authorizer is configured on the broker.")
        assert hint == "hint: Name a super user: [security] super_users in tidemill.toml."
        assert done.returncode == FAILURE


def test_without_rights_nothing_is_changed(line: Users) -> None:
    create_user(line, "eve")
    login = {"user": "eve", "password": "p"}
    for command in (
        ("user", "list"),
        ("acl", "list"),
        ("acl", "create", "eve", "all", "cluster"),
    ):
        done = line.run(*command, **login)
        assert (done.returncode, "not allowed" in done.stderr) == (FAILURE, True), command


def test_a_user_for_a_source_has_its_rules_and_no_more(line: Users) -> None:
    shown = create_user(line, "cap", "--for", "source", "--name", "shop", "--write", "shop.*")
    assert "created: allow User:cap write topic:shop.*" in shown
    for operation, resource, expected in (
        ("write", "topic:tidemill.source.shop", "allowed"),
        ("write", "transactional-id:tidemill-source-shop", "allowed"),
        ("write", "topic:tidemill.source.other", "denied"),
        ("read", "topic:shop.orders", "denied"),
        ("alter", "cluster", "denied"),
    ):
        assert line.ok("acl", "explain", "cap", operation, resource).startswith(expected), resource
    assert (
        line.run("user", "create", "x", "--for", "source", "--password-file", "-").returncode
        == USAGE
    )


# --- permissions of AMQP -------------------------------------------------------------------------


def test_a_user_of_pika_has_the_permissions_that_are_set(
    line: Users, secured: BrokerProcess, tmp_path: Path
) -> None:
    create_user(line, "mq")
    at = f"127.0.0.1:{secured.amqp_port}"
    admin = CommandLine(secured.bootstrap, tmp_path)
    admin.env["TIDEMILL_AMQP_URL"] = f"amqp://{ADMIN}:{PASSWORD}@{at}/"
    login = pika.URLParameters(f"amqp://mq:p@{at}/")
    with contextlib.closing(pika.BlockingConnection(login)) as connection:

        def code(call: Callable[[BlockingChannel], object]) -> int:
            channel = connection.channel()
            try:
                call(channel)
            except pika.exceptions.ChannelClosedByBroker as error:
                return int(error.reply_code)
            channel.close()
            return 0

        assert code(lambda channel: channel.queue_declare("mine")) == 403
        admin.ok(
            *("permission", "set", "mq", "--configure", "^mine$", "--read", "^mine$"),
            *("--write", "^amq[.]default$" if find_spec("re2") else "^amq\\.default$"),
        )
        assert code(lambda channel: channel.queue_declare("mine")) == 0
        assert code(lambda channel: channel.queue_declare("other")) == 403
        assert code(lambda channel: publish(channel, "")) == 0
        assert code(lambda channel: publish(channel, "amq.topic")) == 403
        assert code(lambda channel: channel.basic_get("mine", auto_ack=True)) == 0
        assert code(lambda channel: channel.queue_bind("mine", "amq.topic")) == 403
        assert code(lambda channel: channel.queue_declare("mine", passive=True)) == 0
        (shown,) = admin.json("permission", "list")
        assert (shown["user"], shown["configure"]) == ("mq", "^mine$")
        admin.env["TIDEMILL_AMQP_URL"] = f"amqp://mq:p@{at}/"
        refused = admin.run("permission", "set", "mq", "--configure", ".*")
        assert (refused.returncode, "not allowed" in refused.stderr) == (FAILURE, True)
        admin.env["TIDEMILL_AMQP_URL"] = f"amqp://{ADMIN}:{PASSWORD}@{at}/"
        invalid = admin.run("permission", "set", "mq", "--configure", "(")
        assert (invalid.returncode, "regular expression" in invalid.stderr) == (FAILURE, True)
        admin.ok("permission", "delete", "mq", "--yes")
        assert code(lambda channel: channel.basic_get("mine", auto_ack=True)) == 403


def test_a_publisher_of_amqp_above_its_quota_waits(line: Users, secured: BrokerProcess) -> None:
    line.ok("quota", "set", "--user", ADMIN, "--produce", "4000")
    try:
        at = f"127.0.0.1:{secured.amqp_port}"
        login = pika.URLParameters(f"amqp://{ADMIN}:{PASSWORD}@{at}/")
        with contextlib.closing(pika.BlockingConnection(login)) as connection:
            channel = connection.channel()
            channel.queue_declare("slow")
            channel.confirm_delivery()
            began = time.monotonic()
            for _ in range(3):
                channel.basic_publish("", "slow", b"x" * 2000)
            channel.queue_declare("slow", passive=True)
            assert time.monotonic() - began >= 0.4
    finally:
        line.ok("quota", "delete", "--user", ADMIN, "--yes")


def publish(channel: BlockingChannel, exchange: str) -> None:
    channel.confirm_delivery()
    channel.basic_publish(exchange, "mine", b"hello")


# --- quotas --------------------------------------------------------------------------------------


def test_quotas_are_set_listed_and_deleted(line: Users) -> None:
    assert line.ok("quota", "set", "--user", "ann", "--client-id", "*", "--produce", "1e6") == (
        "set producer_byte_rate of user ann, client * to 1e+06\n"
    )
    line.ok("quota", "set", "--ip", "10.9.9.9", "--connections", "5")
    found = json.loads(line.ok("quota", "list", "--json"))
    assert {"entity": {"user": "ann", "client-id": "*"}, "quotas": {"producer_byte_rate": 1e6}} in (
        found
    )
    assert "address 10.9.9.9" in line.ok("quota", "list")
    line.ok("quota", "delete", "--ip", "10.9.9.9", "--yes")
    line.ok("quota", "delete", "--user", "ann", "--client-id", "*", "--yes")
    assert json.loads(line.ok("quota", "list", "--json")) == []
    assert line.run("quota", "delete", "--user", "ann", "--yes").returncode == NOT_FOUND
    for arguments in (
        ("set", "--produce", "1"),
        ("set", "--user", "ann"),
        ("set", "--user", "ann", "--ip", "10.9.9.9", "--produce", "1"),
    ):
        assert line.run("quota", *arguments).returncode == USAGE, arguments
    negative = line.run("quota", "set", "--user", "ann", "--produce", "-1")
    assert (negative.returncode, "above 0" in negative.stderr) == (FAILURE, True)


def test_rules_are_granted_to_a_user_of_a_worker(line: Users) -> None:
    shown = line.ok("acl", "grant", "worker/gateway", "--for", "gateway", "--read", "web.*")
    assert "created: allow User:worker/gateway read topic:web.*" in shown
    assert line.ok("acl", "explain", "worker/gateway", "read", "topic:web.a").startswith("allowed")
    assert line.run("acl", "grant", "worker/gateway").returncode == USAGE
    line.ok("acl", "delete", "--user", "worker/gateway", "--yes")


def test_without_a_super_user_rules_are_refused_with_a_hint(tidemill: CommandLine) -> None:
    done = tidemill.run("acl", "list")
    assert done.returncode == FAILURE
    assert "super_users" in done.stderr
