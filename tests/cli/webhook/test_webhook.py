"""``tidemill webhook``: with the worker that the broker runs, and a receiver on loopback."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import CommandLine
from tests.support.broker_process import BrokerProcess
from tests.support.processes import poll_until
from tests.support.receiver import Receiver
from tidemill.connect.webhooks.signatures import Verifier, new_secret

pytestmark = pytest.mark.slow


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as made:
        yield made


@pytest.fixture
def make(tmp_path: Path, tidemill: CommandLine, receiver: Receiver) -> Callable[..., Path]:
    """Make a topic and the definition of a webhook for it."""

    def made(name: str, **more: object) -> Path:
        tidemill.ok("topic", "create", name, "--if-not-exists")
        secret = tmp_path / "secret"
        if not secret.exists():
            secret.write_text(new_secret().reveal())
        given = {
            "name": name,
            "topic": name,
            "url": receiver.url,
            "secrets": [f"${{file:{secret}}}"],
            "allow_private": True,
            "retries_s": [0.05],
            **more,
        }
        file = tmp_path / f"{name}.toml"
        file.write_text("".join(f"{key} = {json.dumps(each)}\n" for key, each in given.items()))
        return file

    return made


def send(tidemill: CommandLine, topic: str, *values: object) -> None:
    text = "".join(json.dumps(each) + "\n" for each in values)
    tidemill.ok("topic", "produce", topic, stdin=text)


def wait_for(tidemill: CommandLine, name: str, condition: Callable[[Any], object]) -> Any:
    found: dict[str, Any] = {}

    def is_so() -> bool:
        found.clear()
        found.update(tidemill.json("webhook", "describe", name))
        return bool(condition(found))

    try:
        poll_until(is_so, 60, "the webhook is as expected", interval=0.1)
    except TimeoutError:
        raise AssertionError(found) from None
    return found


def test_a_webhook_lives_in_the_brokers_worker(
    tidemill: CommandLine, receiver: Receiver, make: Callable[..., Path], tmp_path: Path
) -> None:
    file = make("shop")
    send(tidemill, "shop", {"number": 0})  # before it exists, and it starts at the end
    assert tidemill.ok("webhook", "create", str(file), "--dry-run") == "would create webhook shop\n"
    assert tidemill.ok("webhook", "create", str(file)) == "created webhook shop\n"
    send(tidemill, "shop", {"number": 1})
    found = wait_for(tidemill, "shop", lambda it: it.get("delivered") == 1)
    assert (found["state"], found["lag"]) == ("running", 0)
    assert [each.json for each in receiver.requests] == [{"number": 1}]
    shown = tidemill.ok("webhook", "describe", "shop")
    assert "circuit breaker" in shown
    assert receiver.requests[0].id in shown
    assert "running" in tidemill.ok("webhook", "list").splitlines()[1]
    tested = tidemill.json("webhook", "test", "shop")
    assert (tested["status"], receiver.requests[-1].json["type"]) == (200, "webhook.test")

    assert tidemill.ok("webhook", "pause", "shop") == "paused webhook shop\n"
    wait_for(tidemill, "shop", lambda it: it["state"] == "paused")
    send(tidemill, "shop", {"number": 2})
    assert tidemill.ok("webhook", "resume", "shop") == "resumed webhook shop\n"
    wait_for(tidemill, "shop", lambda it: it["state"] == "running" and it.get("lag") == 0)
    poll_until(lambda: receiver.requests[-1].json == {"number": 2}, 60, "the second arrives")

    new = tmp_path / "new"
    assert "2 secrets" in tidemill.ok("webhook", "rotate-secret", "shop", "--file", str(new))
    assert new.stat().st_mode & 0o777 == 0o600
    secrets = [(tmp_path / each).read_text().strip() for each in ("secret", "new")]
    wait_for(tidemill, "shop", lambda it: len(it["definition"]["secrets"]) == 2)

    def signs_with(*keys: str) -> bool:
        before = len(receiver.requests)
        tidemill.ok("webhook", "redeliver", "shop", "--partition", "0", "--offset", "1")
        poll_until(lambda: len(receiver.requests) > before, 60, "it is redelivered")
        last = receiver.requests[-1]
        assert last.json == {"number": 1}
        given = len(last.headers["webhook-signature"].split())
        for key in keys[:given]:
            Verifier([key]).verify(last.headers, last.body, time.time())
        return given == len(keys)

    poll_until(lambda: signs_with(*reversed(secrets)), 60, "both sign")
    assert "1 secret" in tidemill.ok("webhook", "rotate-secret", "shop", "--drop-old")
    poll_until(lambda: signs_with(secrets[1]), 60, "only the new one signs")


def test_what_failed_is_redelivered(
    tidemill: CommandLine, receiver: Receiver, make: Callable[..., Path]
) -> None:
    tidemill.ok("webhook", "create", str(make("failing")))
    receiver.reply = lambda request: 500
    assert tidemill.run("webhook", "test", "failing").returncode == 1
    send(tidemill, "failing", {"number": 1})
    found = wait_for(tidemill, "failing", lambda it: it.get("dead") == 1)
    assert found["last_error"] == "status 500"
    assert [each["outcome"] for each in found["last_attempts"][-2:]] == ["retry", "dead"]
    receiver.reply = lambda request: 200
    tidemill.ok("webhook", "redeliver", "failing", "--failed")
    wait_for(tidemill, "failing", lambda it: it.get("delivered") == 1)


def test_what_can_not_be_done_has_an_exit_code_and_a_hint(
    tidemill: CommandLine, make: Callable[..., Path], tmp_path: Path
) -> None:
    plain = make("plain", secrets=["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"])
    other = make("other", managed=False)
    tidemill.ok("webhook", "create", str(other))
    unsigned = make("unsigned", secrets=[], signed=False, managed=False)
    tidemill.ok("webhook", "create", str(unsigned))
    missing = make("missing", topic="not-there")
    circle = make("circle", topic="tidemill.webhook.other.attempts")
    attempts = "tidemill.webhook.circle.attempts"
    tidemill.ok("topic", "create", attempts)
    for arguments, code, text in (
        (("create", str(tmp_path / "nothing.toml")), 2, "can't read"),
        (("create", str(plain)), 2, "plain text"),
        (("create", str(make("typo", timout_s=3))), 2, "Did you mean timeout_s?"),
        (("create", str(make("bare", secrets=[]))), 2, "signed = false"),
        (("create", str(make("url", url="ftp://x/"))), 2, "invalid url"),
        (("create", str(make("filter", filter="a ="))), 2, "invalid expression"),
        (("create", str(missing)), 1, "topic not-there does not exist"),
        (("create", str(other)), 4, "--replace"),
        (("create", str(make("other", topic=attempts, managed=False)), "--replace"), 0, ""),
        (("create", str(circle)), 2, "would deliver what other webhooks write because of it"),
        (("describe", "nothing"), 3, "tidemill webhook list"),
        (("test", "nothing"), 3, "tidemill webhook list"),
        (("redeliver", "other"), 2, "one of --failed, --offset N and --from N"),
        (("redeliver", "other", "--offset", "1"), 2, "--partition"),
        (("redeliver", "other", "--failed", "--to", "3"), 2, "--to is for --from"),
        (("redeliver", "other", "--failed", "--partition", "0"), 2, "--partition is for"),
        (("redeliver", "other", "--partition", "7", "--offset", "0"), 3, "no such partition"),
        (("redeliver", "other", "--partition", "0", "--offset", "99999"), 3, "partition 0 has 0"),
        (("redeliver", "other", "--from", "1", "--to", "1"), 3, "no such record"),
        (("rotate-secret", "unsigned", "--drop-old"), 2, "has no secret"),
        (("rotate-secret", "other"), 2, "--to REFERENCE"),
        (("rotate-secret", "other", "--to", "whsec_abc"), 2, "plain text"),
        (("rotate-secret", "other", "--file", str(plain)), 2, "can't write"),
        (("delete", "other"), 2, "--yes"),
        (("run",), 2, "--all"),
        (("run", "nothing"), 3, "does not exist"),
    ):
        done = tidemill.run("webhook", *arguments)
        assert (done.returncode, text in done.stderr) == (code, True), (arguments, done.stderr)
    tidemill.ok("webhook", "create", str(make("other", managed=False)), "--replace")
    assert "other" in [each["name"] for each in tidemill.json("webhook", "list")]
    assert "would delete webhook other" in tidemill.ok("webhook", "delete", "other", "--dry-run")
    delete(tidemill, "other")


@pytest.mark.nightly
def test_a_running_webhook_is_deleted_when_its_session_has_ended(
    tidemill: CommandLine, make: Callable[..., Path]
) -> None:
    tidemill.ok("webhook", "create", str(make("running")))
    wait_for(tidemill, "running", lambda it: it["state"] == "running")
    send(tidemill, "running", {"number": 1})
    wait_for(tidemill, "running", lambda it: it.get("delivered") == 1)
    delete(tidemill, "running")
    topics = tidemill.ok("topic", "list", "--internal")
    assert "tidemill.webhook.running.attempts" not in topics


def delete(tidemill: CommandLine, name: str) -> None:
    assert tidemill.ok("webhook", "delete", name, "--yes") == f"deleted webhook {name}\n"
    assert f"tidemill-webhook-{name}" not in tidemill.ok("group", "list")
    assert name not in [each["name"] for each in tidemill.json("webhook", "list")]


def test_a_settings_file_declares_webhooks(tmp_path: Path, receiver: Receiver) -> None:
    file = tmp_path / "tidemill.toml"
    declared = (
        f'[[webhook]]\nname = "declared"\ntopic = "orders"\nurl = "{receiver.url}"\n'
        'start_at = "beginning"\nsigned = false\nallow_private = true\n'
    )
    file.write_text(declared)
    with BrokerProcess(tmp_path) as broker:
        tidemill = CommandLine(broker.bootstrap, tmp_path)
        tidemill.ok("topic", "create", "orders")
        send(tidemill, "orders", {"number": 1})
        poll_until(lambda: len(receiver.requests) == 1, 60, "it arrives", 0.1)
        done = tidemill.run("webhook", "pause", "declared")
        assert (done.returncode, "declared in" in done.stderr) == (4, True)
        file.write_text("")
        assert "restarted" in tidemill.ok(
            "worker", "restart", "webhooks", "--data-dir", str(broker.data_dir)
        )
        wait_for(tidemill, "declared", lambda it: it["state"] == "paused")
