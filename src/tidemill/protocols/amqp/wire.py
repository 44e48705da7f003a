"""A connection as its channels use it, and what all connections of a server share.

Plain data and signatures only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from tidemill.net.turns import Turns
from tidemill.parts import Part
from tidemill.protocols.amqp.accounts import Kept
from tidemill.protocols.amqp.connections import Connections
from tidemill.protocols.amqp.messages import PropertyReader, PropertyWriter
from tidemill.protocols.amqp.metrics import Tally
from tidemill.protocols.amqp.reply_to import Replies

if TYPE_CHECKING:
    from tidemill.engine.authorize import Access, Principal
    from tidemill.engine.door import Door, Queues, Security
    from tidemill.engine.queues.api import Owner
    from tidemill.net.listener import Listener
    from tidemill.protocols.amqp.alarm import Alarm
    from tidemill.protocols.amqp.users import Users


@dataclass(slots=True)
class Shared:
    """The parts of a server that all of its connections use."""

    door_for: Callable[[Principal, str], Door]
    """Returns the engine as a user at an address sees it."""
    listener: Listener
    alarm: Alarm
    users: Users
    max_message: int
    """Largest body of a message in bytes."""
    scratch: memoryview
    """Receive buffer."""
    consumer_timeout_ms: int = 0
    """How long a message can stay unsettled; 0: without a limit."""
    turns: Turns = field(default_factory=Turns)
    reader: PropertyReader = field(default_factory=PropertyReader)
    writer: PropertyWriter = field(default_factory=PropertyWriter)
    kept: Kept = field(default_factory=Kept)
    replies: Replies = field(default_factory=Replies)
    connections: Connections = field(default_factory=Connections)
    tally: Tally | None = None
    """Counts messages; None: they are not counted."""
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    """Methods that wait. The event loop has weak references only, so they are kept here."""


class Wire(Protocol):
    """A connection, as its channels use it."""

    @property
    def shared(self) -> Shared: ...

    @property
    def queues(self) -> Queues:
        """The engine's queues for the connection's user."""

    @property
    def security(self) -> Security:
        """The engine's permissions for the connection's user."""

    @property
    def access(self) -> Access:
        """Answers whether the connection's user may do something that only AMQP has."""

    @property
    def owner(self) -> Owner: ...

    @property
    def user(self) -> str: ...

    @property
    def consumers(self) -> int:
        """The number of its consumers."""

    @property
    def frame_max(self) -> int: ...

    @property
    def is_congested(self) -> bool:
        """Whether the client does not read, so that no delivery should be sent."""

    @property
    def cancel_notify(self) -> bool:
        """Whether the client understands basic.cancel from the broker."""

    def send(self, parts: Sequence[Part]) -> None:
        """Send encoded frames."""

    def method(self, channel: int, name: str, **arguments: object) -> None:
        """Encode and send a method."""

    def count_pending(self) -> None:
        """Compare what publishers have not written yet with the limits."""
