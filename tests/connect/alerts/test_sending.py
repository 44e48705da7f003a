"""Notices as receivers get them: webhooks, Alertmanager, mails, commands."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from email import message_from_string, policy
from pathlib import Path
from typing import Any

import pytest
import standardwebhooks
from structlog.testing import capture_logs

from tests.support.ports import reserve_port
from tests.support.processes import ServerProcess, accepts_connections
from tests.support.receiver import Receiver
from tidemill.connect.alerts.definition import ReceiverEntry
from tidemill.connect.alerts.machine import Due
from tidemill.connect.alerts.model import Alert, Notice
from tidemill.connect.alerts.sending import Outgoing
from tidemill.errors import SettingsError

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


def due(state: Any = "firing", at_ms: int = 1_700_000_000_000, **labels: str) -> Due:
    given = {"alertname": "lag", "group": "billing", **labels}
    ended_ms = at_ms + 1000 if state == "resolved" else 0
    texts = {"summary": "billing is late: 61 s.\n.\nÄ"}
    alert = Alert("lag", state, given, 61.0, at_ms, at_ms, ended_ms, annotations=texts)
    notice = Notice("alert_1", at_ms, [alert], {})
    return Due("ops", "g1", {"alertname": "lag"}, notice)


async def send(receiver: dict[str, Any], notice: Due, external_url: str = "") -> str:
    entry = ReceiverEntry.model_validate({"name": "ops", **receiver})
    outgoing = Outgoing(entry, external_url)
    try:
        return await outgoing.send(notice)
    finally:
        await outgoing.close()


# --- HTTP ----------------------------------------------------------------------------------------


async def test_a_webhook_is_signed_and_has_headers_and_links(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SECRET", SECRET)
    monkeypatch.setenv("TOKEN", "Bearer x")
    with Receiver() as hook:
        receiver = {
            "url": hook.url,
            "allow_private": True,
            "secrets": ["${env:SECRET}"],
            "headers": {"Authorization": "${env:TOKEN}"},
        }
        assert await send(receiver, due(), "http://console/") == ""
        (request,) = hook.requests
        body = standardwebhooks.Webhook(SECRET).verify(request.body, request.headers)
    assert request.id == "alert_1"
    assert request.headers["authorization"] == "Bearer x"
    assert body["externalURL"] == "http://console/"
    assert body["alerts"][0]["generatorURL"].startswith("http://console/console/alerts?q=")
    assert body["alerts"][0]["startsAt"] == "2023-11-14T22:13:20.000Z"
    assert body["commonLabels"] == {"alertname": "lag", "group": "billing"}


async def test_what_went_wrong_is_said_without_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("URL", "http://127.0.0.1:1/secret-token")
    said = await send({"url": "${env:URL}", "allow_private": True}, due())
    assert "can't connect to 127.0.0.1:1" in said
    assert "secret-token" not in said
    assert "allow_private = true allows it" in await send({"url": "http://127.0.0.1:1/"}, due())
    said = await send({"url": "http://h/", "headers": {"a": "${env:NOT_SET}"}}, due())
    assert "the environment variable NOT_SET is not set" in said
    with Receiver(reply=lambda request: 500) as hook:
        said = await send({"url": hook.url, "allow_private": True}, due())
    assert said.startswith("status 500: answer answer")
    assert len(said) <= 500


async def test_alertmanagers_api_gets_alerts_that_end_by_themselves() -> None:
    with Receiver() as hook:
        base = hook.url.removesuffix("/hook")
        receiver = {"kind": "alertmanager", "url": base, "allow_private": True}
        before = time.time()
        assert await send(receiver, due()) == ""
        assert await send({**receiver, "url": f"{base}/api/v2/alerts"}, due("resolved")) == ""
        firing, resolved = (each.json for each in hook.requests)
    assert firing[0]["labels"] == {"alertname": "lag", "group": "billing"}
    ends = time.strptime(firing[0]["endsAt"][:19] + "UTC", "%Y-%m-%dT%H:%M:%S%Z")
    assert 235 < time.mktime(ends) - time.mktime(time.gmtime(before)) < 300
    assert resolved[0]["endsAt"] == "2023-11-14T22:13:21.000Z"


@pytest.mark.nightly
async def test_alertmanager_takes_our_alerts_and_sends_the_body_that_we_send(
    tmp_path: Path,
) -> None:
    program = shutil.which("prometheus-alertmanager")
    if program is None:
        pytest.skip("needs the program prometheus-alertmanager")
    port = reserve_port()
    with Receiver() as theirs, Receiver() as ours:
        config = tmp_path / "alertmanager.yml"
        config.write_text(
            "route: {receiver: hook, group_by: [alertname], group_wait: 0s, group_interval: 1s}\n"
            f"receivers: [{{name: hook, webhook_configs: [{{url: '{theirs.url}'}}]}}]\n"
        )
        command = [
            program,
            f"--config.file={config}",
            f"--storage.path={tmp_path}",
            f"--web.listen-address=127.0.0.1:{port}",
            "--cluster.listen-address=",
        ]
        process = ServerProcess("alertmanager", command, tmp_path / "log")
        try:
            process.wait_until(lambda: accepts_connections("127.0.0.1", port), 30)
            at_ms = time.time_ns() // 1_000_000 - 2000
            api = {"kind": "alertmanager", "url": f"http://127.0.0.1:{port}"}
            hook = {"url": ours.url, "allow_private": True}
            for state in ("firing", "resolved"):
                notice = due(state, at_ms)
                assert await send({**api, "allow_private": True}, notice, "http://c") == ""
                assert await send(hook, notice, "http://c") == ""
                deadline = time.monotonic() + 60
                wanted = 1 if state == "firing" else 2
                while True:
                    found = [r.json for r in theirs.requests]
                    if len(found) >= wanted and found[-1]["status"] == state:
                        break
                    assert time.monotonic() < deadline, found
                    await asyncio.sleep(0.05)
                mine, other = ours.requests[-1].json, found[-1]
                assert _shape(mine) == _shape(other)
                for key in ("version", "status", "groupLabels", "commonLabels"):
                    assert mine[key] == other[key], key
                (my_alert,), (other_alert,) = mine["alerts"], other["alerts"]
                for key in ("status", "labels", "annotations", "startsAt", "generatorURL"):
                    assert my_alert[key] == other_alert[key], key
                if state == "firing":
                    assert my_alert["endsAt"] == other_alert["endsAt"]
        finally:
            process.kill()


def _shape(value: Any) -> Any:
    """Return keys and types."""
    if isinstance(value, dict):
        return {key: _shape(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_shape(each) for each in value[:1]]
    return type(value).__name__


# --- e-mail --------------------------------------------------------------------------------------


class Mailbox:
    """A small SMTP server.

    Attributes:
        lines: what the client said, without mails.
        mails: the mails, as they came.
        refuse: beginnings of lines that are answered with 550.
    """

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.mails: list[str] = []
        self.refuse: list[str] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 test\r\n")
        while line := (await reader.readline()).decode().rstrip("\r\n"):
            self.lines.append(line)
            word = line[:4].upper()
            if line.upper().startswith(tuple(self.refuse)):
                writer.write(b"550 refused\r\n")
            elif word == "EHLO":
                writer.write(b"250-test\r\n250-AUTH PLAIN\r\n250 SIZE 1000000\r\n")
            elif word == "AUTH":
                writer.write(b"235 ok\r\n")
            elif word == "DATA":
                writer.write(b"354 go on\r\n")
                data = (await reader.readuntil(b"\r\n.\r\n")).decode()
                self.mails.append(data.removesuffix("\r\n.\r\n").replace("\r\n..", "\r\n."))
                writer.write(b"250 ok\r\n")
            elif word == "QUIT":
                writer.write(b"221 bye\r\n")
                break
            else:
                writer.write(b"250 ok\r\n")
        writer.close()


@asynccontextmanager
async def mailbox() -> AsyncIterator[tuple[Mailbox, dict[str, Any]]]:
    box = Mailbox()
    server = await asyncio.start_server(box.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    receiver = {
        "kind": "email",
        "smtp": f"127.0.0.1:{port}",
        "smtp_tls": "none",
        "sender": "alerts@example.com",
        "to": ["a@example.com", "b@example.com"],
    }
    async with server:
        yield box, receiver


async def test_a_mail_has_the_texts_and_a_stable_id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PASSWORD", "hunter2")
    async with mailbox() as (box, receiver):
        login = {"username": "alerts", "password": "${env:PASSWORD}"}
        assert await send({**receiver, **login}, due(zone="x\nBcc: evil@example.com")) == ""
    assert any(line.startswith("AUTH PLAIN") for line in box.lines)
    recipients = [line for line in box.lines if line.upper().startswith("RCPT")]
    assert [re.findall("<(.*?)>", line) for line in recipients] == [
        ["a@example.com"],
        ["b@example.com"],
    ]
    (mail,) = box.mails
    message = message_from_string(mail, policy=policy.default)
    assert message["Message-ID"] == "<alert_1@tidemill>"
    assert message["Subject"] == "[FIRING:1] lag"
    assert message["Auto-Submitted"] == "auto-generated"
    assert message["Bcc"] is None
    body = message.get_content()
    assert "lag: FIRING since 2023-11-14T22:13:20.000Z, value 61" in body
    assert "Ä" in body


async def test_a_label_with_a_line_end_makes_no_header() -> None:
    notice = due("resolved")
    evil = Due("ops", "g", {"a": "x\r\nBcc: evil@example.com"}, notice.notice)
    async with mailbox() as (box, receiver):
        assert await send(receiver, evil) == ""
    message = message_from_string(box.mails[0], policy=policy.default)
    assert message["Subject"] == "[RESOLVED] x Bcc: evil@example.com"
    assert message["Bcc"] is None


@pytest.mark.parametrize("end", ["\x0b", "\x0c", "\x1c", "\x85", "\u2028"])
async def test_a_label_that_unicode_breaks_into_lines_keeps_no_mail_back(end: str) -> None:
    odd = Due("ops", "g", {"a": f"x{end}y"}, due().notice)
    async with mailbox() as (box, receiver):
        assert await send(receiver, odd) == ""
    message = message_from_string(box.mails[0], policy=policy.default)
    assert message["Subject"] == "[FIRING:1] x y"


async def test_a_recipient_that_is_refused_makes_no_second_mail_for_the_others() -> None:
    async with mailbox() as (box, receiver):
        box.refuse = ["RCPT TO:<A@"]
        with capture_logs() as logs:
            assert await send(receiver, due()) == ""
    assert len(box.mails) == 1
    (event,) = logs
    assert event["event"] == "alert.recipients_refused"
    assert event["recipients"] == ["a@example.com"]


async def test_a_mail_that_is_refused_has_failed() -> None:
    async with mailbox() as (box, receiver):
        box.refuse = ["RCPT"]
        assert "SMTPRecipientsRefused" in await send(receiver, due())
        box.refuse = ["DATA"]
        assert "550" in await send(receiver, due())
    said = await send({**receiver, "smtp": "127.0.0.1:1"}, due())
    assert "Connection refused" in said
    assert "expected HOST:PORT" in await send({**receiver, "smtp": "http://h/"}, due())


# --- commands ------------------------------------------------------------------------------------


async def test_a_command_gets_the_body_as_its_input(tmp_path: Path) -> None:
    out = tmp_path / "out"
    code = (
        "import json, os, sys; body = json.load(sys.stdin); env = os.environ\n"
        "text = [env['TIDEMILL_ALERT_ID'], env['TIDEMILL_ALERT_STATUS'], body['version']]\n"
        f"open({str(out)!r}, 'w').write(json.dumps(text))"
    )
    receiver = {"kind": "command", "command": [sys.executable, "-c", code]}
    assert await send(receiver, due()) == ""
    assert json.loads(out.read_text()) == ["alert_1", "firing", "4"]


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        (["sh", "-c", "echo broken >&2; exit 3"], "exit code 3: broken"),
        (["/no/such/program"], "can't run /no/such/program"),
        (["true"], ""),  # it does not read its input
        (["sh", "-c", "kill -9 $$"], "exit code -9"),
        (["sh", "-c", "sleep 61 & exit 0"], ""),  # what it leaves has its pipes, and is ended
        (["sh", "-c", "sleep 61 & echo broken >&2; exit 3"], "exit code 3: broken"),
        (["sh", "-c", "yes x | head -c 1000000 >&2; exit 1"], "exit code 1"),
        (["sleep", "60"], "did not end within 0.2 s"),
        (["sh", "-c", "sleep 60 & exec sleep 60"], "did not end within 0.2 s"),
    ],
)
async def test_a_command_that_fails_says_why(command: list[str], problem: str) -> None:
    timeout_s = 0.2 if "sleep 60" in command[-1] or command[0] == "sleep" else 20
    big = due(
        "firing", 1_700_000_000_000, **{f"label{number}": "x" * 200 for number in range(1000)}
    )
    receiver = {"kind": "command", "command": command, "timeout_s": timeout_s}
    said = await send(receiver, big)
    assert problem in said
    assert bool(said) == bool(problem)
    assert len(said) <= 500


@pytest.mark.parametrize(
    "given",
    [
        {"url": "${env:NOT_SET_HERE}"},
        {"url": "https://ops.example", "headers": {"Authorization": "${env:NOT_SET_HERE}"}},
        {"kind": "command", "command": ["notify", "${env:NOT_SET_HERE}"]},
    ],
)
def test_a_receiver_whose_secret_is_missing_is_found_before_an_alert_fires(
    given: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    outgoing = Outgoing(ReceiverEntry.model_validate({"name": "ops", **given}), "")
    with pytest.raises(SettingsError, match="NOT_SET_HERE is not set"):
        outgoing.check()
    monkeypatch.setenv("NOT_SET_HERE", "https://ops.example")
    outgoing.check()
