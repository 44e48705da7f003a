"""Bridges to ZeroMQ: one publishes a topic to subscribers, the other writes messages to a topic.

What is published goes to an XPUB socket, which drops blocks for a slow subscriber. A ROUTER socket
answers what subscribers missed, from memory or from the log (``tidemill.direct.pubsub.blocks``). No
position is stored: a bridge that was away continues at the end of the log, and subscribers ask for
what they miss. Must not know: who subscribes.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import threading
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import accumulate, islice
from operator import itemgetter
from typing import Any, NamedTuple

from confluent_kafka import KafkaException, Message
from pydantic import Field

from tidemill.confluent.reading import Follower, headers_of
from tidemill.connect.direct.contract import Bridge, Counts, Place
from tidemill.connect.direct.errors import BridgeError, opening_failed
from tidemill.connect.direct.identity import Identity
from tidemill.connect.direct.waiting import to_its_end
from tidemill.connect.direct.zeromq_log import StoredBlocks, Wanted
from tidemill.direct.pubsub import CurveClient, CurveKeys, CurveServer, PubSubError
from tidemill.direct.pubsub.blocks import (
    DESCRIBE,
    NUMBER,
    READ_LAST,
    STATE_CHANNEL,
    Request,
    Row,
    channel_of,
    decode_head,
    decode_request,
    encode_block,
    encode_state,
)
from tidemill.direct.pubsub.curve import Curve
from tidemill.direct.pubsub.errors import FrameError
from tidemill.direct.pubsub.options import Options
from tidemill.direct.pubsub.zeromq import ZeroMqSocket, check_installed
from tidemill.settings.section import Section

_BLOCK_BYTES = 64 << 10
_BLOCK_RECORDS = 1000
_BLOCK_OVERHEAD = 300
_ANSWER_BYTES = 256 << 10
_ANSWER_BLOCKS = 500
_ANSWERS = 2
"""Answers that wait for a requester, and requests of it. An answer above that is left out."""
_LARGEST_REQUEST = 4096
"""Requests are smaller, but ZeroMQ's own greetings count, too."""
_STATE_S = 1.0
_LOOK_S = 1.0
_WAIT_S = 0.05


class CurveOptions(Section):
    """Keys of CURVE, each of 40 characters in Z85; without them, nothing is encrypted."""

    curve_public: str = Field("", description="Public key of the bridge.")
    curve_secret: str = Field("", description="Secret key of the bridge, as a reference.")
    curve_allowed: list[str] = Field([], description="Public keys of clients; default: all.")

    def curve(self, server: str = "") -> Curve | None:
        """Return the keys of a side that binds, or of one that knows its server.

        Raises:
            PubSubError: a key is invalid, or one is missing: without an error, nothing would be
                encrypted, and all would be admitted.
        """
        if not (self.curve_secret or self.curve_public or self.curve_allowed or server):
            return None
        keys = CurveKeys(self.curve_public.encode(), self.curve_secret.encode())
        if server:
            return CurveClient(keys, server.encode())
        return CurveServer(keys, frozenset(map(str.encode, self.curve_allowed)) or None)


class ZeroMqOptions(CurveOptions):
    """Options of a bridge that publishes a topic with ZeroMQ."""

    publish: str = Field(
        description="Where records are published, tcp://IP:PORT or ipc:///PATH. Its queues are "
        "bounded for each subscriber."
    )
    requests: str = Field(description="Where subscribers ask for what they miss, in the same form.")
    queue_size: int = Field(
        100,
        ge=1,
        le=1_000_000,
        description="Blocks of about 64 KiB that wait for a subscriber. Above it, the subscriber "
        "misses blocks, and asks for them.",
    )
    cache_bytes: int = Field(
        64 << 20, ge=0, le=1 << 34, description="Bytes of blocks that are answered from memory."
    )


class ZeroMqBridge(Bridge):
    """Publishes a topic, and answers requests from the log however old they are."""

    options_type = ZeroMqOptions

    def __init__(self, place: Place, options: ZeroMqOptions) -> None:
        check_installed()
        self._place = place
        self._options = options
        self._addresses = options.publish, options.requests
        self._curve = options.curve()
        self._counts = Counts()
        self._published: Published | None = None
        self._live: _Live | None = None
        self._answers: _Answers | None = None

    async def run(self, running: Callable[[], None]) -> None:
        """Publish what is written to the topic, until the task is cancelled."""
        identity, place = Identity(self._place), self._place
        found = await asyncio.to_thread(lambda: identity.described(identity.ask()))
        asked = [(place.topic, number) for number in found.partitions]
        ends = await asyncio.to_thread(place.kafka.end_offsets, place.client, asked, committed=True)
        session = int.from_bytes(hashlib.sha256(found.id.encode()).digest()[:8])
        self._published = published = Published(
            session, {number: end for (_, number), end in ends.items()}, self._options.cache_bytes
        )
        with contextlib.ExitStack() as opened:
            try:
                publish, requests = self._open(opened)
            except PubSubError as error:
                raise opening_failed(error) from error
            self._live = _Live(place, identity, found.id, published, publish, self._counts)
            self._answers = answers = _Answers(
                place, identity, found.id, published, requests, self._counts
            )
            running()
            await _in_threads(place.name, self._live.run, answers.run)

    def _open(self, opened: contextlib.ExitStack) -> tuple[ZeroMqSocket, ZeroMqSocket]:
        """Return the sockets of what is published and of requests."""
        live = Options(self._options.queue_size, curve=self._curve)
        answers = Options(_ANSWERS, max_message_bytes=_LARGEST_REQUEST, curve=self._curve)
        publish = ZeroMqSocket("XPUB", [self._addresses[0]], live, bind=True, drops=True)
        opened.callback(publish.close)
        requests = ZeroMqSocket("ROUTER", [self._addresses[1]], answers, bind=True)
        opened.callback(requests.close)
        self._addresses = publish.addresses[0], requests.addresses[0]
        return publish, requests

    def counts(self) -> Counts:
        """Return what was counted since the start."""
        return self._counts

    def details(self) -> Mapping[str, Any]:
        """Return the addresses, the subscriptions and the positions."""
        published, live = self._published, self._live
        if published is None or live is None:
            return {}
        return {
            "publish": self._addresses[0],
            "requests": self._addresses[1],
            "subscriptions": live.subscriptions,
            "session": f"{published.session:016x}",
            "ends": {str(number): end for number, end in published.ends.items()},
        }


async def _in_threads(name: str, *works: Callable[[threading.Event], None]) -> None:
    """Run works in threads until one ends or this is cancelled; then all of them have ended."""
    stop, loop = threading.Event(), asyncio.get_running_loop()
    with ThreadPoolExecutor(len(works), f"bridge-{name}") as threads:
        futures = [loop.run_in_executor(threads, each, stop) for each in works]
        try:
            await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stop.set()
            await to_its_end(asyncio.wait(futures))
        for each in futures:
            each.result()


class Published:
    """The end of what is published of each partition, and the last blocks, in memory.

    One thread adds, and another one reads.

    Args:
        session: that of the topic.
        ends: by partition, the offset behind its last record.
        most_bytes: bytes of blocks to keep.
    """

    def __init__(self, session: int, ends: dict[int, int], most_bytes: int) -> None:
        self.session = session
        self.ends = ends
        self._most_bytes = most_bytes
        self._bytes = 0
        self._lock = threading.Lock()
        self._blocks: dict[int, deque[tuple[int, bytes]]] = {}
        self._order: deque[int] = deque()

    def add(self, partition: int, following: int, block: bytes) -> None:
        """Add the next block of a partition."""
        with self._lock:
            self._blocks.setdefault(partition, deque()).append((self.ends[partition], block))
            self._order.append(partition)
            self._bytes += len(block) + _BLOCK_OVERHEAD
            while self._bytes > self._most_bytes:
                _, dropped = self._blocks[self._order.popleft()].popleft()
                self._bytes -= len(dropped) + _BLOCK_OVERHEAD
            self.ends[partition] = following

    def extend(self, ends: Mapping[int, int]) -> None:
        """Add partitions. Others can be going through the ones that there are."""
        with self._lock:
            self.ends = {**self.ends, **ends}

    def since(self, partition: int, offset: int) -> list[bytes]:
        """Return blocks from the one with an offset on, for one answer; none if they are gone."""
        with self._lock:
            blocks = self._blocks.get(partition, ())
            if not blocks or blocks[0][0] > offset:
                return []
            at = bisect_right(blocks, offset, key=itemgetter(0)) - 1
            found: list[bytes] = []
            size = 0
            for _, block in islice(blocks, at, at + _ANSWER_BLOCKS):
                size += len(block)
                if found and size > _ANSWER_BYTES:
                    break
                found.append(block)
            return found


class _Block(NamedTuple):
    """A block of a partition, the offset behind it, and how many records it has."""

    partition: int
    following: int
    size: int
    data: bytes


def _parts(messages: Sequence[Message], most_bytes: int, most: int) -> Iterator[list[Row]]:
    """Yield the rows of each block: so many bytes and records, unless one record is larger."""
    sizes = list(accumulate(map(_size, map(Message.key, messages), map(len, messages))))
    start = 0
    while start < len(messages):
        limit = (sizes[start - 1] if start else 0) + most_bytes
        end = min(max(bisect_right(sizes, limit), start + 1), start + most)
        yield _rows(messages[start:end])
        start = end


def _size(key: bytes | None, value_size: int) -> int:
    return value_size if key is None else len(key) + value_size


def _rows(messages: Sequence[Message]) -> list[Row]:
    rows: Any = [
        (each.offset(), each.timestamp()[1], each.key(), each.value(), headers_of(each))
        for each in messages
    ]
    found: list[Row] = rows
    return found


class _Live:
    """Publishes what is written to the topic."""

    def __init__(
        self,
        place: Place,
        identity: Identity,
        topic_id: str,
        published: Published,
        socket: ZeroMqSocket,
        counts: Counts,
    ) -> None:
        self._place, self._identity, self._topic_id = place, identity, topic_id
        self._published, self._socket, self._counts = published, socket, counts
        self._looked_at = self._state_at = 0.0
        self._made = dict(published.ends)  # by partition, the offset behind its last block
        self._waiting: tuple[Future[Any], list[_Block]] | None = None
        self.subscriptions = 0

    def run(self, stop: threading.Event) -> None:
        """Publish until the event is set.

        Raises:
            BridgeError: the topic can't be read, or was created again.
        """
        topic = self._place.topic
        starts = {(topic, number): end for number, end in self._published.ends.items()}
        follower = Follower.of(
            self._place.kafka,
            self._place.client,
            starts,
            starts=starts,
            reset="error",
            fetch_wait_max_ms=5,
        )
        with contextlib.closing(follower):
            while not stop.is_set():
                try:
                    found = follower.take(0 if self._waiting else _WAIT_S)
                except KafkaException as error:
                    said = error.args[0].str()
                    raise BridgeError(f"can't read topic {topic}: {said}") from error
                self._turn(follower, found, stop)

    def _turn(self, follower: Follower, found: list[Message], stop: threading.Event) -> None:
        """Make blocks; publish those of the turn before, once it is known that they may be.

        The records of another topic of this name are not of this session. While a broker says which
        topic it is, the next records are read.
        """
        now, before = time.monotonic(), self._waiting
        self._waiting = None
        moved = {
            number: position
            for (_, number), position in follower.positions.items()
            if position > self._made[number]
        }
        if moved or now - self._looked_at > _LOOK_S:
            self._looked_at = now
            asked = self._identity.ask()
            self._waiting = asked, list(self._blocks(found, moved))
        if before is not None:
            described = self._identity.still(self._topic_id, stop, before[0])
            if described is None:
                return
            if blocks := before[1]:
                with self._place.span(sum(each.size for each in blocks)):
                    self._publish(blocks)
            if new := dict.fromkeys(set(described.partitions) - set(self._made), 0):
                self._published.extend(new)
                self._made.update(new)
                follower.add({(self._place.topic, number): 0 for number in new})
        if now - self._state_at > _STATE_S:
            self._state_at = now
            state = encode_state(self._published.session, self._published.ends)
            self._socket.send((STATE_CHANNEL, state))
            self.subscriptions = self._socket.subscribers(0)

    def _blocks(self, found: Sequence[Message], moved: Mapping[int, int]) -> Iterator[_Block]:
        """Yield the blocks of records up to some positions, those of a partition in order."""
        groups: dict[int, list[Message]] = {}
        for message in found:
            groups.setdefault(int(message.partition() or 0), []).append(message)
        for number, group in groups.items():
            for rows in _parts(group, _BLOCK_BYTES, _BLOCK_RECORDS):
                first = self._made[number]
                self._made[number] = following = rows[-1][0] + 1
                data = encode_block(self._published.session, number, first, following, rows)
                yield _Block(number, following, len(rows), data)
        for number, position in moved.items():
            if position > (first := self._made[number]):  # markers, and aborted records
                empty = encode_block(self._published.session, number, first, position, ())
                self._made[number] = position
                yield _Block(number, position, 0, empty)

    def _publish(self, blocks: Sequence[_Block]) -> None:
        for number, following, size, block in blocks:
            self._socket.send((channel_of(number), block))
            self._published.add(number, following, block)
            self._counts.received += size
            self._counts.delivered += size


class _Answers:
    """Answers requests, from memory or from the log. The newest one of each requester counts."""

    def __init__(
        self,
        place: Place,
        identity: Identity,
        topic_id: str,
        published: Published,
        socket: ZeroMqSocket,
        counts: Counts,
    ) -> None:
        self._place, self._identity, self._topic_id = place, identity, topic_id
        self._published, self._socket, self._counts = published, socket, counts
        self._stored = StoredBlocks(place, published.session, counts)
        self._ahead: deque[Wanted] = deque(maxlen=64)
        self._identified: Future[Any] | None = None
        """Whether what was read is of this topic. It is waited for before it is sent."""

    def run(self, stop: threading.Event) -> None:
        """Answer until the event is set.

        Raises:
            BridgeError: the topic was created again.
        """
        with contextlib.closing(self._stored):
            while not stop.is_set():
                wanted: dict[tuple[bytes, bool, int], Request] = {}
                for frames in self._socket.receive(0 if self._ahead else _WAIT_S):
                    self._take(frames, wanted)
                if self._ahead and not wanted:
                    self._block(self._ahead.popleft())
                for (requester, _, _), request in wanted.items():
                    if stop.is_set():
                        return
                    self._answer(requester, request, stop)

    def _take(self, frames: list[bytes], wanted: dict[tuple[bytes, bool, int], Request]) -> None:
        try:
            request = decode_request(frames[1] if len(frames) == 2 else b"")
        except FrameError:
            self._counts.refused += 1
            return
        is_state = request.kind == DESCRIBE
        if not is_state and request.partition not in self._published.ends:
            self._counts.refused += 1
            return
        wanted[frames[0], is_state, request.partition] = request

    def _answer(self, requester: bytes, request: Request, stop: threading.Event) -> None:
        published = self._published
        if request.kind == DESCRIBE:
            found = [encode_state(published.session, published.ends)]
        else:
            found = self._records(request, stop)
        if found and self._socket.send((requester, NUMBER.pack(request.number), *found)):
            self._counts.retried += 1

    def _records(self, request: Request, stop: threading.Event) -> list[bytes]:
        """Return blocks from an offset on; none if the log can't be read, so that it asks again."""
        number, offset = request.partition, request.offset
        end = self._published.ends[number]
        if offset >= end:
            return [encode_block(self._published.session, number, end, end, ())]
        if found := self._published.since(number, offset):
            return found
        wanted = Wanted(number, offset, request.kind == READ_LAST)
        block = self._block(wanted)
        if block is None:
            return []
        self._ahead.append(wanted._replace(offset=decode_head(block).following))
        if self._identified is not None:
            if self._identity.still(self._topic_id, stop, self._identified) is None:
                return []
            self._identified = None
        return [block]

    def _block(self, wanted: Wanted) -> bytes | None:
        """Return a block of the log, or None. Also the one that a requester will ask for next."""
        end = self._published.ends[wanted.partition]
        if (block := self._stored.kept(wanted)) is not None or wanted.offset >= end:
            return block
        block = self._stored.read(wanted, end)
        self._identified = self._identity.ask()
        return block
