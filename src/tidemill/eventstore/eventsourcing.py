"""Persistence for applications of the library ``eventsourcing`` (9.5) in stores of tidemill.

    PERSISTENCE_MODULE=tidemill.eventstore.eventsourcing
    TIDEMILL_BOOTSTRAP_SERVERS=localhost:9092

Each application has a store of its own in the topic ``<application>.events``; snapshots and
tracking records of projections have others. Notification ids are the store's positions, dense
unless the application is a process that handles events without recording any. Must not know: the
store's inside.

An originator's version is a number from 0 or 1, and versions of snapshots have holes, so it is in
the event's metadata, and not the version of the stream. The event's id is derived from originator
and version, so the store itself refuses the second event with a version.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import orjson
from eventsourcing.persistence import (
    AggregateRecorder,
    ApplicationRecorder,
    InfrastructureFactory,
    IntegrityError,
    Notification,
    OperationalError,
    ProcessRecorder,
    ProgrammingError,
    StoredEvent,
    Subscription,
    Tracking,
    TrackingRecorder,
)
from eventsourcing.utils import resolve_topic, strtobool

from tidemill.confluent.clients import Kafka
from tidemill.errors import TidemillError
from tidemill.eventstore import events as own
from tidemill.eventstore.errors import (
    ConditionFailedError,
    IdConflictError,
    VersionConflictError,
)
from tidemill.eventstore.store import Store

BOOTSTRAP_SERVERS = "TIDEMILL_BOOTSTRAP_SERVERS"
PROPERTIES = "TIDEMILL_PROPERTIES"
"""Librdkafka's properties, as ``key=value`` in lines."""
TOPIC_PREFIX = "TIDEMILL_TOPIC_PREFIX"
"""The beginning of the names of topics, e.g. ``shop.``."""
INDEX_FOLDER = "TIDEMILL_INDEX_FOLDER"
"""The folder of the indexes of this machine; by default in the user's cache."""
CREATE = "CREATE_TABLE"
"""Whether topics are created that are missing; the name that other modules use."""

_NAMESPACE = uuid.UUID("5f0b7a52-3f6a-5d0e-9a4c-0e8a1c7d2b11")
_KNOWN_STREAMS = 10_000
_EVENTS = "events"
_TRACKING = "tracking"


class _Known(NamedTuple):
    """The end of an originator's stream.

    Attributes:
        events: the number of its events.
        first: the originator's version of the first one.
        last: that of the last one.
    """

    events: int
    first: int
    last: int

    @property
    def is_contiguous(self) -> bool:
        """Whether no version is missing between the first and the last."""
        return self.last - self.first + 1 == self.events


class TidemillRecorder:
    """The store that recorders are over. Threads can share it."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def _commit(
        self, appends: list[own.StreamAppend], conditions: Sequence[own.Condition] = ()
    ) -> range:
        """Store events; return their positions.

        Raises:
            IntegrityError: a version of an originator is stored already.
            OperationalError: the store can't be reached, or the outcome is not known.
        """
        try:
            commit = partial(self.store.commit, appends, conditions=conditions)
            return own.surely(commit).positions
        except IdConflictError as error:
            raise IntegrityError(str(error)) from error
        except (VersionConflictError, ConditionFailedError):
            raise
        except TidemillError as error:
            raise OperationalError(str(error)) from error


class TidemillAggregateRecorder(TidemillRecorder, AggregateRecorder):
    """Records the events of originators, each in a stream ``events-<id>``."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._known: dict[str, _Known] = {}

    def insert_events(
        self, stored_events: Sequence[StoredEvent], **kwargs: Any
    ) -> Sequence[int] | None:
        """Store events, all or none. Recorders of aggregates return None."""
        self._insert(stored_events, **kwargs)
        return None

    def _insert(
        self, stored_events: Sequence[StoredEvent], tracking: Tracking | None = None, **_: Any
    ) -> list[int]:
        if not stored_events and tracking is None:
            return []
        # Another writer of the same originator, or of the same tracking: look again.
        while True:
            more = self._tracked(tracking)
            try:
                appends = self._appends(stored_events, more)
                positions = self._commit(appends, more.conditions)
            except (VersionConflictError, ConditionFailedError):
                for each in stored_events:
                    self._known.pop(_stream(each.originator_id), None)
                continue
            self._remember(stored_events)
            return list(positions)[: len(stored_events)]

    def _tracked(self, tracking: Tracking | None) -> _Tracked:
        if tracking is not None:
            raise ProgrammingError("this recorder does not record tracking")
        return _Tracked()

    def _appends(self, stored: Sequence[StoredEvent], more: _Tracked) -> list[own.StreamAppend]:
        """Return what is to be stored, with the number of events that each stream has now."""
        nonce = uuid.uuid4().hex
        parts: dict[str, list[own.NewEvent]] = {}
        last: dict[str, int] = {}
        for each in stored:
            stream = _stream(each.originator_id)
            before = last.get(stream)
            if before is None and (known := self._end(stream)) is not None:
                before = known.last
            if before is not None and each.originator_version <= before:
                raise IntegrityError(
                    f"originator {each.originator_id} has version {before}, so version "
                    f"{each.originator_version} can't be stored"
                )
            last[stream] = each.originator_version
            content = {"version": each.originator_version, "nonce": nonce}
            if not isinstance(each.originator_id, str):
                content["uuid"] = True
            is_first = not parts
            if more.tracking is not None and is_first:
                content["tracking"] = more.tracking
            parts.setdefault(stream, []).append(
                own.NewEvent(
                    each.topic,
                    each.state,
                    uuid.uuid5(_NAMESPACE, f"{stream}/{each.originator_version}"),
                    orjson.dumps(content),
                    more.tags if is_first else frozenset(),
                )
            )
        appends = [
            own.StreamAppend(stream, tuple(events), self._count(stream))
            for stream, events in parts.items()
        ]
        if not appends:
            appends = [more.alone()]
        return appends

    def _count(self, stream: str) -> int:
        known = self._end(stream)
        return known.events if known is not None else 0

    def _end(self, stream: str) -> _Known | None:
        """Return the end of a stream as this process knows it; None if it is empty."""
        found = self._known.get(stream)
        count = self.store.version(stream)
        if found is not None and found.events >= count:
            return found
        if not count:
            return None
        first = next(self.store.read(stream, limit=1))
        last = next(self.store.read(stream, backwards=True, limit=1))
        known = _Known(last.version, _version(first), _version(last))
        self._keep(stream, known)
        return known

    def _keep(self, stream: str, known: _Known) -> None:
        if len(self._known) >= _KNOWN_STREAMS:
            self._known.clear()
        self._known[stream] = known

    def _remember(self, stored: Sequence[StoredEvent]) -> None:
        for each in stored:
            stream, version = _stream(each.originator_id), each.originator_version
            known = self._known.get(stream)
            if known is None:
                self._end(stream)
            elif known.last < version:
                self._keep(stream, _Known(known.events + 1, known.first, version))

    def select_events(
        self,
        originator_id: uuid.UUID | str,
        *,
        gt: int | None = None,
        lte: int | None = None,
        desc: bool = False,
        limit: int | None = None,
    ) -> Sequence[StoredEvent]:
        """Return events of an originator by their versions."""
        stream = _stream(originator_id)
        after, to = self._bounds(stream, gt, lte)
        found: list[StoredEvent] = []
        if limit is not None and limit <= 0:
            return found
        for each in self.store.read(stream, after=after, to=to, backwards=desc):
            version = _version(each)
            if (gt is None or version > gt) and (lte is None or version <= lte):
                found.append(StoredEvent(originator_id, version, each.type, each.data))
                if len(found) == limit:
                    break
        return found

    def _bounds(self, stream: str, gt: int | None, lte: int | None) -> tuple[int, int | None]:
        """Return bounds of the stream's versions for those of the originator's."""
        known = self._end(stream) if gt is not None or lte is not None else None
        if known is None or not known.is_contiguous:
            return 0, None
        after = 0 if gt is None else max(0, gt - known.first + 1)
        # Versions behind the known end are contiguous, or not: they are compared one by one.
        after = min(after, known.events)
        to = None if lte is None or lte > known.last else max(0, lte - known.first + 1)
        return after, to


class TidemillApplicationRecorder(TidemillAggregateRecorder, ApplicationRecorder):
    """Records the events of an application, which have positions as notification ids."""

    def insert_events(
        self, stored_events: Sequence[StoredEvent], **kwargs: Any
    ) -> Sequence[int] | None:
        """Store events, all or none, and return their notification ids."""
        return self._insert(stored_events, **kwargs)

    def select_notifications(
        self,
        start: int | None,
        limit: int,
        stop: int | None = None,
        topics: Sequence[str] = (),
        *,
        inclusive_of_start: bool = True,
    ) -> Sequence[Notification]:
        """Return events in the order of their notification ids."""
        after = 0 if start is None else start - 1 if inclusive_of_start else start
        found = self.store.read_all(
            after=max(after, 0),
            to=stop,
            queries=_queries(topics),
            category=_EVENTS,
            limit=limit,
        )
        return [_notification(each) for each in found]

    def max_notification_id(self) -> int | None:
        """Return the last notification id; None if there is none."""
        last = self.store.read_all(category=_EVENTS, backwards=True, limit=1)
        return next((each.position for each in last), None)

    def subscribe(
        self, gt: int | None = None, topics: Sequence[str] = ()
    ) -> Subscription[ApplicationRecorder]:
        """Return an iterator of events behind a notification id, and of what comes."""
        return TidemillSubscription(self, gt, topics)


class TidemillSubscription(Subscription[TidemillApplicationRecorder]):
    """Follows a store. ``stop`` ends it immediately, from any thread."""

    def __init__(
        self,
        recorder: TidemillApplicationRecorder,
        gt: int | None = None,
        topics: Sequence[str] = (),
    ) -> None:
        super().__init__(recorder, gt, topics)
        self._following = recorder.store.follow(
            after=gt or 0, queries=_queries(topics), category=_EVENTS
        )

    def stop(self) -> None:
        """End the iteration."""
        super().stop()
        self._following.close()

    def __next__(self) -> Notification:
        if self._has_been_stopped:
            raise StopIteration
        found = _notification(next(self._following))
        if self._has_been_stopped:
            raise StopIteration
        self._last_notification_id = found.id
        return found


class _Tracked(NamedTuple):
    """The parts of a commit that record how far another application was processed."""

    name: str = ""
    tracking: list[Any] | None = None
    tags: frozenset[str] = frozenset()
    conditions: tuple[own.Condition, ...] = ()

    def alone(self) -> own.StreamAppend:
        """Return a commit of the tracking record without any events."""
        content = orjson.dumps({"tracking": self.tracking})
        event = own.NewEvent(_TRACKING, metadata=content, tags=self.tags)
        return own.StreamAppend(f"{_TRACKING}-{self.name}", (event,))


class TidemillTrackingRecorder(TidemillRecorder, TrackingRecorder):
    """Records how far other applications were processed: ids that only grow."""

    def insert_tracking(self, tracking: Tracking) -> None:
        """Record a notification id that was processed.

        Raises:
            IntegrityError: it is not above the last one.
        """
        while True:
            more = self._tracked(tracking)
            try:
                self._commit([more.alone()], more.conditions)
                return
            except ConditionFailedError:
                continue

    def _tracked(self, tracking: Tracking | None) -> _Tracked:
        if tracking is None:
            return _Tracked()
        name, number = tracking.application_name, tracking.notification_id
        position, last = self._last(name)
        if last is not None and number <= last:
            raise IntegrityError(f"tracking id {number} of {name!r} is not above {last}")
        tags = frozenset({f"tracking:{name}"})
        return _Tracked(
            name, [name, number], tags, (own.Condition((own.Query(tags=tags),), position),)
        )

    def _last(self, name: str) -> tuple[int, int | None]:
        """Return the position and the id of the last tracking record of an application."""
        query = own.Query(tags=frozenset({f"tracking:{name}"}))
        for each in self.store.read_all(queries=[query], backwards=True, limit=1):
            return each.position, int(orjson.loads(each.metadata)["tracking"][1])
        return 0, None

    def max_tracking_id(self, application_name: str) -> int | None:
        """Return the last recorded id of an application; None if there is none."""
        return self._last(application_name)[1]


class TidemillProcessRecorder(
    TidemillTrackingRecorder, TidemillApplicationRecorder, ProcessRecorder
):
    """Records events together with the tracking record of what has caused them."""

    def __init__(self, store: Store) -> None:
        TidemillApplicationRecorder.__init__(self, store)


class TidemillFactory(InfrastructureFactory[TidemillTrackingRecorder]):
    """Makes the recorders of an application. ``close`` closes their stores."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self._stores: dict[str, Store] = {}
        self._lock = threading.Lock()

    def aggregate_recorder(self, purpose: str = _EVENTS) -> AggregateRecorder:
        """Return a recorder of aggregates, e.g. for the purpose ``snapshots``."""
        return TidemillAggregateRecorder(self._store(purpose))

    def application_recorder(self) -> ApplicationRecorder:
        """Return the recorder of the application."""
        made: type[TidemillApplicationRecorder] = self._class(
            self.APPLICATION_RECORDER_TOPIC, TidemillApplicationRecorder
        )
        return made(self._store(_EVENTS))

    def tracking_recorder(
        self, tracking_recorder_class: type[TidemillTrackingRecorder] | None = None
    ) -> TidemillTrackingRecorder:
        """Return a recorder of tracking records alone."""
        made = tracking_recorder_class or self._class(
            self.TRACKING_RECORDER_TOPIC, TidemillTrackingRecorder
        )
        return made(self._store(_TRACKING))

    def process_recorder(self) -> ProcessRecorder:
        """Return the recorder of an application that processes events of others."""
        made: type[TidemillProcessRecorder] = self._class(
            self.PROCESS_RECORDER_TOPIC, TidemillProcessRecorder
        )
        return made(self._store(_EVENTS))

    def _class(self, variable: str, default: type[Any]) -> type[Any]:
        topic = self.env.get(variable)
        found = resolve_topic(topic) if topic else default
        if not (isinstance(found, type) and issubclass(found, default)):
            raise ProgrammingError(f"{variable} is {topic}, which is not a {default.__name__}")
        return found

    def _store(self, purpose: str) -> Store:
        with self._lock:
            if purpose not in self._stores:
                name = f"{self.env.get(TOPIC_PREFIX, '')}{self.env.name or 'application'}"
                create = strtobool(self.env.get(CREATE, "yes"))
                kafka = kafka_of(self.env.get)
                try:
                    folder = self.env.get(INDEX_FOLDER) or None
                    made = Store(kafka, f"{name}.{purpose}", create=create, folder=folder)
                except TidemillError as error:
                    raise OperationalError(f"{error}. {error.hint}") from error
                self._stores[purpose] = made
            return self._stores[purpose]

    def close(self) -> None:
        """Close the stores of all recorders."""
        with self._lock:
            for each in self._stores.values():
                each.close()
            self._stores.clear()


def kafka_of(get: Callable[[str], str | None]) -> Kafka:
    """Return the cluster that variables name.

    Raises:
        ProgrammingError: a property is not ``key=value``.
    """
    properties: dict[str, str] = {}
    for line in (get(PROPERTIES) or "").splitlines():
        key, equals, value = line.partition("=")
        if line.strip() and not (equals and key.strip()):
            raise ProgrammingError(f"{PROPERTIES} has the line {line!r}: expected key=value")
        if line.strip():
            properties[key.strip()] = value.strip()
    return Kafka(get(BOOTSTRAP_SERVERS) or "localhost:9092", properties)


def _stream(originator_id: uuid.UUID | str) -> str:
    return f"{_EVENTS}-{originator_id}"


def _version(event: own.StoredEvent) -> int:
    return int(orjson.loads(event.metadata)["version"])


def _queries(topics: Sequence[str]) -> tuple[own.Query, ...]:
    return (own.Query(types=frozenset(topics)),) if topics else ()


def _notification(event: own.StoredEvent) -> Notification:
    content: Mapping[str, Any] = orjson.loads(event.metadata)
    text = event.stream.partition("-")[2]
    originator: uuid.UUID | str = uuid.UUID(text) if content.get("uuid") else text
    return Notification(
        originator_id=originator,
        originator_version=int(content["version"]),
        topic=event.type,
        state=event.data,
        id=event.position,
    )
