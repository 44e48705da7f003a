"""A link without a socket: it collects what a session sends, and the error that closed it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tidemill.net.budget import Budget
from tidemill.net.response_budget import ResponseBudget
from tidemill.net.responses import ResponseMemory


class MemoryLink:
    """Has the methods of ``net.link.Link`` that sessions call.

    Attributes:
        sent: all bytes that were sent.
        error: what closed it.
        held: bytes of requests that are not answered.
        holds: why nothing is read at present.

    Args:
        budget: counts these bytes, too.
    """

    peer, host = "127.0.0.1:1", "127.0.0.1"
    local, is_encrypted = "127.0.0.1:5672", False
    sends_files = False
    is_congested = False
    is_partial = False
    is_held = False
    certificate = None
    last_receipt = 0.0
    received_bytes = queued_bytes = 0
    waits_for_broker = False

    def __init__(self, budget: Budget | None = None) -> None:
        self._budget = budget
        self.budget = ResponseBudget(ResponseMemory(1 << 30))
        self.is_closing = False
        self.is_finished = False
        self.error: BaseException | None = None
        self.held = 0
        self.holds: set[Any] = set()
        self.sent = bytearray()

    def write(self, buffers: Iterable[bytes]) -> None:
        self.sent += b"".join(buffers)

    def gather(self) -> None: ...

    def send(self) -> None: ...

    def limit_window(self) -> None: ...

    def hold_request(self, size: int) -> None:
        self.held += size
        if self._budget is not None:
            self._budget.add(self, size)

    def release_request(self, size: int) -> None:
        self.held -= size
        if self._budget is not None:
            self._budget.remove(size)

    def hold(self, why: Any) -> None:
        self.holds.add(why)

    def unhold(self, why: Any) -> None:
        self.holds.discard(why)

    def release(self, why: Any) -> None:
        self.holds.discard(why)

    def close_slow(self, held: int, rate: float) -> None:
        self.is_closing = True

    def finish(self) -> None:
        self.is_finished = True

    def close(self) -> None:
        self.is_closing = True

    def abort(self) -> None:
        self.is_closing = True

    def fail(self, error: BaseException, **about: object) -> None:
        self.is_closing, self.error = True, error
