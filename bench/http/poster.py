"""Post to a server of HTTP as fast as it answers: ``python -m bench.http.poster PORT PATH ...``.

Arguments: port, path, connections, records of a body, seconds, and the body's form (``list``,
``broken``). Each connection sends its next request when the last one is answered. The requests are
bytes that are made once, so that the client costs little. It prints the posts per second and
percentiles of the time that one takes.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import cast

import uvloop

from bench.run import percentile


def body_of(records: int, form: str) -> bytes:
    """Return the body of a request: values of 100 bytes with keys."""
    if form == "broken":
        return b'{"records":[' + b'{"value":1},' * records
    each = [{"key": f"k{n}", "value": "x" * 100} for n in range(records)]
    return json.dumps({"records": each}).encode()


class _Connection(asyncio.Protocol):
    """Sends a request again and again, and notes how long each took."""

    def __init__(self, request: bytes, took: list[float], errors: list[bytes]) -> None:
        self._request, self._took, self._errors = request, took, errors
        self._data = b""
        self._began = 0.0
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._send()

    def _send(self) -> None:
        assert self._transport is not None
        self._began = time.perf_counter()
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._data += data
        head, end, body = self._data.partition(b"\r\n\r\n")
        if not end:
            return
        at = head.lower().index(b"content-length: ") + 16
        if len(body) < int(head[at:].split(b"\r\n", 1)[0]):
            return
        self._took.append(time.perf_counter() - self._began)
        if head[9:12] != b"200":
            self._errors.append(head[9:12])
        self._data = b""
        self._send()


async def _post(port: int, path: str, connections: int, records: int, s: float, form: str) -> None:
    body = body_of(records, form)
    request = (
        f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    ).encode() + body
    took: list[float] = []
    errors: list[bytes] = []
    loop = asyncio.get_running_loop()
    for _ in range(connections):
        await loop.create_connection(lambda: _Connection(request, took, errors), "127.0.0.1", port)
    await asyncio.sleep(s / 4)  # warm
    took.clear()
    began = time.perf_counter()
    await asyncio.sleep(s)
    found = {
        "posts/s": len(took) / (time.perf_counter() - began),
        "p50 ms": percentile(took, 50) * 1e3,
        "p99 ms": percentile(took, 99) * 1e3,
        "errors": len(errors),
    }
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    port, path, connections, records, seconds, form = sys.argv[1:]
    uvloop.run(_post(int(port), path, int(connections), int(records), float(seconds), form))
