"""A bridge that sends a partition of a topic as a multicast stream (MoldUDP64).

The sequence of a record is its offset and one, so no position needs to be stored: a bridge that was
away continues at the end of the log, and receivers ask for what they miss. An offset without a
record (a marker, an aborted or compacted record) is an empty message. Must not know: who receives.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from confluent_kafka import KafkaException, Message
from pydantic import Field

from tidemill.confluent.reading import ExtractReader, Follower, OutOfRangeError, headers_of
from tidemill.connect.direct.contract import Bridge, Counts, Place
from tidemill.connect.direct.errors import BridgeError, TopicGoneError, opening_failed
from tidemill.connect.direct.identity import Identity
from tidemill.connect.direct.waiting import to_its_end
from tidemill.direct.multicast import MulticastError, Record, encode_record
from tidemill.direct.multicast.answers import LOOPBACK, Answers
from tidemill.direct.multicast.errors import PacketError
from tidemill.direct.multicast.sockets import Address, Sender
from tidemill.direct.multicast.wire import BLOCK_SIZE, LARGEST_MESSAGE, SESSION_SIZE, session_of
from tidemill.errors import TidemillError
from tidemill.settings.section import Section

_CHUNK_BYTES = 1 << 20
_CHUNK_RECORDS = 2000
_LOOK_S = 1.0
_READ_S = 2.0
_PAUSE_S = 5.0
"""After a read of the log that has failed, it is not read for so long."""
_OVERHEAD = 250
"""Bytes that Python needs for a message in memory."""
_HOLES = 5000
"""So many empty messages are sent before other bridges have their turn, and the receivers time."""


class MulticastOptions(Section):
    """Options of a multicast bridge."""

    group: str = Field(description="The group, ADDRESS:PORT, such as 239.1.2.3:7000.")
    requests: str = Field(
        "127.0.0.1:0", description="Where missing messages are asked for, ADDRESS:PORT."
    )
    partition: int = Field(0, ge=0, description="The partition that is sent.")
    interface: str = Field("127.0.0.1", description="Address of the network interface.")
    members: list[str] = Field(
        list(LOOPBACK), min_length=1, description="Networks whose requests are answered."
    )
    packet_size: int = Field(
        1400, ge=64, le=65_507, description="Bytes of a packet, unless one record is larger."
    )
    oversize: int = Field(
        LARGEST_MESSAGE,
        ge=64,
        le=LARGEST_MESSAGE,
        description="Bytes above which a value is left out: the message has the key and the size. "
        "A record above packet_size is split by IP.",
    )
    answer_bytes_per_s: int = Field(
        10_000_000, ge=1000, description="Bytes of answers for one address in a second."
    )
    cache_bytes: int = Field(
        64 << 20, ge=0, le=1 << 34, description="Bytes of records that are answered from memory."
    )


class MulticastBridge(Bridge):
    """Sends a partition to a group, and answers requests from the log however old they are."""

    options_type = MulticastOptions

    def __init__(self, place: Place, options: MulticastOptions) -> None:
        self._place = place
        self._options = options
        self._group = _address(options.group)
        self._requests = _address(options.requests)
        self._counts = Counts()
        self._gathered: list[bytes] = []
        self._messages: LogMessages | None = None
        self._answers: Answers | None = None
        self._sender: Sender | None = None

    async def run(self, running: Callable[[], None]) -> None:
        """Send what is written to the partition, until the task is cancelled."""
        options, partition = self._options, (self._place.topic, self._options.partition)
        identity = Identity(self._place)
        topic_id = await asyncio.to_thread(identity)
        end = await asyncio.to_thread(self._end, partition)
        session = session_of(_session(topic_id, options.partition))
        self._messages = messages = LogMessages(
            self._place, options, session, end + 1, lambda: identity() == topic_id
        )
        self._answers = answers = Answers(
            messages,
            options.members,
            bytes_per_s=options.answer_bytes_per_s,
            packet_size=options.packet_size,
        )
        try:
            self._sender = sender = Sender(
                messages,
                answers,
                self._group,
                self._requests,
                options.interface,
                options.packet_size,
            )
        except MulticastError as error:
            messages.close()
            raise opening_failed(error) from error
        follower = Follower.of(
            self._place.kafka,
            self._place.client,
            [partition],
            starts={partition: end},
            reset="error",
            fetch_wait_max_ms=5,
        )
        try:
            running()
            await self._follow(follower, identity, topic_id, messages, sender)
        except TopicGoneError:
            sender.end()
            raise
        finally:
            await asyncio.to_thread(sender.close)
            await asyncio.to_thread(follower.close)
            await asyncio.to_thread(messages.close)

    def counts(self) -> Counts:
        """Return what was counted since the start."""
        found, answers = self._counts, self._answers
        if answers is not None:
            found.recovered = answers.messages
            found.retried = answers.answered
        return found

    def details(self) -> Mapping[str, Any]:
        """Return the session, the position and the addresses."""
        sender, answers, messages = self._sender, self._answers, self._messages
        if sender is None or answers is None or messages is None:
            return {}
        return {
            "group": self._options.group,
            "requests": f"{sender.requests[0]}:{sender.requests[1]}",
            "session": messages.session.decode().strip(),
            "next_sequence": messages.end,
            "packets": sender.packets,
            "requests_answered": answers.answered,
            "requests_refused": answers.refused + sender.malformed,
            "requests_throttled": answers.throttled,
        }

    # --- following ----------------------------------------------------------------------------

    async def _follow(
        self,
        follower: Follower,
        identity: Identity,
        topic_id: str,
        messages: LogMessages,
        sender: Sender,
    ) -> None:
        (partition,), stop, looked_at = follower.positions, threading.Event(), time.monotonic()

        def poll() -> list[Message]:
            nonlocal looked_at
            found = list(follower.poll(0.05))
            # The records of another topic of this name are not of this session.
            if found or time.monotonic() - looked_at > _LOOK_S:
                identity.still(topic_id, stop)  # it waits for a broker
                looked_at = time.monotonic()
            return found

        while True:
            try:
                found = await to_its_end(asyncio.to_thread(poll), stop)
            except KafkaException as error:
                raise BridgeError(
                    f"can't read topic {self._place.topic}: {error.args[0].str()}"
                ) from error
            if sender.failure is not None:
                raise BridgeError(f"can't answer requests: {sender.failure!r}")
            if found:
                with self._place.span(len(found)):
                    await self._send_all(messages, sender, found)
            # The markers at the end of what is committed are holes, too.
            await self._send_holes(messages, sender, follower.positions[partition] + 1)

    async def _send_all(
        self, messages: LogMessages, sender: Sender, found: Sequence[Message]
    ) -> None:
        for message in found:
            offset = int(message.offset() or 0)
            await self._send_holes(messages, sender, offset + 1)
            self._gather(messages, sender, message)
        self._flush(messages, sender)

    def _gather(self, messages: LogMessages, sender: Sender, message: Message) -> None:
        """Add a record to the next packet, and send that if it is full."""
        encoded = _encode(message, self._options.oversize)
        self._counts.received += 1
        if encoded.left_out:
            self._counts.refused += 1
        size = sum(len(each) + BLOCK_SIZE for each in self._gathered) + len(encoded.data)
        if self._gathered and size > self._options.packet_size:
            self._flush(messages, sender)
        self._gathered.append(encoded.data)
        messages.add(encoded.data)

    def _flush(self, messages: LogMessages, sender: Sender) -> None:
        gathered, self._gathered = self._gathered, []
        if gathered:
            sender.send(messages.end - len(gathered), gathered)
            self._counts.delivered += len(gathered)

    async def _send_holes(self, messages: LogMessages, sender: Sender, sequence: int) -> None:
        """Send empty messages up to before a sequence, with pauses for the receivers."""
        if messages.end >= sequence:
            return
        self._flush(messages, sender)
        while messages.end < sequence:
            count = min(sequence - messages.end, _HOLES)
            first = messages.end
            messages.skip(count)
            sender.send(first, [b""] * count)
            await asyncio.sleep(0.001 if count == _HOLES else 0)

    # --- the topic ----------------------------------------------------------------------------

    def _end(self, partition: tuple[str, int]) -> int:
        return self._place.kafka.end_offsets(self._place.client, [partition], committed=True)[
            partition
        ]


class _Encoded(NamedTuple):
    """An envelope, and whether its value was left out."""

    data: bytes
    left_out: bool


def _encode(message: Message, oversize: int) -> _Encoded:
    """Return the envelope of a record."""
    headers, key, value = headers_of(message), message.key(), message.value()
    stamp, size = message.timestamp()[1], len(value or b"")
    kept = None if value else value  # an empty value stays distinct from a tombstone
    smaller = (
        Record(key, value, stamp, headers),
        Record(key, kept, stamp, headers, size),
        Record(key, kept, stamp, (), size),
    )
    for record in smaller:
        with contextlib.suppress(PacketError):
            data = encode_record(record)
            if len(data) <= oversize:
                return _Encoded(data, left_out=record is not smaller[0])
    return _Encoded(encode_record(Record(None, kept, stamp, (), size)), left_out=True)


class LogMessages:
    """The messages of a partition: the last ones in memory, the others from the log.

    The bridge adds on the event loop; requests are read on the sender's thread.

    Args:
        session: the session's bytes.
        end: the next sequence.
        is_same_topic: returns whether the topic is still that of the session.

    Attributes:
        first: the first message of the log, as far as a read has found out.
    """

    def __init__(
        self,
        place: Place,
        options: MulticastOptions,
        session: bytes,
        end: int,
        is_same_topic: Callable[[], bool],
    ) -> None:
        self.first = 1
        self._is_same_topic = is_same_topic
        self.session = session
        self.end = end
        self._place = place
        self._options = options
        self._lock = threading.Lock()
        self._recent: OrderedDict[int, bytes] = OrderedDict()
        self._recent_first = end
        self._size = 0
        self._reader: ExtractReader | None = None
        self._chunk: dict[int, bytes] = {}
        self._chunk_range = (0, 0)
        self._again_at = 0.0

    def add(self, message: bytes) -> None:
        """Add the next message."""
        with self._lock:
            self._recent[self.end] = message
            self._size += len(message) + _OVERHEAD
            self.end += 1
            while self._size > self._options.cache_bytes and self._recent:
                sequence, dropped = self._recent.popitem(last=False)
                self._size -= len(dropped) + _OVERHEAD
                self._recent_first = sequence + 1

    def skip(self, count: int) -> None:
        """Add empty messages."""
        with self._lock:
            self.end += count

    def read(self, sequence: int, count: int, size: int) -> Sequence[bytes]:
        """Return messages from a sequence on, up to ``size`` bytes with their lengths."""
        with self._lock:
            if sequence >= self._recent_first:
                return _take(self._recent, sequence, min(count, self.end - sequence), size)
        if not self._chunk_range[0] <= sequence < self._chunk_range[1]:
            if time.monotonic() < self._again_at:
                return []
            try:
                self._load(sequence)
            except OutOfRangeError as error:
                self.first = max(self.first, error.start + 1)
                return []
            except (KafkaException, TidemillError):
                # The receiver asks again. What is in memory is answered meanwhile.
                self._again_at = time.monotonic() + _PAUSE_S
                return []
        return _take(self._chunk, sequence, min(count, self._chunk_range[1] - sequence), size)

    def _load(self, sequence: int) -> None:
        """Read a part of the log from a sequence on."""
        if self._reader is None:
            self._reader = ExtractReader.of(self._place.kafka, self._place.client)
        partition = (self._place.topic, self._options.partition)
        found = self._reader.read(partition, sequence - 1, _CHUNK_RECORDS, _CHUNK_BYTES, _READ_S)
        if not self._is_same_topic():
            raise BridgeError(f"topic {self._place.topic} was created again")
        self._chunk = {
            int(each.offset() or 0) + 1: _encode(each, self._options.oversize).data
            for each in found.records
        }
        self._chunk_range = (sequence, found.following + 1)

    def close(self) -> None:
        """Close the client."""
        if self._reader is not None:
            self._reader.close()


def _take(messages: Mapping[int, bytes], sequence: int, count: int, size: int) -> list[bytes]:
    """Return messages from a sequence on; what is not in the table is empty."""
    found: list[bytes] = []
    used = 0
    for each in range(sequence, sequence + max(count, 0)):
        message = messages.get(each, b"")
        used += len(message) + BLOCK_SIZE
        if found and used > size:
            break
        found.append(message)
    return found


def _session(identity: str, partition: int) -> str:
    """Return the session of a partition: another one if the topic is created again."""
    digest = hashlib.sha256(f"{identity}/{partition}".encode()).digest()
    return base64.b32encode(digest).decode()[:SESSION_SIZE]


def _address(text: str) -> Address:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdigit() or int(port) > 65535:
        raise MulticastError(f"{text} is not ADDRESS:PORT", hint="Write 239.1.2.3:7000.")
    return host, int(port)
