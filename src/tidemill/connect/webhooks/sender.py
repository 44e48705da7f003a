"""Send requests with aiohttp, and say what came of them. Must not know: Kafka, or when to retry."""

from __future__ import annotations

import os
import ssl
import time
from dataclasses import dataclass

import aiohttp

from tidemill.connect.base.secrets import Secret, redact, resolve
from tidemill.connect.webhooks.deadlines import Deadline, Deadlines
from tidemill.connect.webhooks.definition import Webhook
from tidemill.connect.webhooks.errors import DefinitionError
from tidemill.connect.webhooks.guard import guarded_sockets
from tidemill.connect.webhooks.names import Names

ANSWER_BYTES = 1024
"""So much of an answer is kept."""
_DRAIN_BYTES = 64 << 10
"""Up to so much of an answer is read, so that the connection can be used again."""


@dataclass(slots=True)  # a frozen one takes three times as long to make
class Answer:
    """The result of an attempt.

    Attributes:
        status: the status; None: there was no answer, and ``error`` says why.
        retry_after: the header, if there is one.
        body: the first KiB of the answer.
    """

    status: int | None
    error: str = ""
    retry_after: str | None = None
    body: str = ""
    duration_ms: int = 0


class Sender:
    """The connections to one endpoint. Use it on one event loop, and ``close`` it.

    Raises:
        DefinitionError: the authorities of ``ca_file`` can't be read.
        SettingsError: a reference can't be resolved.
    """

    def __init__(self, webhook: Webhook) -> None:
        self._url = _plain(resolve(webhook.url))
        self._proxy = _plain(resolve(webhook.proxy)) or None
        guard = guarded_sockets(allow_private=webhook.allow_private)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=webhook.concurrency,
                resolver=Names(),
                # With a proxy, connections go to its address, which the user chose.
                socket_factory=None if self._proxy else guard,
                ssl=_authorities(webhook),
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None),  # by the deadlines
            auto_decompress=False,
            trust_env=False,
        )
        self._deadlines = Deadlines(webhook.timeout_s)

    async def post(self, headers: dict[str, str], body: bytes) -> Answer:
        """Send a request, and return what came of it. It raises no error of the network."""
        started = time.monotonic()
        deadline = self._deadlines.begin()
        try:
            with deadline:
                async with self._session.post(
                    self._url, data=body, headers=headers, allow_redirects=False, proxy=self._proxy
                ) as answer:
                    status, wait = answer.status, answer.headers.get("Retry-After")
                    is_read = answer.content.at_eof()
                    text = "" if is_read else await _first_bytes(answer, deadline)
        except TimeoutError:
            return Answer(None, "no answer in time", duration_ms=_since(started))
        except (aiohttp.ClientError, OSError, ValueError) as error:
            text = _reason(error).replace(self._url, "the url")  # it can contain a secret
            said = redact(" ".join(text.split())) or type(error).__name__
            return Answer(None, said[:500], duration_ms=_since(started))
        finally:
            self._deadlines.end(deadline)
        problem = "redirects are not followed" if 300 <= status < 400 else ""
        return Answer(status, problem, wait, text, _since(started))

    async def close(self) -> None:
        """Close all connections."""
        self._deadlines.close()
        await self._session.close()


def _since(started: float) -> int:
    """Return the milliseconds since a time of the monotonic clock."""
    return int(1000 * (time.monotonic() - started))


def _reason(error: Exception) -> str:
    """Return why a request failed, in the words of the system where aiohttp has its own."""
    # One of a certificate is a ClientConnectorError, too, and has no os_error before aiohttp 3.13.
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        why = str(error.certificate_error)
        return f"can't connect to {error.host}:{error.port}: {why}"
    if not isinstance(error, aiohttp.ClientConnectorError):
        return str(error)
    cause = error.os_error
    failed = cause.errno is not None and str(cause.strerror).startswith("Connect call failed")
    why = os.strerror(cause.errno or 0) if failed else cause.strerror or str(cause)
    return f"can't connect to {error.host}:{error.port}: {why}"


async def _first_bytes(answer: aiohttp.ClientResponse, deadline: Deadline) -> str:
    """Read an answer as far as it is kept. A status counts, even if its body does not arrive."""
    kept, size = b"", 0
    try:
        with deadline:
            async for chunk in answer.content.iter_any():
                kept += chunk[: ANSWER_BYTES - len(kept)]
                size += len(chunk)
                if size > _DRAIN_BYTES:
                    answer.close()
                    break
    except (aiohttp.ClientError, OSError, TimeoutError):
        answer.close()
    return kept.decode(errors="replace")


def _authorities(webhook: Webhook) -> ssl.SSLContext | bool:
    if webhook.ca_file is None:
        return True
    try:
        return ssl.create_default_context(cafile=webhook.ca_file)
    except OSError as error:  # ssl.SSLError is one
        raise DefinitionError(
            f"ca_file {webhook.ca_file} can't be used: {error.strerror or error}",
            hint="It must contain certificates in PEM format.",
        ) from error


def _plain(text: str) -> str:
    return text.reveal() if isinstance(text, Secret) else text
