"""A link to a broker that takes its time, as one to a broker far away does.

Give its port to the broker as ``kafka.advertised_port``, so that clients stay on it. Knows nothing
of what passes.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass
class SlowLink:
    """Where clients connect, and what they reach.

    Attributes:
        port: where it listens.
        delay_s: how long what is sent takes, in each direction.
        target: the port of the broker; set it before a client comes.
    """

    port: int
    delay_s: float
    target: int = 0

    def serve(self, client: socket.socket) -> None:
        """Pass on what two sides send until one closes its connection."""
        with client, contextlib.suppress(OSError):
            broker = socket.create_connection(("127.0.0.1", self.target))
            with broker:
                back = threading.Thread(target=self._pass_on, args=(broker, client), daemon=True)
                back.start()
                self._pass_on(client, broker)
                back.join()

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                time.sleep(self.delay_s)
                target.sendall(data)
        for each in (source, target):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def slow_link(delay_s: float) -> Iterator[SlowLink]:
    """Run a link whose both directions take ``delay_s`` seconds."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        link = SlowLink(listening.getsockname()[1], delay_s)

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    client, _ = listening.accept()
                    threading.Thread(target=link.serve, args=(client,), daemon=True).start()

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield link
        listening.shutdown(socket.SHUT_RDWR)
        thread.join(60)
