"""Send notices: to webhooks and Alertmanager by the sender of webhooks, as e-mail, to a command.

``Outgoing`` sends, and says what went wrong; when a notice is sent, and again, the machine decides.
Must not know: Kafka.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import smtplib
import ssl
import time
from email.message import EmailMessage
from typing import Any

import orjson
import structlog

from tidemill.connect.alerts.definition import ReceiverEntry
from tidemill.connect.alerts.machine import Due
from tidemill.connect.alerts.notices import (
    api_body,
    plain_text,
    status_of,
    subject,
    webhook_body,
)
from tidemill.connect.base.secrets import Secret, redact, resolve
from tidemill.connect.webhooks.definition import Webhook
from tidemill.connect.webhooks.messages import Message, Messages
from tidemill.connect.webhooks.retries import Verdict, judge
from tidemill.connect.webhooks.sender import Sender
from tidemill.errors import TidemillError
from tidemill.settings.section import host_and_port

log = structlog.get_logger("tidemill.alerts")

_API = "/api/v2/alerts"
_PORTS = {"starttls": 587, "tls": 465, "none": 25}
_SHOWN = 500
_LOOK_S = 0.01
_LAST_WORDS_S = 1.0
"""How long the end of what a command says is waited for once it has ended."""


class Outgoing:
    """Sends the notices of one receiver. Use it on one event loop, and ``close`` it."""

    def __init__(self, receiver: ReceiverEntry, external_url: str) -> None:
        self._receiver = receiver
        self._url = external_url
        self._http: tuple[Sender, Messages] | None = None

    def check(self) -> None:
        """Check that what the receiver refers to can be read. Each notice reads it again.

        Raises:
            SettingsError: a variable is not set, or a file can't be read.
        """
        resolve(self._receiver.model_dump())

    async def send(self, due: Due) -> str:
        """Send a notice. Return why it has failed; empty: the receiver has it."""
        try:
            match self._receiver.kind:
                case "email":
                    return await asyncio.to_thread(self._mail, due)
                case "command":
                    return await self._run(due)
            return await self._post(due)
        except TidemillError as error:  # a secret that is missing, for example
            return redact(str(error))[:_SHOWN]

    async def close(self) -> None:
        """Close connections."""
        if self._http is not None:
            await self._http[0].close()
            self._http = None

    # --- HTTP ---------------------------------------------------------------------------------

    async def _post(self, due: Due) -> str:
        receiver, now_ms = self._receiver, time.time_ns() // 1_000_000
        if self._http is None:
            made = _as_webhook(receiver)
            self._http = Sender(made), Messages(made, "alerts")
        sender, messages = self._http
        body: Any = (
            api_body(due, self._url, receiver.repeat_s, now_ms)
            if receiver.keeps_state
            else webhook_body(due, self._url)
        )
        message = Message(due.notice.id, orjson.dumps(body))
        answer = await sender.post(messages.headers(message, now_ms // 1000), message.body)
        if judge(answer.status) is Verdict.DELIVERED:
            return ""
        said = answer.error or " ".join(answer.body.split())
        return redact(f"status {answer.status}: {said}" if answer.status else said)[:_SHOWN]

    # --- e-mail -------------------------------------------------------------------------------

    def _mail(self, due: Due) -> str:
        """Send an e-mail, in a thread. Its Message-ID is the same at each attempt."""
        receiver = self._receiver
        try:
            host, port = host_and_port(receiver.smtp, _PORTS[receiver.smtp_tls])
            with self._smtp(host, port) as client:
                if receiver.username:
                    client.login(receiver.username, _plain(resolve(receiver.password)))
                refused = client.send_message(self._message(due))
        except (smtplib.SMTPException, OSError, ValueError) as error:
            return redact(f"{type(error).__name__}: {error}")[:_SHOWN]
        if refused:  # another attempt would be a second mail for the others
            log.warning(
                "alert.recipients_refused", receiver=receiver.name, recipients=sorted(refused)
            )
        return ""

    @contextlib.contextmanager
    def _smtp(self, host: str, port: int) -> Any:
        receiver = self._receiver
        context = None
        if receiver.smtp_tls != "none":
            context = ssl.create_default_context(cafile=receiver.ca_file)
        if receiver.smtp_tls == "tls":
            client: smtplib.SMTP = smtplib.SMTP_SSL(
                host, port, timeout=receiver.timeout_s, context=context
            )
        else:
            client = smtplib.SMTP(host, port, timeout=receiver.timeout_s)
        with client:
            if receiver.smtp_tls == "starttls":
                client.starttls(context=context)
            yield client

    def _message(self, due: Due) -> EmailMessage:
        message = EmailMessage()
        message["Subject"] = subject(due)
        message["From"] = self._receiver.sender
        message["To"] = ", ".join(self._receiver.to)
        message["Message-ID"] = f"<{due.notice.id}@tidemill>"
        message["Auto-Submitted"] = "auto-generated"  # RFC 3834: no answer by a machine
        message.set_content(plain_text(due, self._url), cte="quoted-printable")
        return message

    # --- commands -----------------------------------------------------------------------------

    async def _run(self, due: Due) -> str:
        """Run the command with the body of a webhook as its input."""
        receiver = self._receiver
        body = webhook_body(due, self._url)
        env = {
            **os.environ,
            "TIDEMILL_ALERT_ID": due.notice.id,
            "TIDEMILL_ALERT_STATUS": status_of(due.notice.alerts),
        }
        for own in ("TIDEMILL_CLIENT_CONFIG", "TIDEMILL_WORKER"):  # login and name of the worker
            env.pop(own, None)
        try:
            process = await asyncio.create_subprocess_exec(
                *[_plain(each) for each in resolve(receiver.command)],
                env=env,
                start_new_session=True,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
            )
        except (OSError, ValueError) as error:
            return f"can't run {receiver.command[0]}: {error}"[:_SHOWN]
        talking = asyncio.create_task(_talk(process, orjson.dumps(body)))
        try:
            async with asyncio.timeout(receiver.timeout_s):
                await _end_of(process)
        except TimeoutError:
            return f"the command did not end within {receiver.timeout_s:g} s"
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, 9)  # also what it has started, and left
            await _end_of(process)
            await asyncio.wait([talking], timeout=_LAST_WORDS_S)
            talking.cancel()
        if process.returncode == 0:
            return ""
        said = redact(talking.result()) if talking.done() else ""
        return f"exit code {process.returncode}: {said}"[:_SHOWN]


async def _end_of(process: asyncio.subprocess.Process) -> None:
    """Wait for the end of a process, and not for that of its pipes, which others can have."""
    while process.returncode is None:  # noqa: ASYNC110 - asyncio's wait() is for both
        await asyncio.sleep(_LOOK_S)


async def _talk(process: asyncio.subprocess.Process, data: bytes) -> str:
    """Write the input, and return the end of what the command says about errors."""
    pipe, errors = process.stdin, process.stderr
    assert pipe is not None
    assert errors is not None
    kept = b""

    async def write() -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            pipe.write(data)
            await pipe.drain()
        pipe.close()

    writing = asyncio.create_task(write())
    try:
        while chunk := await errors.read(4096):
            kept = (kept + chunk)[-_SHOWN:]
        await writing
    finally:
        writing.cancel()
    return " ".join(kept.decode(errors="replace").split())


def _as_webhook(receiver: ReceiverEntry) -> Webhook:
    """Return the receiver as the sender of webhooks knows one."""
    url = receiver.url
    if receiver.keeps_state and not url.startswith("${"):
        url = url.rstrip("/").removesuffix(_API) + _API
    return Webhook.model_validate(
        {
            "name": receiver.name,
            "url": url,
            "topic": "tidemill.alerts",
            "signed": bool(receiver.secrets),
            "secrets": receiver.secrets,
            "headers": receiver.headers,
            "allow_private": receiver.allow_private,
            "ca_file": receiver.ca_file,
            "proxy": receiver.proxy,
            "timeout_s": receiver.timeout_s,
        }
    )


def _plain(text: str) -> str:
    return text.reveal() if isinstance(text, Secret) else text
