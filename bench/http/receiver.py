"""A receiver of webhooks that does as little as possible, in a process of its own.

``python -m bench.http.receiver PORT`` answers each POST with 204. On the path ``/count`` it answers
with the number of posts so far and when the last one came, and on ``/times`` with the times and the
start of the last thousand. Times are monotonic, in seconds.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import deque
from typing import cast

import uvloop

_OK = b"HTTP/1.1 204 No Content\r\n\r\n"


class Receiver(asyncio.Protocol):
    """One connection: requests with Content-Length, one after the other."""

    count = 0
    times: deque[tuple[float, str]] = deque(maxlen=1000)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast(asyncio.Transport, transport)
        self._data = b""

    def data_received(self, data: bytes) -> None:
        """Answer each request that is complete."""
        self._data += data
        while (end := self._data.find(b"\r\n\r\n")) >= 0:
            head = self._data[:end].lower()
            if head.startswith(b"get "):
                self._data = self._data[end + 4 :]
                times = Receiver.times
                last = times[-1][0] if times else 0.0
                is_times = head.startswith(b"get /times")
                body = json.dumps(list(times) if is_times else [Receiver.count, last]).encode()
                self._transport.write(
                    b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
                )
                continue
            at = head.index(b"content-length:") + 15
            size = int(head[at : at + 12].split(b"\r\n")[0])
            if len(self._data) < end + 4 + size:
                return
            body, self._data = self._data[end + 4 : end + 4 + size], self._data[end + 4 + size :]
            Receiver.count += 1
            Receiver.times.append((time.monotonic(), body[:40].decode(errors="replace")))
            self._transport.write(_OK)


async def _serve(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Receiver, "127.0.0.1", port)
    print("ready", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_serve(int(sys.argv[1])))
