"""Load aggregates from their streams, and store what their commands decide.

An aggregate is a plain object: its methods return events, and its ``apply…`` methods change it
(``handlers.evolve``). Must not know: brokers, files of the index, databases.
"""

from __future__ import annotations

import dataclasses
import random
import re
import time
import uuid
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Generic, TypeVar

from tidemill.eventstore.app.codec import RESERVED, Codec, in_words
from tidemill.eventstore.app.context import Context
from tidemill.eventstore.app.errors import (
    CommandRefusedError,
    DeclarationError,
    TruncatedStreamError,
)
from tidemill.eventstore.app.handlers import evolve
from tidemill.eventstore.app.snapshots import Snapshot, SnapshotPolicy
from tidemill.eventstore.app.turns import Turns
from tidemill.eventstore.errors import ConflictError, VersionConflictError
from tidemill.eventstore.events import (
    ANY,
    Appended,
    Condition,
    Events,
    NewEvent,
    Query,
    StoredEvent,
    Version,
    surely,
)

State = TypeVar("State")
_NAMESPACE = uuid.UUID("6f0d3c1e-8a52-5b0c-9d5e-3f1f7c0b9a11")
_CATEGORY = re.compile(r"[\w.]{1,200}\Z")
_MAX_ID = 1000


@dataclasses.dataclass(frozen=True, slots=True)
class Retries:
    """The number of times a command is decided again after another writer was faster.

    Attributes:
        attempts: the most attempts.
        first_s: the longest pause before the second attempt, in seconds. It doubles with each.
        most_s: the longest pause.
    """

    attempts: int = 50
    first_s: float = 0.001
    most_s: float = 0.1

    def pause_s(self, attempt: int) -> float:
        """Return a random pause behind an attempt, counted from 0 (full jitter)."""
        return random.uniform(0, min(self.most_s, self.first_s * 2.0 ** min(attempt, 30)))


@dataclasses.dataclass(frozen=True, slots=True)
class Loaded(Generic[State]):
    """An aggregate as its stream says.

    Attributes:
        id: the id of the aggregate.
        state: the aggregate.
        version: the number of events in its stream; 0 if there is none.
        position: the position of the last of them in the store.
    """

    id: str
    state: State
    version: int
    position: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Done(Loaded[State], Generic[State]):
    """An aggregate behind a command.

    Attributes:
        events: what the command has decided; empty if nothing.
        repeated: whether the command was done before, under the same id.
    """

    events: tuple[Any, ...] = ()
    repeated: bool = False


class Repository(Generic[State]):
    """The aggregates of one class, each with a stream ``category-id`` in a store.

    It can be used by several threads.

    Args:
        store: where the events are.
        codec: the classes of the events.
        aggregate: returns an aggregate without events; usually its class.
        category: the first part of the streams' names; by default the class's name in words.
        snapshots: when snapshots are made; by default never.
        retries: how often a command is decided again when another writer was faster.
    """

    def __init__(
        self,
        store: Events,
        codec: Codec,
        aggregate: Callable[[], State],
        *,
        category: str | None = None,
        snapshots: SnapshotPolicy[State] | None = None,
        retries: Retries | None = None,
    ) -> None:
        name = getattr(aggregate, "__name__", "")
        self.category = category or in_words(name, "_")
        if not _CATEGORY.match(self.category):
            raise DeclarationError(
                f"invalid category {self.category!r}: use letters, digits, '_' and '.'",
                hint="The part of a stream's name before the first '-' is its category.",
            )
        self.store = store
        self.codec = codec
        self.aggregate = aggregate
        self._snapshots = snapshots
        self._retries = retries or Retries()
        self._turns = Turns()

    def stream(self, aggregate_id: str | uuid.UUID) -> str:
        """Return the name of the stream of an aggregate."""
        text = str(aggregate_id)
        if not text or len(text) > _MAX_ID or not text.isprintable():
            raise DeclarationError(
                f"invalid id {text[:80]!r}: use 1 to {_MAX_ID} printable characters"
            )
        return f"{self.category}-{text}"

    def id_of(self, stream: str) -> str | None:
        """Return the id of the aggregate of a stream, or None if it has another category."""
        category, dash, id_ = stream.partition("-")
        return id_ if dash and category == self.category else None

    def ids(self) -> list[str]:
        """Return the ids of all aggregates with events. It reads all events."""
        streams = dict.fromkeys(
            event.stream for event in self.store.read_all(category=self.category)
        )
        return [stream.partition("-")[2] for stream in streams]

    def snapshot(self, aggregate_id: str | uuid.UUID) -> bool:
        """Make a snapshot now. Return whether there are events since the last one.

        Raises:
            DeclarationError: the repository has no snapshots.
        """
        if self._snapshots is None:
            raise DeclarationError(
                f"the repository of {self.category!r} has no snapshots",
                hint="Give it a SnapshotPolicy.",
            )
        stream = self.stream(aggregate_id)
        replay = self._replayed(stream, (None, None, None))
        if replay.version == replay.snapshot_version:
            return False
        self._snapshots.keep(stream, replay.state, replay.place())
        return True

    # --- reading ---------------------------------------------------------------------------------

    def load(self, aggregate_id: str | uuid.UUID, *, fresh: bool = False) -> Loaded[State]:
        """Return an aggregate; one without events if its stream is empty.

        Args:
            fresh: ask for the end of the log first, to see what other processes have just written.

        Raises:
            UnknownEventTypeError: the code does not know an event of the stream.
            MissingHandlerError: the aggregate has no method for an event.
        """
        return self.as_of(aggregate_id, fresh=fresh)

    def as_of(
        self,
        aggregate_id: str | uuid.UUID,
        *,
        version: int | None = None,
        time: datetime | None = None,
        position: int | None = None,
        fresh: bool = False,
    ) -> Loaded[State]:
        """Return an aggregate as it was.

        Args:
            version: behind so many events.
            time: before the first event that is later. It needs a time zone.
            position: behind the event of the store with this position.
        """
        if time is not None and time.tzinfo is None:
            raise DeclarationError(f"invalid time {time}: it has no time zone")
        bounds = (version, None if time is None else int(time.timestamp() * 1000), position)
        stream = self.stream(aggregate_id)
        replay = self._replayed(stream, bounds, fresh)
        policy = self._snapshots
        if policy is not None and replay.version - replay.snapshot_version >= policy.every:
            policy.keep(stream, replay.state, replay.place())
        return Loaded(str(aggregate_id), replay.state, replay.version, replay.position)

    def _replayed(self, stream: str, bounds: _Bounds, fresh: bool = False) -> _Replay[State]:
        replay = self._replay_from_snapshot(stream, bounds)
        if replay is None or fresh:
            replay = replay or _Replay(self.aggregate())
            self._replay(stream, replay, bounds, fresh)
        return replay

    def _replay_from_snapshot(self, stream: str, bounds: _Bounds) -> _Replay[State] | None:
        """Return the replay behind the snapshot; None if there is none that the stream confirms."""
        found = self._snapshots.find(stream) if self._snapshots is not None else None
        if found is None or not _within(found[0], bounds):
            return None
        snapshot, state = found
        replay = _Replay(
            state, snapshot.version, snapshot.position, snapshot.time_ms, snapshot.event_id
        )
        replay.snapshot_version = snapshot.version
        events = self.store.read(stream, after=snapshot.version - 1, to=bounds[0])
        first = next(events, None)
        if first is None or first.version != snapshot.version or str(first.id) != replay.event_id:
            # Another log, or its event was truncated. The second is fine if nothing is missing.
            if first is None or first.version != snapshot.version + 1:
                return None
            self._take(stream, replay, first)
        for event in events:
            if not _within(event, bounds):
                break
            self._take(stream, replay, event)
        return replay

    def _replay(
        self, stream: str, replay: _Replay[State], bounds: _Bounds, fresh: bool = False
    ) -> None:
        before = replay.version
        for event in self.store.read(stream, after=before, to=bounds[0], fresh=fresh):
            if not _within(event, bounds):
                break
            self._take(stream, replay, event)
        is_wanted = bounds[0] is None or bounds[0] > before
        if replay.version == before and is_wanted and self.store.version(stream) > before:
            # No event is readable up to the moment. It must not look as if there was none.
            first = next(self.store.read(stream, limit=1), None)
            if first is None or first.version > before + 1:
                raise _truncated(stream, before + 1)

    def _take(self, stream: str, replay: _Replay[State], event: StoredEvent) -> None:
        if event.version != replay.version + 1:
            raise _truncated(stream, replay.version + 1)
        if not event.type.startswith(RESERVED):
            replay.state = evolve(replay.state, self.codec.decode(event))
        replay.behind(event)

    # --- commands --------------------------------------------------------------------------------

    def execute(
        self,
        aggregate_id: str | uuid.UUID,
        command: Callable[[State], Any],
        *,
        command_id: str | uuid.UUID | None = None,
        context: Context | None = None,
        conditions: Sequence[Condition] = (),
        fresh: bool = False,
    ) -> Done[State]:
        """Run a command on an aggregate, and store the events that it returns, all or none.

        Commands on one aggregate run one after the other in a process. If a writer of another one
        was faster, the aggregate is loaded again and the command decides again.

        Args:
            command: gets the aggregate and returns events: one, several or none.
            command_id: makes the command idempotent: its events are stored once, however often
                and by however many processes it is executed with this id on this aggregate. A
                command that decides nothing leaves no trace.
            context: who, and why.
            conditions: rules about events of other streams, such as a name that is given once.

        Raises:
            VersionConflictError: other writers were faster in all attempts.
            ConditionFailedError: an event that a condition excludes is stored.
            OutcomeUnknownError: it is not known whether the events are stored. With a command id,
                execute it again.
            Exception: what the command raises.
        """
        stream = self.stream(aggregate_id)
        key = None if command_id is None else str(command_id)
        context = dataclasses.replace(context or Context(), command=key or "")
        tag = None if key is None else command_tag(stream, key)
        if (known := self._known(aggregate_id, tag)) is not None:
            return known
        with self._turns.of(stream):
            return self._run(aggregate_id, stream, command, context, tag, conditions, fresh)

    def _run(
        self,
        aggregate_id: str | uuid.UUID,
        stream: str,
        command: Callable[[State], Any],
        context: Context,
        tag: str | None,
        conditions: Sequence[Condition],
        fresh: bool,
    ) -> Done[State]:
        for attempt in range(self._retries.attempts):
            # Behind a conflict, this process has folded what it is in conflict with.
            loaded = self.load(aggregate_id, fresh=fresh)
            try:
                events = self.codec.decided(command(loaded.state))
            except Exception:
                # What it has seen may lack its own earlier success, in another process.
                if (known := self._known(aggregate_id, tag, fresh=True)) is not None:
                    return known
                raise
            if not events:
                return Done(loaded.id, loaded.state, loaded.version, loaded.position)
            # A command method must not have changed the aggregate: only apply does.
            try:
                return self._store(loaded, stream, events, context, tag, conditions)
            except ConflictError as error:
                if (known := self._known(aggregate_id, tag)) is not None:
                    return known
                is_race = isinstance(error, VersionConflictError)
                if not is_race or attempt + 1 >= self._retries.attempts:
                    raise
                time.sleep(self._retries.pause_s(attempt))
        raise AssertionError("unreachable")

    def save(
        self,
        loaded: Loaded[State],
        events: object,
        *,
        context: Context | None = None,
    ) -> Done[State]:
        """Store events of a loaded aggregate, if no other writer was faster.

        Raises:
            VersionConflictError: the stream has other events meanwhile.
        """
        stream, given = self.stream(loaded.id), self.codec.decided(events)
        if not given:
            return Done(loaded.id, loaded.state, loaded.version, loaded.position)
        return self._store(loaded, stream, given, context or Context(), None, ())

    def _store(
        self,
        loaded: Loaded[State],
        stream: str,
        events: Sequence[object],
        context: Context,
        tag: str | None,
        conditions: Sequence[Condition],
    ) -> Done[State]:
        new = [
            self.codec.encode(
                event,
                context,
                event_id=None if tag is None else uuid.uuid5(_NAMESPACE, f"{tag}/{number}"),
                tags=() if tag is None else (tag,),
            )
            for number, event in enumerate(events)
        ]
        if tag is not None:
            conditions = (*conditions, never_before(tag))
        done = append_surely(self.store, stream, new, loaded.version, conditions)
        state = loaded.state
        for event in events:
            state = evolve(state, event)
        version = loaded.version + len(events)
        position = done.positions[-1]
        return Done(loaded.id, state, version, position, tuple(events), done.repeated)

    def _known(
        self, aggregate_id: str | uuid.UUID, tag: str | None, *, fresh: bool = False
    ) -> Done[State] | None:
        """Return the outcome of a command that was done before; None if it was not.

        Raises:
            CommandRefusedError: it was refused.
        """
        if tag is None:
            return None
        query = (Query(tags=frozenset({tag})),)
        found = list(self.store.read_all(queries=query, fresh=fresh))
        if not found:
            return None
        stream = self.stream(aggregate_id)
        own = [each for each in found if each.stream == stream]
        if not own:  # a process manager has noted that it came to nothing
            raise CommandRefusedError(
                stream, tag.rpartition("/")[2], found[0].data.decode(errors="replace")
            )
        now = self.load(aggregate_id)
        events = tuple(self.codec.decode(each) for each in own)
        return Done(str(aggregate_id), now.state, now.version, now.position, events, repeated=True)


_Bounds = tuple[int | None, int | None, int | None]
"""The last version, time in milliseconds, and position; None is without a bound."""


@dataclasses.dataclass
class _Replay(Generic[State]):
    """A state and the place of its last event."""

    state: State
    version: int = 0
    position: int = 0
    time_ms: int = 0
    event_id: str = ""
    snapshot_version: int = 0

    def place(self) -> Snapshot:
        """Return the place of the state, without its bytes."""
        return Snapshot(0, self.version, self.position, self.time_ms, self.event_id, b"")

    def behind(self, event: StoredEvent) -> None:
        """Note that an event was applied."""
        self.version, self.position, self.event_id = event.version, event.position, str(event.id)
        self.time_ms = max(self.time_ms, event.time_ms)


def _truncated(stream: str, version: int) -> TruncatedStreamError:
    return TruncatedStreamError(
        f"stream {stream!r} has no event {version} any more: it was truncated",
        hint="Truncate a stream only behind an event that sums up the ones before.",
    )


def _within(place: StoredEvent | Snapshot, bounds: _Bounds) -> bool:
    given = (place.version, place.time_ms, place.position)
    return all(most is None or at <= most for at, most in zip(given, bounds, strict=True))


def command_tag(stream: str, command_id: str) -> str:
    """Return the tag that the events of a command have, or the note that it came to nothing."""
    return f"command:{stream}/{command_id}"


def never_before(*tags: str) -> Condition:
    """Return the condition that no event with these tags is stored yet."""
    return Condition((Query(tags=frozenset(tags)),))


def append_surely(
    store: Events,
    stream: str,
    events: Sequence[NewEvent],
    expected: Version = ANY,
    conditions: Sequence[Condition] = (),
) -> Appended:
    """Append events of one stream; see ``surely``."""
    return surely(lambda: store.append(stream, events, expected=expected, conditions=conditions))
