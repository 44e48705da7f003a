"""Data that the sessions of a server share, and a request's place in the order of responses.

Plain data. Knows no connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
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


@dataclass(slots=True, eq=False)
class Slot:
    """A request that has started, and its place in the order of responses."""

    api: Api
    ctx: RequestContext
    size: int
    """The bytes that it counts for."""
    began: float
    """When it was started (``perf_counter``)."""
    requests: int = 1
    """The number of requests, if it is a run."""
    is_counted: bool = True
    is_waiting: bool = False
    """Whether a callback will complete it, without a task."""
    done: bool = False
    buffers: Sequence[Part] = ()
    task: asyncio.Task[list[Part]] | None = None
