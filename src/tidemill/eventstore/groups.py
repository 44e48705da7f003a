"""Subscription groups: each event of a store is handled at least once by one of the members.

Members are in one Kafka consumer group, which makes one of them active; the others are there to
take over. The checkpoint is the committed offset of the group: *a position*, below everything that
is not acknowledged. Brokers delete offsets of a group that has had no members for a week
(``offsets.retention.minutes``), so the checkpoint is noted in the store, too. An event that fails
is tried again after a pause, and is parked after some attempts: in the stream ``parked-<group>`` of
the same store, from where it can be replayed. Must not know: how a store works.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import orjson
from confluent_kafka import OFFSET_END, Consumer, KafkaError, KafkaException, TopicPartition

from tidemill.confluent.clients import REQUEST_S, Kafka
from tidemill.confluent.errors import FAILURES, RAISED, RETRIABLE, error_in
from tidemill.confluent.reading import arrived
from tidemill.errors import TidemillError, UnreachableError
from tidemill.eventstore.deliveries import Backoff, Deliveries
from tidemill.eventstore.errors import EventStoreError, OutcomeUnknownError
from tidemill.eventstore.events import NewEvent, Query, StoredEvent
from tidemill.eventstore.log import RECONNECT_MS
from tidemill.eventstore.reading import Following
from tidemill.eventstore.state import category_of
from tidemill.eventstore.store import Store

PARKED = "parked"
"""The category of the streams with parked events."""
_CHECKPOINTS = "group.checkpoints"
"""The category of the streams with noted checkpoints."""
_REPLAYED, _CHECKPOINT = "replayed", "checkpoint"
_OWN = {PARKED: {PARKED, _REPLAYED}, _CHECKPOINTS: {_CHECKPOINT}}
"""By category, the types of the events that groups write, and leave out."""
CLOSE_S = 5.0
"""How long a member that is closed waits for a broker that takes its checkpoint."""
_COMMIT_S = 1.0
_NOTE_S = 600.0
_NOTE_POSITIONS = 10_000
"""The checkpoint is noted when it is so much older than the last note. A group that was killed, and
then offline until the broker has deleted its offsets, handles at most so much again."""
_POLL_S = 0.1
_OTHER_MEMBER = {
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError.REBALANCE_IN_PROGRESS,
    KafkaError._STATE,
}
"""Errors of a commit: the group has another active member now, or looks for one."""
_PASSING = RETRIABLE | {
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.NOT_COORDINATOR,
    KafkaError._WAIT_COORD,
    KafkaError._PREV_IN_PROGRESS,
}
"""Errors while no broker answers for the group, as during a restart."""
_DENIED = {KafkaError.GROUP_AUTHORIZATION_FAILED, KafkaError.TOPIC_AUTHORIZATION_FAILED}
_log = logging.getLogger("tidemill.eventstore")


@dataclass(frozen=True, slots=True)
class Delivery:
    """An event that a member handles. One of its methods is called when that is done.

    Attributes:
        event: the event.
        attempt: the number of the attempt, from 1.
    """

    event: StoredEvent
    attempt: int
    _group: Group
    _token: object

    def ack(self) -> None:
        """Finish the event."""
        self._group._settle(self, "ack")

    def retry(self, reason: str = "") -> None:
        """Try the event again after a pause; park it after the last attempt."""
        self._group._settle(self, "retry", reason)

    def park(self, reason: str = "") -> None:
        """Put the event aside, with the reason, and continue with the next one."""
        self._group._settle(self, "park", reason)


class Group:
    """A member of a subscription group. Threads can share it.

    Args:
        store: the store. It stays open when the group is closed.
        kafka: the cluster of the store.
        name: of the group. The Kafka group is ``<topic>.<name>``.
        queries: the events of any of these; default: all.
        category: of the streams; default: all.
        backoff: the pauses between attempts.
        window: the most events that are taken in and not finished.
    """

    def __init__(
        self,
        store: Store,
        kafka: Kafka | str,
        name: str,
        *,
        queries: Sequence[Query] = (),
        category: str | None = None,
        backoff: Backoff | None = None,
        window: int = 1000,
    ) -> None:
        self._store = store
        self._name = name
        self._stream = f"{PARKED}-{name}"
        self._checkpoints = f"{_CHECKPOINTS}-{name}"
        self._select: dict[str, Any] = {"queries": queries, "category": category}
        self._backoff = backoff or Backoff()
        self._window = window
        self._changed = threading.Condition()
        self._deliveries: Deliveries | None = None
        self._following: Following | None = None
        self._token: object = None  # of the present assignment
        self._joined: list[TopicPartition] = []
        self._obstacle = ""  # to begin, as it was logged
        self._committed = -1
        self._finished = 0  # the last position that was finished
        self._noted, self._noted_at = 0, time.monotonic()
        self._woken = threading.Event()
        self._is_closed = False
        self._failure: BaseException | None = None
        kafka = Kafka(kafka) if isinstance(kafka, str) else kafka
        config = kafka.config(
            "tidemill-eventstore",
            group_id=f"{store.topic}.{name}",
            enable_auto_commit=False,
            auto_offset_reset="latest",
            session_timeout_ms=10_000,
            reconnect_backoff_max_ms=RECONNECT_MS,
        )
        self._kafka = kafka
        self._consumer: Consumer = kafka.make(Consumer, config)
        self._consumer.subscribe(
            [store.topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost
        )
        self._thread = threading.Thread(target=self._run, name=f"group {name}", daemon=True)
        self._thread.start()

    # Membership. The callbacks run in the thread of the group.

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        place = [TopicPartition(each.topic, each.partition, OFFSET_END) for each in partitions]
        consumer.assign(place)
        consumer.pause(place)  # the store reads the log; this client only belongs to the group
        self._joined = list(partitions)

    def _begin(self) -> None:
        """Find out where the group is, and follow the store from there.

        It is tried again as long as no broker answers, because brokers are restarted.
        """
        if not self._joined or self._deliveries is not None:
            return
        try:
            offset = self._committed_offset()
            self._noted, self._noted_at = self._last_note(), time.monotonic()
            checkpoint = self._noted if offset < 0 else offset
            self._check_checkpoint(checkpoint)
        except UnreachableError as error:
            if str(error) != self._obstacle:
                self._obstacle = str(error)
                _log.warning(
                    "group %s of store %s can't begin yet: %s",
                    *(self._name, self._store.topic, error),
                )
            return
        self._obstacle = ""
        if offset < 0 < checkpoint:
            _log.info(
                "group %s of store %s continues at position %d, which is noted in the store: the "
                "broker has deleted its offset",
                *(self._name, self._store.topic, checkpoint),
            )
        with self._changed:
            self._token = object()
            self._deliveries = Deliveries(checkpoint, self._window)
            self._committed = checkpoint
            self._following = self._store.follow(after=checkpoint, **self._select)
            self._following.listen(self._wake)
            self._changed.notify_all()

    def _committed_offset(self) -> int:
        """Return the committed offset of the group; a negative number if there is none.

        Raises:
            UnreachableError: no broker answers.
        """
        try:
            (found,) = self._consumer.committed(self._joined, timeout=REQUEST_S)
        except KafkaException as raised:
            error: KafkaError | None = raised.args[0]
        else:
            error = found.error
        if error is None:
            return int(found.offset)
        what = f"find the offset of group {self._name}"
        if error.code() in _PASSING:
            raise UnreachableError(f"can't {what}: {error.str()}")
        raise self._kafka.translate(error, what)

    def _last_note(self) -> int:
        """Return the checkpoint that was noted last; 0 if there is none."""
        for each in self._store.read(self._checkpoints, backwards=True, limit=1, fresh=True):
            return int(orjson.loads(each.data)["position"])
        return 0

    def _check_checkpoint(self, checkpoint: int) -> None:
        """Check that the store has the events up to a checkpoint.

        Raises:
            EventStoreError: it does not: what is appended up to there would be left out.
        """
        if checkpoint > self._store.position():
            self._store.catch_up()
        position = self._store.position()
        if checkpoint > position:
            raise EventStoreError(
                f"group {self._name} has handled position {checkpoint}, and store "
                f"{self._store.topic} ends at {position}",
                hint="The store was restored or replaced. Use a new group, or set the offset of "
                f"group {self._store.topic}.{self._name}: tidemill group seek",
            )

    def _revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        with contextlib.suppress(KafkaException):  # the next member gets more events again
            self._commit()
        self._lost(consumer, partitions)

    def _lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        with self._changed:
            following, self._following = self._following, None
            self._deliveries = self._token = None
            self._joined = []
            self._changed.notify_all()
        if following is not None:
            following.close()

    def _wake(self) -> None:
        """Fill soon. It is called with the lock of the store, and takes no other."""
        self._woken.set()

    def _run(self) -> None:
        self._work()
        if self._failure is None:
            with contextlib.suppress(KafkaException):
                self._commit()
                self._note_checkpoint()
        # librdkafka raises what went wrong while it joined, as KafkaError: nothing is joined now.
        with contextlib.suppress(*RAISED):
            self._consumer.close()

    def _work(self) -> None:
        try:
            last = time.monotonic()
            while not self._is_closed:
                if not self._fill():
                    self._woken.wait(_POLL_S)
                    self._woken.clear()
                for message in arrived(self._consumer, 0.0):
                    self._check(message.error())
                self._begin()
                if time.monotonic() - last >= _COMMIT_S:
                    self._commit()
                    last = time.monotonic()
                    if self._is_note_due(last):
                        self._note_checkpoint()
        except FAILURES as error:
            bare = None if isinstance(error, Exception) else error_in(error)
            if bare is not None:
                error = self._kafka.translate(bare, f"be a member of group {self._name}")
            with self._changed:
                self._failure = error
                self._changed.notify_all()

    def _check(self, error: KafkaError | None) -> None:
        """Raise an error that does not pass. Records are not read here."""
        if error is not None and (error.fatal() or error.code() in _DENIED):
            raise self._kafka.translate(error, f"be a member of group {self._name}")

    def _fill(self) -> bool:
        """Take in events, as far as there is room; return whether there may be more."""
        following, deliveries = self._following, self._deliveries
        if following is None or deliveries is None:
            return False
        if deliveries.room < max(1, self._window // 2):
            return False
        before = following.after
        events = following.take(min(deliveries.room, 1000))
        following.check()
        with self._changed:
            for event in events:
                if event.type not in _OWN.get(category_of(event.stream), ()):
                    deliveries.offer(event)
            deliveries.reach(following.after)
            self._changed.notify_all()
        return following.after > before

    def _commit(self) -> None:
        with self._changed:
            checkpoint = self._deliveries.checkpoint if self._deliveries else self._committed
        if checkpoint <= self._committed:
            return
        place = TopicPartition(self._store.topic, 0, checkpoint)
        try:
            self._consumer.commit(offsets=[place], asynchronous=False)
        except KafkaException as error:
            found: KafkaError = error.args[0]
            if not found.retriable() and found.code() not in _OTHER_MEMBER | _PASSING:
                raise
            return  # a later commit, or the next member, repeats it
        self._committed = checkpoint

    def _is_note_due(self, now_s: float) -> bool:
        return self._committed - self._noted >= _NOTE_POSITIONS or now_s - self._noted_at >= _NOTE_S

    def _note_checkpoint(self) -> None:
        """Note the committed checkpoint in the store, if something was finished since the last."""
        # A note is an event, too: without this, notes alone would bring about further ones.
        if min(self._committed, self._finished) <= self._noted:
            return
        checkpoint, self._noted_at = self._committed, time.monotonic()
        note = NewEvent(_CHECKPOINT, orjson.dumps({"position": checkpoint}))
        try:
            self._store.append(self._checkpoints, [note])
        except TidemillError as error:
            _log.warning(
                "the checkpoint of group %s can't be noted in store %s: %s. If the group is "
                "offline until the broker has deleted its offset, it continues at position %d",
                *(self._name, self._store.topic, error, self._noted),
            )
        else:
            self._noted = checkpoint

    # Deliveries.

    def take(self, timeout_s: float | None = None) -> Delivery | None:
        """Return the next event to handle; None if there is none in time, or the group is closed.

        Raises:
            KafkaException, TidemillError: the group or the store failed.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with self._changed:
            while not self._is_closed:
                if self._failure is not None:
                    raise self._failure
                now = time.monotonic()
                found = self._deliveries.take(now) if self._deliveries else None
                if found is not None:
                    return Delivery(*found, self, self._token)
                if deadline is not None and now >= deadline:
                    return None
                due = self._deliveries.next_due_s() if self._deliveries else None
                until = min([each for each in (due, deadline) if each is not None], default=None)
                self._changed.wait(None if until is None else max(0.001, until - now))
        return None

    def __iter__(self) -> Iterator[Delivery]:
        """Yield deliveries until the group is closed."""
        while (found := self.take()) is not None:
            yield found

    def run(self, handle: Callable[[StoredEvent], object], wait_s: float | None = None) -> None:
        """Handle events in this thread: what returns is acknowledged, what raises is retried.

        Args:
            wait_s: end if no event came for so long; default: end when the group is closed.
        """
        while (delivery := self.take(wait_s)) is not None:
            try:
                handle(delivery.event)
            except Exception as error:
                delivery.retry(f"{type(error).__name__}: {error}")
            else:
                delivery.ack()

    def _settle(self, delivery: Delivery, how: str, reason: str = "") -> None:
        position = delivery.event.position
        pause_s = self._backoff.pause_s(delivery.attempt) if how == "retry" else None
        if how == "park" or (how == "retry" and pause_s is None):
            self._park(position, delivery.attempt, reason)
        with self._changed:
            if delivery._token is not self._token or self._deliveries is None:
                return  # another member has it, or gets it
            if not self._deliveries.is_out(position):
                return  # it was settled before
            if pause_s is not None:
                self._deliveries.retry(position, time.monotonic() + pause_s)
            else:
                self._deliveries.finish(position)
                self._finished = max(self._finished, position)
            self._changed.notify_all()
        self._woken.set()

    # Parked events.

    def _park(self, position: int, attempts: int, reason: str) -> None:
        # Half of a surrogate pair, as in the name of a file, can't be written as JSON.
        text = reason[:1000].encode(errors="replace").decode()
        self._note(PARKED, position=position, attempts=attempts, reason=text)

    def _note(self, kind: str, **about: Any) -> None:
        """Append to the stream of parked events. A second note of an event changes nothing."""
        event = NewEvent(kind, orjson.dumps(about))
        while True:
            try:
                self._store.append(self._stream, [event])
                return
            except OutcomeUnknownError:
                continue  # with the same id it is stored once

    def parked(self) -> dict[int, str]:
        """Return the positions of parked events that were not replayed, with the reasons."""
        found: dict[int, str] = {}
        for each in self._store.read(self._stream, fresh=True):
            about = orjson.loads(each.data)
            if each.type == PARKED:
                found[about["position"]] = about["reason"]
            else:
                found.pop(about["position"], None)
        return found

    def replay_parked(self, handle: Callable[[StoredEvent], object]) -> tuple[int, int]:
        """Handle parked events in this thread, in order. The checkpoint does not move.

        What raises stays parked, with the new reason. The events of a stream behind a parked one
        were handled meanwhile.

        Returns:
            How many were handled, and how many stay parked.
        """
        handled = failed = 0
        for position in sorted(self.parked()):
            for event in self._store.read_all(after=position - 1, to=position):
                try:
                    handle(event)
                except Exception as error:
                    failed += 1
                    self._park(position, 1, f"{type(error).__name__}: {error}")
                else:
                    handled += 1
                    self._note(_REPLAYED, position=position)
        return handled, failed

    def close(self) -> None:
        """Commit the checkpoint, note it in the store, and leave the group.

        Other threads' ``take`` returns None. It blocks for at most ``CLOSE_S``: while no broker
        answers, a commit waits until one does, without a limit. What is not committed then is
        handled again.
        """
        with self._changed:
            if self._is_closed:
                return
            self._is_closed = True
            self._changed.notify_all()
        self._woken.set()
        self._thread.join(CLOSE_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
