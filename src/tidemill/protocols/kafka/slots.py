"""Data that the sessions of a server share, and a request's place in the order of responses.

Plain data. Knows no connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tidemill.metrics.registry import Histogram
from tidemill.net.listener import Listener
from tidemill.net.turns import Turns
from tidemill.parts import Part
from tidemill.protocols.kafka.apis import Api, RequestContext
from tidemill.protocols.kafka.connection import BufferPool
from tidemill.protocols.kafka.share_sessions import ShareSessions

if TYPE_CHECKING:
    from tidemill.engine.engine import Engine
    from tidemill.protocols.kafka.node import Node


@dataclass(slots=True)
class Shared:
    """The parts of a server that all of its connections use."""

    engine: Engine
    node: Node
    apis: Mapping[int, Api]
    listener: Listener
    max_frame: int
    """Longest request in bytes."""
    pool: BufferPool
    seconds: Mapping[int, Histogram]
    """How long the requests of each API took."""
    scratch: memoryview
    """Receive buffer for small requests."""
    share_sessions: ShareSessions = field(default_factory=ShareSessions)
    turns: Turns = field(default_factory=Turns)
    """Decides when requests start, so that no client takes the event loop for itself."""
    tasks: set[asyncio.Task[list[Part]]] = field(default_factory=set)
    """Requests that wait. The event loop has weak references only, so they are kept here."""
    logins: set[asyncio.Task[None]] = field(default_factory=set)
    """Logins that wait, likewise."""


class Slot:
    """A request that has started, and its place in the order of responses.

    Args:
        size: the bytes that it counts for.
        began: when it was started (``perf_counter``).
        requests: the number of requests, if it is a run.
    """

    __slots__ = (
        *(
            "api",
            "began",
            "buffers",
            "ctx",
            "done",
            "is_counted",
            "is_waiting",
            "requests",
            "size",
            "task",
        ),
    )

    def __init__(
        self, api: Api, ctx: RequestContext, size: int, began: float, requests: int = 1
    ) -> None:
        self.api = api
        self.began = began
        self.ctx = ctx
        self.size = size
        self.requests = requests
        self.is_counted = True
        self.is_waiting = False
        """Whether a callback will complete it, without a task."""
        self.done = False
        self.buffers: list[Part] = []
        self.task: asyncio.Task[list[Part]] | None = None
