"""Run one source in a thread: workers one after the other, with pauses after failures.

Must not know: a particular database, or the topic that orders come from.
"""

from __future__ import annotations

import os
import re
import socket
import threading
import time
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import structlog

from tidemill.confluent.clients import Kafka
from tidemill.connect.base.errors import RecordRefusedError, RecordTooLargeError
from tidemill.connect.base.secrets import redact
from tidemill.connect.cdc.contract import Capture, Source
from tidemill.connect.cdc.definition import Definition
from tidemill.connect.cdc.errors import FencedError, PermanentCaptureError, RowError, SetupError
from tidemill.connect.cdc.registry import source_class
from tidemill.connect.cdc.topics import dead_letter_topic, state_topic, transactional_id
from tidemill.connect.cdc.worker import Worker
from tidemill.errors import SettingsError, TidemillError

Phase = Literal[
    "created", "starting", "snapshot", "running", "paused", "waiting", "failed", "stopped"
]


@dataclass(slots=True)
class SourceStatus:
    """The status of a source, as workers publish it and ``source describe`` shows it.

    Attributes:
        phase: "waiting" restarts by itself after a failure, "failed" waits for the user.
        updated_ms: time of this status, in milliseconds since the epoch.
        worker: ``host:process id``.
        position: the stored position.
        lag_bytes: bytes of the database's log that are held back; None if unknown.
        lag_ms: age of the oldest change that is not in Kafka; None if unknown.
        lag_changes: number of such changes; None if unknown.
        written: records since the start of the worker.
        snapshots: progress by table: ``table``, ``rows``, ``estimate``, ``why`` it is read again.
        tables: the captured tables and their topics.
        error: the last error, or an empty string.
        hint: what to do about it.
        attempts: failures in a row.
        bad_row: the row at which the source has stopped, as ``BadRow.values`` has it.
        dead_letters: rows that were written to the dead-letter topic.
        left_out: why tables that the patterns select are not captured, by their ids.
    """

    source: str
    kind: str
    phase: Phase
    updated_ms: int
    worker: str = ""
    position: dict[str, Any] | None = None
    lag_bytes: int | None = None
    lag_ms: int | None = None
    lag_changes: int | None = None
    written: int = 0
    snapshots: list[dict[str, Any]] = field(default_factory=list)
    tables: dict[str, str] = field(default_factory=dict)
    error: str = ""
    hint: str = ""
    attempts: int = 0
    bad_row: dict[str, Any] | None = None
    dead_letters: int = 0
    left_out: dict[str, str] = field(default_factory=dict)

    def values(self) -> dict[str, Any]:
        """Return the status as JSON values."""
        return asdict(self)


FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 60.0
_LOOK_S = 0.05

log = structlog.get_logger("tidemill.cdc")

Commands = dict[str, dict[str, Any]]


class Runner:
    """Runs a source until ``stop``.

    Attributes:
        fenced: the error if another worker took over; the runner then waits for a restart.
        deleted: set when everything of the source in the database and in Kafka was removed.
    """

    def __init__(self, definition: Definition, kafka: Kafka, commands: Commands) -> None:
        self.definition = definition
        self._kafka = kafka
        self._lock = threading.Lock()
        self._commands = {key: dict(value) for key, value in commands.items()}
        self._stopping = threading.Event()
        self._restart = self._id("restart")
        self._phase: Phase = "starting"
        self._error: TidemillError | None = None
        self._attempts = 0
        self._worker: Worker | None = None
        self._tables: dict[str, str] = {}
        self.fenced: FencedError | None = None
        self.deleted = False
        self._thread = threading.Thread(
            target=self._run, name=f"source {definition.name}", daemon=True
        )

    # --- from the manager's thread -----------------------------------------------------------

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def order(self, commands: Commands) -> None:
        """Take over the present commands."""
        with self._lock:
            self._commands = {key: dict(value) for key, value in commands.items()}

    def stop(self) -> None:
        """Ask the thread to end; ``join`` waits for it."""
        self._stopping.set()

    def join(self, timeout_s: float) -> bool:
        """Wait for the thread, and return whether it has ended."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def status(self) -> SourceStatus:
        """Return the present status."""
        worker, error = self._worker, self._error
        status = SourceStatus(
            self.definition.name,
            self.definition.kind,
            self._phase,
            time.time_ns() // 1_000_000,
            worker=f"{socket.gethostname()}:{os.getpid()}",
            tables=dict(self._tables),
            error=" ".join(redact(str(error)).split()) if error else "",  # one line
            hint=self._hint(error) if error else "",
            attempts=self._attempts,
            bad_row=error.row.values() if isinstance(error, RowError) else None,
        )
        if worker is not None:
            state, lag = worker.state, worker.lag
            status.position = state.position
            status.lag_bytes, status.lag_ms, status.lag_changes = lag.bytes, lag.ms, lag.changes
            status.written = worker.written
            status.left_out = dict(worker.left_out)
            status.dead_letters = state.dead_letters
            status.snapshots = [
                {
                    "table": each.table,
                    "rows": each.rows,
                    "estimate": each.estimate,
                    "why": each.why,
                }
                for each in list(state.snapshots)
            ]
            if self._phase == "running" and status.snapshots:
                status.phase = "snapshot"
        return status

    # --- orders to the worker (Control) -------------------------------------------------------

    def should_stop(self) -> bool:
        """Return whether the worker is to end."""
        return (
            self._stopping.is_set() or self._paused() or self._wants_restart() or self._to_delete()
        )

    def snapshots(self, handled: dict[str, str]) -> list[tuple[str, str, str]]:
        """Return the snapshots that were ordered and not carried out."""
        with self._lock:
            wanted = [
                (key, str(each.get("id")), str(each.get("table")))
                for key, each in self._commands.items()
                if key.startswith("snapshot/")
            ]
        return [each for each in wanted if handled.get(each[0]) != each[1]]

    def resnapshot(self, handled: dict[str, str]) -> str | None:
        """Return the id of an order to take a new snapshot of everything."""
        with self._lock:
            order = self._commands.get("restart", {})
        number = str(order.get("id"))
        return number if order.get("resnapshot") and handled.get("restart") != number else None

    def accepted_row(self) -> str | None:
        """Return the id of the bad row that the user has last accepted as a dead letter."""
        with self._lock:
            row = self._commands.get("restart", {}).get("bad_row")
        return None if row is None else str(row)

    def running(self, source: Source, worker: Worker) -> None:
        """Take note of the tables of a source that has started."""
        if worker.writer is not None:
            self._tables = {table.id: worker.writer.topic(table) for table in source.tables()}

    # --- the thread --------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping.is_set():
            if self._to_delete():
                if self._delete():
                    return
                self._wait_for_order()
            elif self._paused():
                self._phase, self._worker = "paused", None
                time.sleep(_LOOK_S)
            else:
                self._attempt()
        self._phase = "stopped"

    def _attempt(self) -> None:
        """Run a worker to its end, and wait before the next one if it failed."""
        self._restart = self._id("restart")
        self._phase = "starting"
        started = time.monotonic()
        worker = Worker(self.definition, self._kafka, self, self._make_source)
        worker.on_running = self._is_running
        self._worker = worker
        try:
            worker.run()
        except FencedError as error:
            self.fenced = error
            self._failed(error, "failed")
            self._wait_for_order()
        except SetupError as error:
            # The user runs a statement in the database: the source then continues by itself.
            self._failed(error, "failed")
            self._wait_for_order(LONGEST_PAUSE_S)
        except (
            PermanentCaptureError,
            SettingsError,
            RecordTooLargeError,
            RecordRefusedError,
        ) as error:
            self._failed(error, "failed")
            self._wait_for_order()
        except Exception as error:
            found = error if isinstance(error, TidemillError) else None
            if found is None:
                found = TidemillError(f"unexpected {type(error).__name__}: {error}")
            if time.monotonic() - started > LONGEST_PAUSE_S:
                self._attempts = 0
            self._failed(found, "waiting")
            self._wait_for_order(min(FIRST_PAUSE_S * 2**self._attempts, LONGEST_PAUSE_S))
        self.fenced = None

    def _make_source(self, capture: Capture) -> Source:
        return source_class(self.definition.kind)(capture)

    def _is_running(self, source: Source) -> None:
        self._phase, self._error, self._attempts = "running", None, 0
        if self._worker is not None:
            self.running(source, self._worker)
        log.info("source.running", source=self.definition.name, tables=len(self._tables))

    def _failed(self, error: TidemillError, phase: Phase) -> None:
        is_same = self._error is not None and str(error) == str(self._error)
        self._phase, self._error = phase, error
        self._attempts += 1
        if is_same and phase == "failed":
            return  # it was logged
        report = log.error if phase == "failed" else log.warning
        report(
            "source.failed",
            source=self.definition.name,
            error=redact(str(error)),
            hint=self._hint(error),
            attempts=self._attempts,
        )

    def _hint(self, error: TidemillError) -> str:
        """Return what to do, with the name of this source in commands."""
        command = rf"\1 {self.definition.name}"
        return re.sub(r"(tidemill source \w+) NAME\b", command, redact(error.hint))

    def _wait_for_order(self, timeout_s: float | None = None) -> None:
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        deleting, paused = self._to_delete(), self._paused()
        while not self._stopping.wait(_LOOK_S):
            if self._wants_restart() or self._to_delete() != deleting or self._paused() != paused:
                return
            if deadline is not None and time.monotonic() > deadline:
                return

    def _delete(self) -> bool:
        """Remove everything of the source but the tables' topics. Return whether it worked."""
        self._phase = "stopped"
        self._restart = self._id("restart")
        name = self.definition.name
        try:
            source = self._make_source(self.definition.capture())
            try:
                topics = [f"{self.definition.topic_prefix}.{t.id}" for t in source.tables()]
                topics.append(dead_letter_topic(self.definition.topic_prefix))
                source.drop()
            finally:
                source.close()
            with self._lock:
                with_topics = bool(self._commands.get("delete", {}).get("topics"))
            self._kafka.delete_topics(
                transactional_id(name), [state_topic(name), *(topics if with_topics else [])]
            )
        except Exception as error:
            found = error if isinstance(error, TidemillError) else TidemillError(str(error))
            self._failed(found, "failed")
            return False
        self.deleted = True
        log.info("source.deleted", source=name)
        return True

    def _id(self, command: str) -> str:
        with self._lock:
            return str(self._commands.get(command, {}).get("id", ""))

    def _wants_restart(self) -> bool:
        return self._id("restart") != self._restart

    def _paused(self) -> bool:
        with self._lock:
            return bool(self._commands.get("pause", {}).get("paused"))

    def _to_delete(self) -> bool:
        with self._lock:
            return "delete" in self._commands
