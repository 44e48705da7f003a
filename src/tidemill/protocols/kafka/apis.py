"""The registry of Kafka APIs: key -> name, versions, handler. Only these are advertised.

How to write a handler
======================

Put it into a module of ``tidemill.protocols.kafka.handlers`` (the server imports all modules
there) and register it with the key of its API::

    from tidemill.protocols.kafka.apis import RequestContext, Tree, handles
    from tidemill.protocols.kafka.error_codes import error_code, error_message

    @handles(42)  # DeleteGroups; VERSIONS below has its name and versions
    async def handle_delete_groups(ctx: RequestContext, request: Any) -> Tree:
        results = []
        for group_id in request.groups_names:
            error = await outcome(ctx.door.groups.delete(group_id))
            results.append({"group_id": group_id, "error_code": error_code(error, group=True)})
        return {"results": results}

- ``request`` is a ``codec.reader.Message`` of version ``ctx.api_version``. Its fields have kio's
  names (``kio.schema.<api>.v<N>.request``) and plain values: ints (times in milliseconds), str,
  bytes, tuples, bool, UUID, None. The UUID of zeros is None. Read a field that only some versions
  have with ``field(request, "name", default)``.
- Return a dict with **kio's field names of the response** (``throttle_time``, not
  ``throttle_time_ms``), with lists of dicts inside. Values are plain as above; error codes are the
  numbers that ``error_code()`` returns. The encoder leaves out fields that the version does not
  have, so write the tree once for all versions. A field that is missing in the tree gets the
  protocol's default: 0, "", -1 if the schema says so, an empty list, null for nullable strings. A
  key that no version has raises ``UnknownFieldError``.
- Return ``bytes``, or a list of buffers, for a body that is encoded already. The buffers are sent
  one after the other and not copied. Return None to send no response (only Produce with acks=0).
- A handler is a ``def`` or an ``async def``. What a plain function returns is sent immediately,
  without a task. Never block.
- No step may take longer than a few milliseconds, however many elements a request has or an answer
  gets. Make the elements with ``Each(function, items)``, and those for partitions by topic with
  ``each_partition(topics, function)``, if that needs no ``await``, else with
  ``await ctx.turns.each(function, items)``; a loop of another shape awaits
  ``ctx.turns.pause_if_due()``. ``tests/protocols/kafka/test_bounds.py`` measures every API.
- An array of thousands whose elements are the same in many answers, or have only numbers, can be
  ``Encoded``: ``encode_element`` and ``element_packer`` make its parts.
- A ``TidemillError`` that escapes from a handler closes the connection with a log line. Turn every
  error that the protocol has a code for into that code, in the place that the response has for it.
  ``@handles(key, refused=error_fields)`` does so for errors of the whole request.
- ``@handles(key, cancellable=True)``: the request only reads, and may be cancelled when the client
  leaves or the broker stops (long polls).
- The requests of one connection run one after the other, except Produce: a request starts when the
  response to the one before is sent.

This module knows no handler and does no I/O.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from tidemill.errors import TidemillError
from tidemill.net.errors import ClientGoneError
from tidemill.net.response_budget import ResponseBudget
from tidemill.net.turns import Turns
from tidemill.net.work import Work
from tidemill.parts import Part
from tidemill.protocols.kafka.fetch_sessions import FetchSessions
from tidemill.protocols.kafka.share_sessions import ShareSessions

if TYPE_CHECKING:
    from tidemill.engine.door import Door
    from tidemill.protocols.kafka.node import Node
    from tidemill.protocols.kafka.sasl import Sasl

S = TypeVar("S")
T = TypeVar("T")
H = TypeVar("H", bound=Callable[..., Any])

VERSIONS: dict[int, tuple[str, int, int]] = {
    # The broker refuses Produce 0 to 2, but advertises them: librdkafka 2.0 and older turns
    # compression off without a word if the range does not start at 0 (KAFKA-18659).
    0: ("Produce", 0, 13),
    1: ("Fetch", 4, 18),
    2: ("ListOffsets", 1, 11),
    3: ("Metadata", 0, 13),
    8: ("OffsetCommit", 2, 10),
    9: ("OffsetFetch", 1, 10),
    10: ("FindCoordinator", 0, 6),
    11: ("JoinGroup", 0, 9),
    12: ("Heartbeat", 0, 4),
    13: ("LeaveGroup", 0, 5),
    14: ("SyncGroup", 0, 5),
    15: ("DescribeGroups", 0, 6),
    16: ("ListGroups", 0, 5),
    17: ("SaslHandshake", 0, 1),
    18: ("ApiVersions", 0, 4),
    19: ("CreateTopics", 2, 7),
    20: ("DeleteTopics", 1, 6),
    21: ("DeleteRecords", 0, 2),
    22: ("InitProducerId", 0, 5),
    23: ("OffsetForLeaderEpoch", 2, 4),
    24: ("AddPartitionsToTxn", 0, 5),
    25: ("AddOffsetsToTxn", 0, 4),
    26: ("EndTxn", 0, 5),
    27: ("WriteTxnMarkers", 1, 2),
    28: ("TxnOffsetCommit", 0, 5),
    29: ("DescribeAcls", 1, 3),
    30: ("CreateAcls", 1, 3),
    31: ("DeleteAcls", 1, 3),
    32: ("DescribeConfigs", 1, 4),
    33: ("AlterConfigs", 0, 2),
    34: ("AlterReplicaLogDirs", 1, 2),
    35: ("DescribeLogDirs", 1, 5),
    36: ("SaslAuthenticate", 0, 2),
    37: ("CreatePartitions", 0, 3),
    42: ("DeleteGroups", 0, 2),
    43: ("ElectLeaders", 0, 2),
    44: ("IncrementalAlterConfigs", 0, 1),
    45: ("AlterPartitionReassignments", 0, 1),
    46: ("ListPartitionReassignments", 0, 0),
    47: ("OffsetDelete", 0, 0),
    48: ("DescribeClientQuotas", 0, 1),
    49: ("AlterClientQuotas", 0, 1),
    50: ("DescribeUserScramCredentials", 0, 0),
    51: ("AlterUserScramCredentials", 0, 0),
    55: ("DescribeQuorum", 0, 2),
    57: ("UpdateFeatures", 0, 2),
    60: ("DescribeCluster", 0, 2),
    61: ("DescribeProducers", 0, 0),
    65: ("DescribeTransactions", 0, 0),
    66: ("ListTransactions", 0, 2),
    68: ("ConsumerGroupHeartbeat", 0, 1),
    69: ("ConsumerGroupDescribe", 0, 1),
    74: ("ListConfigResources", 0, 1),
    75: ("DescribeTopicPartitions", 0, 0),
    76: ("ShareGroupHeartbeat", 1, 1),
    77: ("ShareGroupDescribe", 1, 1),
    78: ("ShareFetch", 1, 2),
    79: ("ShareAcknowledge", 1, 2),
    90: ("DescribeShareGroupOffsets", 0, 1),
    91: ("AlterShareGroupOffsets", 0, 0),
    92: ("DeleteShareGroupOffsets", 0, 0),
}
"""API key -> (name, oldest version, newest version). The handler covers the whole range."""

PARKED = frozenset({11, 14})
"""JoinGroup and SyncGroup, which may wait minutes for other members. A server that stops closes
their connections immediately; the members join again when it is back."""

URGENT = frozenset({12, 18, 68, 76})
"""The heartbeats of all kinds of groups and ApiVersions, which start before other requests: a late
heartbeat costs a member its place, and a late ApiVersions fails a new connection."""


def is_urgent(request: memoryview) -> bool:
    """Return whether a request, without its length, starts before others."""
    return int.from_bytes(request[:2], "big") in URGENT


Tree: TypeAlias = dict[str, Any]
"""A response: kio's field names -> plain values."""


class Each(Generic[S, T]):
    """An array of a response whose elements are made while they are encoded.

    So a large response takes neither the memory of all its trees nor the event loop for as long as
    it takes to make them: the session encodes in slices. ``function`` must not wait.
    """

    __slots__ = ("_function", "_items")

    def __init__(self, function: Callable[[S], T], items: Collection[S]) -> None:
        self._function = function
        self._items = items

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[T]:
        return map(self._function, self._items)


Reply: TypeAlias = Tree | bytes | list[Part] | None


@dataclass(slots=True)
class Later:
    """A reply that a callback completes, without a task.

    Attributes:
        subscribe: takes a function, which it calls once on the event loop with the result.
        reply: makes the reply from the result.
    """

    subscribe: Callable[[Callable[[Any], None]], None]
    reply: Callable[[Any], Reply]


@dataclass(slots=True)
class ConnectionState:
    """The data that handlers may keep for the life of a connection."""

    client_host: str
    budget: ResponseBudget
    """Memory for the response in the making."""
    software: str = ""
    """Name and version from the client's ApiVersions request (KIP-511), or empty."""
    fetch_sessions: FetchSessions = dataclass_field(default_factory=FetchSessions)
    share_sessions: ShareSessions = dataclass_field(default_factory=ShareSessions)
    """Those of all connections."""
    on_close: dict[object, Callable[[], None]] = dataclass_field(default_factory=dict)
    """Functions that are called when the connection closes, by a key of the caller's choice."""
    turns: Work = dataclass_field(default_factory=lambda: Work(Turns()))
    """Shares the event loop between all connections."""
    stopping: bool = False
    """Whether the server is stopping. A long poll that it cancels responds with what it has."""

    sends_files: bool = False
    """Whether ranges of files can be parts of a response."""

    sasl: Sasl | None = None
    """The login of the connection; None where none is needed."""

    throttle: Callable[[int], None] = lambda _ms: None
    """Start no more requests of this client for so many milliseconds (KIP-219)."""

    hold: Callable[[int, Callable[[], bool]], None] = lambda _ms, _must: None
    """Start no more requests of this client for so many milliseconds, as long as it must wait."""


@dataclass(slots=True)
class RequestContext:
    """The data that a handler has besides the request."""

    door: Door
    """The engine, for the principal of the connection."""
    node: Node
    """This broker, as clients see it."""
    api_key: int
    api_version: int
    correlation_id: int
    client_id: str
    """Empty if the client gave none."""
    connection: ConnectionState
    throttle_ms: int = 0
    """How long the client is asked to wait before its next request, in milliseconds (KIP-219)."""
    exclusive: bool = False
    """Whether no other request of the connection may start before this one is answered, though its
    kind is pipelined. A handler sets it before its first wait."""

    @property
    def turns(self) -> Work:
        """Pauses work that takes long, so that other requests can run."""
        return self.connection.turns

    @property
    def client_host(self) -> str:
        """The client's address without the port."""
        return self.connection.client_host


Handler: TypeAlias = Callable[[RequestContext, Any], Reply | Later | Awaitable[Reply]]
Decoder: TypeAlias = Callable[[memoryview, int, int], Any]
"""(frame, position of the body, version) -> the request."""


@dataclass(frozen=True, slots=True)
class Api:
    """One registered API."""

    key: int
    name: str
    min_version: int
    max_version: int
    handler: Handler
    cancellable: bool = False
    pipelined: bool = False
    """Whether it may start while earlier requests of its kind are unanswered (Produce)."""
    decode: Decoder | None = dataclass_field(default=None)
    """A decoder written by hand; None: the codec's."""
    is_wide: Callable[[Any], bool] = dataclass_field(default=lambda _: False)
    """Whether such a request has so many elements that its handler makes pauses."""

    @property
    def may_wait(self) -> bool:
        """Whether its answer may take minutes, while the broker waits for records or members."""
        return self.cancellable or self.key in PARKED


REGISTRY: dict[int, Api] = {}


def handles(
    api_key: int,
    *,
    cancellable: bool = False,
    pipelined: bool = False,
    decode: Decoder | None = None,
    is_wide: Callable[[Any], bool] = lambda _: False,
    refused: Callable[[TidemillError], Tree] | None = None,
) -> Callable[[H], H]:
    """Register the decorated function as the handler of ``api_key``.

    Args:
        refused: returns the response for an error that the handler raises; None: it has none.

    Raises:
        ValueError: the key has a handler already, or no line in ``VERSIONS``.
    """

    def register(handler: H) -> H:
        if api_key in REGISTRY:
            raise ValueError(f"API {api_key} has two handlers")
        if api_key not in VERSIONS:
            raise ValueError(f"API {api_key} has no line in VERSIONS")
        name, oldest, newest = VERSIONS[api_key]
        answering = handler if refused is None else _refusing(handler, refused)
        REGISTRY[api_key] = Api(
            api_key, name, oldest, newest, answering, cancellable, pipelined, decode, is_wide
        )
        return handler

    return register


def _refusing(handler: Callable[..., Any], refused: Callable[[TidemillError], Tree]) -> Handler:
    async def answer(ctx: RequestContext, request: Any) -> Reply:
        try:
            given = handler(ctx, request)
            reply: Reply = await given if isinstance(given, Awaitable) else given
        except ClientGoneError:
            raise  # no one waits for a response
        except TidemillError as error:
            return refused(error)
        return reply

    return answer


def load_handlers() -> Mapping[int, Api]:
    """Import every module of ``tidemill.protocols.kafka.handlers``, and return the registry."""
    package = importlib.import_module("tidemill.protocols.kafka.handlers")
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        importlib.import_module(module.name)
    importlib.import_module("tidemill.kafka_codec.schema")  # the first request needs it
    return REGISTRY


# --- helpers for handlers ------------------------------------------------------------------------


def field(message: Any, name: str, default: T) -> T:
    """Return a field of a message that only some versions have, or ``default``."""
    value: T = getattr(message, name, default)
    return value


def each_partition(
    topics: Collection[Any],
    answer: Callable[[str, Any], Tree],
    *,
    key: str = "name",
    given: str = "partitions",
    answers: str = "partitions",
) -> Each[Any, Tree]:
    """Return the answer to partitions that a request names by topic.

    Args:
        answer: returns that to one of them, given its topic and what the request has for it.
        key: the field with the topic's name, in the request and in the response.
        given: the field with the topic's partitions in the request.
        answers: the field with theirs in the response.
    """

    def of_topic(topic: Any) -> Tree:
        name = getattr(topic, key)
        return {key: name, answers: Each(partial(answer, name), getattr(topic, given))}

    return Each(of_topic, topics)


def partition_codes(topics: Collection[Any], codes: Iterator[int]) -> Each[Any, Tree]:
    """Return the answer to partitions that a request names by topic: the next code for each."""
    return each_partition(
        topics,
        lambda _, part: {"partition_index": part.partition_index, "error_code": next(codes)},
    )


def grouped(pairs: Iterable[tuple[S, T]]) -> dict[S, list[T]]:
    """Return the second elements of pairs by the first ones, in order."""
    groups: dict[S, list[T]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups


async def outcome(work: Awaitable[object]) -> TidemillError | None:
    """Wait for ``work`` and return its ``TidemillError`` instead of raising it; None on success."""
    try:
        await work
    except TidemillError as error:
        return error
    return None


async def outcome_of_each(
    work: Awaitable[Sequence[TidemillError | None]], count: int
) -> Sequence[TidemillError | None]:
    """Wait for the errors of ``count`` elements. An error of all is that of each.

    It is for responses without an error field for the request.
    """
    try:
        return await work
    except ClientGoneError:
        raise  # no one waits for a response
    except TidemillError as error:
        return [error] * count
