"""A receiver of StatsD's packets, as a program of the bench.

    python -m bench.direct.receiver KIND PORT SECONDS BUFFER

KIND is ``tidemill``: the listener of this project; or ``python``: a loop that receives, parses and
aggregates in Python as simply as possible. Prints "ready", and a JSON line with packets, drops,
lines, and its processor time, counted from the first packet.
"""

from __future__ import annotations

import json
import resource
import socket
import sys
import time
from collections import defaultdict

from tidemill.direct.statsd import Aggregator, Dialect, Options
from tidemill.direct.statsd.sockets import datagram_socket

_POLL_MS = 20


class Simple:
    """Counters and timers by name and tags, without checks of names, rates or limits."""

    def __init__(self) -> None:
        self.counters: dict[bytes, float] = defaultdict(float)
        self.timers: dict[bytes, list[float]] = defaultdict(list)
        self.lines = 0

    def receive(self, receiver: socket.socket) -> tuple[int, None]:
        """Receive for some time from a socket with a time-out; return the packets."""
        packets, end = 0, time.monotonic() + _POLL_MS / 1000
        while time.monotonic() < end:
            try:
                packet = receiver.recv(65536)
            except TimeoutError:
                break
            packets += 1
            self.take(packet)
        return packets, None

    def take(self, packet: bytes) -> None:
        """Parse and aggregate the lines of a packet."""
        for line in packet.split(b"\n"):
            name, _, rest = line.partition(b":")
            value, kind, *fields = rest.split(b"|")
            tags = next((each for each in fields if each.startswith(b"#")), b"")
            rate = next((float(each[1:]) for each in fields if each.startswith(b"@")), 1.0)
            key = name + b"|" + b",".join(sorted(tags[1:].split(b",")))
            if kind == b"c":
                self.counters[key] += float(value) / rate
            else:
                self.timers[key].append(float(value))
            self.lines += 1


def main(kind: str, port: int, seconds: float, buffer: int) -> None:
    """Receive for some seconds from the first packet on, and print what was received."""
    receiver = datagram_socket("udp", "127.0.0.1", port)
    receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    aggregator = Aggregator(Options(dialect=Dialect.dogstatsd))
    simple = Simple() if kind == "python" else None
    if simple is not None:
        receiver.settimeout(_POLL_MS / 1000)

    def receive() -> tuple[int, int | None]:
        if simple is not None:
            return simple.receive(receiver)
        return aggregator.table.receive(receiver.fileno(), _POLL_MS)

    print("ready", flush=True)
    packets, drops = 0, 0
    while not packets:
        packets, _ = receive()
    end, cpu = time.monotonic() + seconds, _cpu_s()
    while time.monotonic() < end:
        more, found = receive()
        packets, drops = packets + more, found or drops
    lines = simple.lines if simple is not None else aggregator.counts().lines
    spent = _cpu_s() - cpu
    print(json.dumps({"packets": packets, "drops": drops, "lines": lines, "cpu_s": spent}))


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]))
