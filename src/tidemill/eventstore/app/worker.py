"""Run process managers: decide about events, run commands, let time-outs happen.

The store has all that a worker knows, so it can be killed at any time, and several workers can run
the same process: each decision, each command and each time-out happens once.

The worker follows the store. An event that a process reacts to gets a *decision*, one commit in the
process's stream. When the decision itself comes back, its commands are run. Each command has one
outcome under its id, for which the log decides: the events of the aggregate, or a note in the
process's stream that it was refused or changed nothing. Must not know: brokers, databases.
"""

from __future__ import annotations

import heapq
import logging
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tidemill.errors import UnreachableError
from tidemill.eventstore.app import process as contents
from tidemill.eventstore.app.context import Context
from tidemill.eventstore.app.errors import CommandRefusedError, ProcessFailedError
from tidemill.eventstore.app.handlers import handlers, taking
from tidemill.eventstore.app.process import (
    CHECKPOINT,
    CHECKPOINTS,
    DECIDED,
    DECISIONS,
    REFUSALS,
    REFUSED,
    UNCHANGED,
    Checkpoint,
    Decision,
    OpenTimeout,
    Refused,
    StoredCommand,
    timeout_tag,
)
from tidemill.eventstore.app.repository import (
    Repository,
    append_surely,
    command_tag,
    never_before,
)
from tidemill.eventstore.errors import (
    ConditionFailedError,
    ConflictError,
    IdConflictError,
    OutcomeUnknownError,
)
from tidemill.eventstore.events import Condition, Events, NewEvent, Query, StoredEvent

_NAMESPACE = uuid.UUID("0d5b0f76-52b5-5b60-8f5a-6a1f0d9c9d52")
_log = logging.getLogger("tidemill.eventstore")

Starts = Mapping[type, Callable[..., str | None]]


class ProcessWorker:
    """Runs the process managers of one class. One thread uses it.

    Args:
        processes: their repository. Their class has methods ``on_…``.
        targets: the repositories of the aggregates that get commands.
        starts: functions for events of other streams, that no command of the process has caused,
            by their class. They get the event (and, as a second argument, the stored event), and
            return the id of the process that it belongs to, or None.
        refusals: the exceptions with which aggregates refuse commands. The process gets
            ``Refused``. Any other exception stops the worker, and the command is tried again.
        now_ms: the wall clock, for time-outs.
        checkpoint_every: after so many events the worker stores where it is. A new one handles the
            events behind that again, which changes nothing.
    """

    def __init__(
        self,
        processes: Repository[Any],
        targets: Sequence[Repository[Any]],
        *,
        starts: Starts | None = None,
        refusals: tuple[type[Exception], ...] = (),
        now_ms: Callable[[], int] = lambda: int(time.time() * 1000),
        checkpoint_every: int = 1000,
    ) -> None:
        self._processes = processes
        self._store: Events = processes.store
        self._codec = processes.codec
        self._starts = {event: taking(function) for event, function in (starts or {}).items()}
        self._refusals = refusals
        self._now_ms = now_ms
        self._checkpoint_every = checkpoint_every
        self._categories = contents.classes_of(targets)
        self._targets = {each.category: each for each in targets}
        self._classes = {category: owner for owner, category in self._categories.items()}
        (owner,) = contents.classes_of([processes])
        self._reactions = {
            event: taking(method) for event, method in handlers(owner, "on_").items()
        }
        own = (each for each in self._reactions if each is not Refused)
        types = self._codec.names(own) | {DECIDED, REFUSED}
        self._queries = (Query(types=types),)
        self._worker_stream = f"{processes.category}.worker-checkpoints"
        self._open: dict[tuple[str, str], OpenTimeout] = {}
        self._due: list[tuple[int, str, str]] = []
        self._position = self._handled = 0
        self._resume()

    @property
    def open_timeouts(self) -> list[OpenTimeout]:
        """The time-outs that have not happened yet, the next one first."""
        return sorted(self._open.values(), key=lambda each: each.timeout.due_ms)

    # --- the loop --------------------------------------------------------------------------------

    def run(self, stop: Callable[[], bool] | threading.Event, *, wait_s: float = 0.25) -> None:
        """Work until ``stop`` says so.

        Args:
            wait_s: how long a stop can take.

        Raises:
            ProcessFailedError: a process can't handle an event, or a command failed.
        """
        stopped = stop.is_set if isinstance(stop, threading.Event) else stop
        while not stopped():
            self.step(wait_s, stopped)

    def step(self, wait_s: float = 0, stopped: Callable[[], bool] = lambda: False) -> int:
        """Do what there is to do. Return the number of events that were handled.

        Args:
            wait_s: how long to wait for another event.
        """
        fired = self._fire()
        known = self._store.position()
        handled = 0
        for event in self._store.follow(
            after=self._position, queries=self._queries, wait_s=self._wait_s(wait_s)
        ):
            self._handle(event)
            self._position = event.position
            handled += 1
            if stopped() or self._is_due() or self._handled >= self._checkpoint_every:
                break
        else:
            # No event up to there was for this process.
            self._position = max(self._position, known)
        if self._handled >= self._checkpoint_every:
            self._store_checkpoint()
        return fired + handled

    def _handle(self, event: StoredEvent) -> None:
        self._handled += 1
        own = self._processes.id_of(event.stream)
        if own is not None:
            self._open.pop((event.stream, event.type), None)  # it is what a time-out has become
        try:
            if event.type == DECIDED:
                if own is not None:
                    self._carry_out(event)
                return
            content = self._content(event)
            id_ = self._process_of(event, own, content)
            if id_ is not None and type(content) in self._reactions:
                self._decide(id_, event, content)
        except (OutcomeUnknownError, UnreachableError):
            raise
        except Exception as error:
            raise ProcessFailedError(
                f"process {self._processes.category!r} can't handle {event.type!r} at position "
                f"{event.position}: {error!r}",
                hint="Correct the cause and start the worker again: it continues there.",
            ) from error

    def _content(self, event: StoredEvent) -> Any:
        if event.type == REFUSED:
            return REFUSALS.validate_json(event.data)
        return self._codec.decode(event)

    def _process_of(self, event: StoredEvent, own: str | None, content: object) -> str | None:
        """Return the id of the process that an event belongs to, or None."""
        if own is not None:
            return own
        start = self._starts.get(type(content))
        if start is not None and (id_ := start(content, event)) is not None:
            return id_
        return self._processes.id_of(Context.decode(event.metadata).process)

    # --- decisions -------------------------------------------------------------------------------

    def _decide(self, id_: str, cause: StoredEvent, content: object) -> None:
        """Store what the process decides about an event, unless it is stored already."""
        stream = self._processes.stream(id_)
        tag = f"cause:{stream}/{cause.id}"
        if self._exists(tag):
            return
        while True:
            loaded = self._processes.load(id_)
            reactions = self._reactions[type(content)](loaded.state, content, cause)
            decision, events = contents.decide(reactions, cause, self._codec, self._categories)
            mark = self._mark(stream, tag, decision, cause)
            context = Context.decode(mark.metadata)
            own = [
                self._codec.encode(each, context, event_id=uuid.uuid5(mark.id, f"event/{number}"))
                for number, each in enumerate(events)
            ]
            try:
                never = (never_before(tag),)
                append_surely(self._store, stream, [mark, *own], loaded.version, never)
                return
            except ConflictError as error:
                if self._exists(tag, fresh=True):
                    return
                if isinstance(error, IdConflictError):
                    raise

    def _mark(self, stream: str, tag: str, decision: Decision, cause: StoredEvent) -> NewEvent:
        names = {each.type for each in decision.timeouts} | set(decision.cancelled)
        return NewEvent(
            type=DECIDED,
            data=DECISIONS.dump_json(decision),
            id=uuid.uuid5(_NAMESPACE, tag),
            metadata=self._context(stream).because_of(cause).encode(),
            tags=frozenset({tag, *(timeout_tag(stream, name) for name in names)}),
        )

    def _context(self, stream: str) -> Context:
        return Context(actor=f"process:{self._processes.category}", process=stream)

    # --- commands --------------------------------------------------------------------------------

    def _carry_out(self, mark: StoredEvent) -> None:
        """Run the commands of a decision, and note its time-outs."""
        decision = DECISIONS.validate_json(mark.data)
        for number, command in enumerate(decision.commands):
            self._run(command, mark, contents.command_id(mark.id, number))
        for name in decision.cancelled:
            self._open.pop((mark.stream, name), None)
        for timeout in decision.timeouts:
            self._add(OpenTimeout(mark.stream, str(mark.id), mark.position, timeout))

    def _run(self, command: StoredCommand, mark: StoredEvent, id_: str) -> None:
        target = self._targets[command.category]
        tag = command_tag(target.stream(command.to), id_)
        if self._exists(tag):  # a worker that was killed has run it
            return
        run = contents.bound(command, self._classes[command.category])
        context = self._context(mark.stream).because_of(mark)
        try:
            done = target.execute(command.to, run, command_id=id_, context=context)
        except CommandRefusedError:
            return  # the note of an earlier run says so
        except self._refusals as error:
            refused = Refused(command.method, command.to, str(error), type(error).__name__)
            self._note(mark.stream, REFUSED, REFUSALS.dump_json(refused), tag)
            return
        if not done.events:
            self._note(mark.stream, UNCHANGED, b"{}", tag)

    def _note(self, stream: str, kind: str, data: bytes, tag: str) -> None:
        """Note the outcome of a command without events, unless it has another one."""
        note = NewEvent(
            type=kind, data=data, id=uuid.uuid5(_NAMESPACE, f"note/{tag}"), tags=frozenset({tag})
        )
        try:
            append_surely(self._store, stream, [note], conditions=(never_before(tag),))
        except (ConditionFailedError, IdConflictError):
            _log.debug("the command of %s has another outcome", tag)

    # --- time-outs -------------------------------------------------------------------------------

    def _add(self, each: OpenTimeout) -> None:
        self._open[each.stream, each.timeout.type] = each
        heapq.heappush(self._due, (each.timeout.due_ms, each.stream, each.timeout.type))

    def _next(self) -> OpenTimeout | None:
        """Return the time-out that is due first."""
        while self._due:
            due_ms, *key = self._due[0]
            found = self._open.get((key[0], key[1]))
            if found is not None and found.timeout.due_ms == due_ms:
                return found
            heapq.heappop(self._due)  # it was cancelled, replaced or has happened
        return None

    def _is_due(self) -> bool:
        found = self._next()
        return found is not None and found.timeout.due_ms <= self._now_ms()

    def _wait_s(self, most_s: float) -> float:
        found = self._next()
        if found is None:
            return most_s
        return min(most_s, max(0.0, (found.timeout.due_ms - self._now_ms()) / 1000))

    def _fire(self) -> int:
        """Append the events of time-outs that are due. Return how many."""
        now, fired = self._now_ms(), 0
        while (each := self._next()) is not None and each.timeout.due_ms <= now:
            tag = timeout_tag(each.stream, each.timeout.type)
            set_by = uuid.UUID(each.set_by)
            event = NewEvent(
                type=each.timeout.type,
                data=each.timeout.data.encode(),
                id=uuid.uuid5(set_by, f"timeout/{each.timeout.type}"),
                metadata=self._context(each.stream).encode(),
                tags=frozenset({tag}),
                schema=each.timeout.schema,
            )
            # Whatever sets, cancels or is this time-out behind its decision comes before it.
            untouched = Condition((Query(tags=frozenset({tag})),), after=each.position)
            try:
                append_surely(self._store, each.stream, [event], conditions=(untouched,))
                fired += 1
            except (ConditionFailedError, IdConflictError):
                _log.debug("time-out %s was cancelled or has happened", tag)
            # Only now: if the outcome is not known, it is due again.
            self._open.pop((each.stream, each.timeout.type))
        return fired

    # --- where it is -----------------------------------------------------------------------------

    def _resume(self) -> None:
        """Continue at the last checkpoint in the store."""
        stored = self._store.read(self._worker_stream, backwards=True, limit=1, fresh=True)
        for each in stored:
            found = CHECKPOINTS.validate_json(each.data)
            self._position = found.position
            for timeout in found.timeouts:
                self._add(timeout)

    def _store_checkpoint(self) -> None:
        made = Checkpoint(self._position, tuple(self.open_timeouts))
        event = NewEvent(type=CHECKPOINT, data=CHECKPOINTS.dump_json(made))
        append_surely(self._store, self._worker_stream, [event])
        self._handled = 0

    def _exists(self, tag: str, *, fresh: bool = False) -> bool:
        query = (Query(tags=frozenset({tag})),)
        return any(True for _ in self._store.read_all(queries=query, limit=1, fresh=fresh))
