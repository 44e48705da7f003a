"""The contract of a bridge. A bridge of one's own is one class in one file.

Must not know: a kind of bridge, who runs it.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, ClassVar

from tidemill import tracing
from tidemill.confluent.clients import Kafka
from tidemill.settings.section import Section


@dataclass(frozen=True, slots=True)
class Place:
    """The name, topic and cluster of a bridge.

    Attributes:
        name: the name of the bridge.
        topic: the topic that it writes or reads.
        partitions: of the topic, if the bridge creates it.
        kafka: the cluster.
    """

    name: str
    topic: str
    partitions: int
    kafka: Kafka

    @property
    def client(self) -> str:
        """The client id of its Kafka clients."""
        return f"tidemill-bridge-{self.name}"

    def span(self, messages: int | None = None) -> AbstractContextManager[tracing.Span]:
        """Make a span of one batch, with the number of its messages if it is known."""
        count = {} if messages is None else {"messaging__batch__message_count": messages}
        return tracing.span(f"bridge {self.name}", "producer", {}, **count)


@dataclass(slots=True)
class Counts:
    """Counts of a bridge since its start. All kinds have them.

    Attributes:
        received: messages from the side that gives them.
        delivered: messages that the other side has.
        lost: messages that are gone, for example because a buffer of the kernel was full.
        recovered: messages that were lost on the way and were sent again.
        refused: messages that are malformed, or above a limit.
        retried: attempts that were repeated.
    """

    received: int = 0
    delivered: int = 0
    lost: int = 0
    recovered: int = 0
    refused: int = 0
    retried: int = 0


class Bridge(abc.ABC):
    """A bridge of one kind. Each start creates another instance.

    Attributes:
        options_type: the section of its options. Its fields and their descriptions are the
            reference.
    """

    options_type: ClassVar[type[Section]]

    @abc.abstractmethod
    def __init__(self, place: Place, options: Any) -> None:
        """Create it, without opening anything.

        Args:
            options: an instance of ``options_type``, with secrets resolved.

        Raises:
            TidemillError: an option can't be used.
        """

    @abc.abstractmethod
    async def run(self, running: Callable[[], None]) -> None:
        """Work until the task is cancelled, and close everything then.

        What blocks must run in a thread: all bridges of a process share the event loop.

        Args:
            running: to be called when the bridge works.

        Raises:
            PermanentBridgeError: it can't work until the user changes something.
            TidemillError: it is to be started again after a pause.
        """

    @abc.abstractmethod
    def counts(self) -> Counts:
        """Return what was counted since the start."""

    def details(self) -> Mapping[str, Any]:
        """Return what the kind has to say beside that, as JSON values, for ``describe``."""
        return {}
