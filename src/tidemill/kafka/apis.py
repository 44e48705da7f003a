"""The registry: API key -> name, versions, handler. Only what has a handler is advertised.

How to write a handler
======================

Put it into a module of ``tidemill.kafka.handlers`` (each module there is imported when the server
is made) and register it with its key::

    from tidemill.kafka.apis import RequestContext, Tree, handles
    from tidemill.kafka.errors import error_code, error_message

    @handles(42)  # DeleteGroups; name and versions stand in VERSIONS below
    async def handle_delete_groups(ctx: RequestContext, request: Any) -> Tree:
        results = []
        for group_id in request.groups_names:
            error = await outcome(ctx.broker.delete_group(group_id))
            results.append({"group_id": group_id, "error_code": error_code(error, group=True)})
        return {"results": results}

- ``request`` is kio's dataclass of ``ctx.api_version`` (``kio.schema.<api>.v<N>.request``); its
  structure is proven sound before. Fields that only some versions have: ``field(request, "name",
  default)``. Times are ``timedelta``: ``millis(request.session_timeout)`` gives milliseconds.
  kio reads the zero UUID as None.
- Return a dict with **kio's field names of the response** (``throttle_time``, not
  ``throttle_time_ms``), nested: lists of dicts. Plain values only: ints (times and timestamps in
  milliseconds, error codes as numbers from ``error_code()``), str, bytes, UUID, bool, None.
  Fields that this version does not have are left out by the encoder, so write the tree once for
  all versions; fields that are missing in the tree get the protocol's default (0, "", -1 where the
  schema says so, an empty list; null for nullable strings). A key that no version has is a mistake
  and raises ``UnknownFieldError``. See ``codec.encode_response``.
- A ready-encoded body may be returned as ``bytes`` or as ``Body`` (a list of buffers). None sends
  no response (Produce with acks=0 only).
- ``def`` or ``async def``: a plain function that returns a dict is answered at once, without a
  task. Never block.
- A ``TidemillError`` that escapes from a handler closes the connection with a log line: turn the
  errors that the protocol can say into codes, in the place where that response has its code.
- ``@handles(key, cancellable=True)``: the request only reads and may be cancelled when the client
  goes away or the broker stops (long polls).
- Requests of one connection run one after the other (Produce excepted): the next one starts when
  this one is answered.

This module knows no handler and no I/O.
"""

from __future__ import annotations

import datetime
import importlib
import pkgutil
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from tidemill.errors import TidemillError
from tidemill.kafka.session import FetchSessions

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker

VERSIONS: dict[int, tuple[str, int, int]] = {
    # Produce 0 to 2 are read only to be refused: librdkafka 2.0 and older turns compression off in
    # silence where the range does not start at 0 (KAFKA-18659).
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
    37: ("CreatePartitions", 0, 3),
    42: ("DeleteGroups", 0, 2),
    43: ("ElectLeaders", 0, 2),
    44: ("IncrementalAlterConfigs", 0, 1),
    45: ("AlterPartitionReassignments", 0, 1),
    46: ("ListPartitionReassignments", 0, 0),
    47: ("OffsetDelete", 0, 0),
    48: ("DescribeClientQuotas", 0, 1),
    50: ("DescribeUserScramCredentials", 0, 0),
    55: ("DescribeQuorum", 0, 2),
    60: ("DescribeCluster", 0, 2),
    61: ("DescribeProducers", 0, 0),
    65: ("DescribeTransactions", 0, 0),
    66: ("ListTransactions", 0, 2),
    74: ("ListConfigResources", 0, 1),
    75: ("DescribeTopicPartitions", 0, 0),
}
"""API key -> (name, oldest, newest version that works). A handler covers the whole range."""

PARKED = frozenset({11, 14})
"""JoinGroup and SyncGroup wait for other members, for minutes if need be: a server that stops
closes their connections at once, and the members join again when it is back."""

Tree: TypeAlias = dict[str, Any]
"""A response: kio's field names -> plain values."""

Buffer: TypeAlias = bytes | bytearray | memoryview


@dataclass(slots=True)
class Body:
    """An encoded response body in pieces that are sent one after the other, uncopied."""

    buffers: list[Buffer]


Reply: TypeAlias = Tree | bytes | Body | None


@dataclass(slots=True)
class ConnectionState:
    """What handlers may keep for the life of a connection."""

    peer: str
    """``host:port`` of the client, for log lines."""
    client_host: str
    software: str = ""
    """Name and version that the client gave in ApiVersions (KIP-511), or empty."""
    response_room: Callable[[], int] | None = None
    """Bytes that a response should not exceed now; None: no such bound."""
    loaded_bytes: int = 0
    """Of the response that is being made: counted at once, or others would use the same room."""
    count_loaded: Callable[[int], None] | None = None
    """Called with the change of ``loaded_bytes``."""
    fetch_sessions: FetchSessions = dataclass_field(default_factory=FetchSessions)
    stopping: bool = False
    """The server is stopping: a long poll that is cancelled answers with what it has."""

    def loaded(self, size: int) -> None:
        """The response that is being made holds ``size`` bytes; 0: it was sent."""
        change, self.loaded_bytes = size - self.loaded_bytes, size
        if change and self.count_loaded is not None:
            self.count_loaded(change)


@dataclass(slots=True)
class RequestContext:
    """What a handler knows besides the request."""

    broker: Broker
    api_key: int
    api_version: int
    correlation_id: int
    client_id: str
    """Empty where the client gave none."""
    connection: ConnectionState

    @property
    def client_host(self) -> str:
        """The client's address without the port."""
        return self.connection.client_host


Handler: TypeAlias = Callable[[RequestContext, Any], Reply | Awaitable[Reply]]
Decoder: TypeAlias = Callable[[memoryview, int, int], Any]
"""(frame, position of the body, version) -> request."""


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
    """May start while earlier requests of its kind are unanswered (Produce)."""
    decode: Decoder | None = dataclass_field(default=None)
    """A decoder written by hand; None: guard and kio."""


REGISTRY: dict[int, Api] = {}

H = TypeVar("H", bound=Callable[..., Any])


def handles(
    api_key: int,
    *,
    cancellable: bool = False,
    pipelined: bool = False,
    decode: Decoder | None = None,
) -> Callable[[H], H]:
    """Register the decorated function as the handler of ``api_key``.

    Raises:
        ValueError: the key has a handler, or no line in ``VERSIONS``.
    """

    def register(handler: H) -> H:
        if api_key in REGISTRY:
            raise ValueError(f"API {api_key} has two handlers")
        if api_key not in VERSIONS:
            raise ValueError(f"API {api_key} has no line in VERSIONS")
        name, oldest, newest = VERSIONS[api_key]
        REGISTRY[api_key] = Api(
            api_key, name, oldest, newest, handler, cancellable, pipelined, decode
        )
        return handler

    return register


def load_handlers() -> Mapping[int, Api]:
    """Import every module of ``tidemill.kafka.handlers``; returns the registry."""
    package = importlib.import_module("tidemill.kafka.handlers")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
    return REGISTRY


# --- helpers for handlers ------------------------------------------------------------------------

T = TypeVar("T")
_MILLISECOND = datetime.timedelta(milliseconds=1)


def field(entity: Any, name: str, default: T) -> T:
    """A field of a kio dataclass that only some versions have."""
    value: T = getattr(entity, name, default)
    return value


def millis(value: datetime.timedelta) -> int:
    """kio's ``timedelta`` as milliseconds."""
    return value // _MILLISECOND


async def outcome(work: Awaitable[object]) -> TidemillError | None:
    """Wait for ``work`` and return its typed error instead of raising it; its value is dropped."""
    try:
        await work
    except TidemillError as error:
        return error
    return None
