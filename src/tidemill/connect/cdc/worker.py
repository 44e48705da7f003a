"""The worker of one source: changes and the position after them in one Kafka transaction.

It starts by fencing its predecessor, which also decides that one's open transaction. Only then it
reads the stored position. So a crash at any point neither loses nor repeats a change for readers
with read_committed. After any error it ends, and its caller starts a new one. Must not know: a
particular database.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Protocol

import structlog

from tidemill import tracing
from tidemill.confluent.clients import Kafka
from tidemill.confluent.reading import read_table, read_to_end
from tidemill.connect.base.errors import ProducerFencedError
from tidemill.connect.base.producer import Producer, open_producer
from tidemill.connect.base.secrets import redact
from tidemill.connect.cdc.bad_rows import CAREFUL_BATCH_BYTES, ROW_ERRORS, Care, Level
from tidemill.connect.cdc.contract import Batch, Capture, Lag, Source, Table
from tidemill.connect.cdc.definition import Definition
from tidemill.connect.cdc.errors import FencedError, PositionLostError, SetupError
from tidemill.connect.cdc.routing import UNUSED_RULES, unused_rules
from tidemill.connect.cdc.snapshots import Snapshots
from tidemill.connect.cdc.state import KEY, WorkerState, notes_of
from tidemill.connect.cdc.topics import state_topic, transactional_id
from tidemill.connect.cdc.writer import Writer

IDLE_S = 0.1
"""How long a poll waits; commands are looked at as often."""
LAG_S = 2.0
"""How often the lag is measured."""
LEFT_OUT_S = 30.0
"""How often to look for tables that are not captured."""
MAX_CHANGES = 100_000
MAX_OPEN_S = 0.25
"""A transaction is committed when the source has nothing more, or after so much or so long."""
MANY_CHANGES = 500
LINGER_S = 0.005
"""A transaction with many changes waits a moment for more: the source is probably behind, and what
it sends during a commit waits. One with few changes does not wait, which would delay them."""

log = structlog.get_logger("tidemill.cdc")


class Control(Protocol):
    """Orders to a running worker, from another thread."""

    def should_stop(self) -> bool:
        """Return whether the worker is to end."""
        ...

    def snapshots(self, handled: dict[str, str]) -> list[tuple[str, str, str]]:
        """Return (command, its id, table) of the snapshots that are not in ``handled``."""
        ...

    def resnapshot(self, handled: dict[str, str]) -> str | None:
        """Return the id of an order to forget the position, if it is not in ``handled``."""
        ...

    def accepted_row(self) -> str | None:
        """Return the id of the bad row that the user has last accepted as a dead letter."""
        ...


class Worker:
    """Runs one source until it is stopped, or fails.

    Attributes:
        state: the stored state, for statuses. Another thread can read it.
        lag: the last measured lag.
        left_out: why tables that the patterns select are not captured, by their ids.
        phase: "starting" or "running".
        on_running: called in the worker's thread when capture begins.
    """

    def __init__(
        self,
        definition: Definition,
        kafka: Kafka,
        control: Control,
        make_source: Callable[[Capture], Source],
    ) -> None:
        self._definition = definition
        self._kafka = kafka
        self._control = control
        self._make_source = make_source
        self._client = transactional_id(definition.name)
        self.state = WorkerState()
        self.lag = Lag()
        self.left_out: Mapping[str, str] = {}
        self.phase = "starting"
        self._is_lost = False
        self.writer: Writer | None = None
        self.on_running: Callable[[Source], None] = lambda source: None

    @property
    def written(self) -> int:
        """The number of records that were committed."""
        return 0 if self.writer is None else self.writer.written

    def run(self) -> None:
        """Capture until ``should_stop``.

        After a row that can't be captured it starts again by itself, and writes row by row.

        Raises:
            FencedError: another worker of this source has started.
            RowError: a row can't be captured, and the policy of the source is to stop.
            TidemillError: anything else; a new worker continues from the stored position.
        """
        care = Care()
        while True:
            try:
                self._attempt(care)
                if self._control.should_stop():
                    return
                care = Care()
            except PositionLostError:
                # A server with a binary log says it while the stream is read, not at the start.
                if self._definition.on_lost_position != "resnapshot" or self._is_lost:
                    raise
                self._is_lost = True
            except ROW_ERRORS as error:
                if not care.learn(error):
                    raise
                log.warning(
                    "source.row_failed", source=self._definition.name, error=redact(str(error))
                )

    def _attempt(self, care: Care) -> None:
        """Capture until ``should_stop``, or until less care is enough."""
        producer = None
        source = None
        try:
            is_fast = care.level is Level.FAST
            producer = open_producer(
                self._kafka, self._client, None if is_fast else CAREFUL_BATCH_BYTES
            )
            stored = read_table(self._kafka, self._client, state_topic(self._definition.name))
            self.state = WorkerState.decode(stored.get(KEY))
            capture = replace(self._definition.capture(), notes=notes_of(stored))
            source = self._make_source(capture)
            self._capture(source, producer, care)
        except ProducerFencedError as error:
            raise FencedError(
                f"another worker of source {self._definition.name} has started, so this one stops",
                hint="One worker per source is enough. If the other one is not meant to run, stop "
                f"it and run: tidemill source restart {self._definition.name}",
            ) from error
        finally:
            if producer is not None:
                producer.close()
            if source is not None:
                source.close()

    def _capture(self, source: Source, producer: Producer, care: Care) -> None:
        state = self.state
        before = self.written
        writer = self.writer = Writer(self._kafka, producer, self._definition, state, care)
        writer.written = before
        is_accepted = state.accept(self._control.accepted_row())
        order = self._control.resnapshot(state.handled)
        if order is not None:
            state.handled["restart"] = order
        if self._is_lost:
            source.drop()  # a slot that is lost can't be used again
        first = self._start(source, writer, forget=self._is_lost or order is not None)
        self._is_lost = False
        snapshots = Snapshots(
            source,
            writer,
            state,
            lambda topic: read_to_end(self._kafka, self._client, topic),
            self._definition.chunk_rows,
        )
        try:
            tables = source.tables()
            self._report_unused_rules(tables)
            snapshots.know(tables)
            if first:
                batch = source.poll(0.0)  # its notes are stored together with the first position
                if batch is not None:
                    _take(batch, writer, snapshots)
            if first or is_accepted:  # a crash at the next bad row must not forget this one
                writer.commit()
                source.confirm(state.position or {})
            self.phase = "running"
            self.on_running(source)
            self._loop(source, writer, snapshots, care)
        finally:
            snapshots.close()

    def _start(self, source: Source, writer: Writer, *, forget: bool) -> bool:
        """Start the source, and return whether it started without a position."""
        state = self.state
        known = None if forget else state.position
        again = state.position is not None
        state.position = source.start(known)
        tables = source.tables()
        created = set(writer.prepare(tables))
        keyed = [each for each in tables if each.key]
        if known is not None:
            if self._definition.snapshot == "initial":
                for table in keyed:
                    if writer.topic(table) in created:
                        state.request(table.id, resync=True, why="its topic was missing")
            return False
        state.snapshots = []
        if self._definition.snapshot == "initial" or again:
            self._read_keyless(source, writer, [each for each in tables if not each.key])
            for table in keyed:
                # A topic that is there can have keys from before the state was lost.
                is_known = again or writer.topic(table) not in created
                state.request(table.id, resync=is_known)
        return True

    def _read_keyless(self, source: Source, writer: Writer, tables: list[Table]) -> None:
        """Read tables without a key, in one transaction: they can't be continued after a crash."""
        if not tables:
            return
        if self._definition.keyless != "all-columns":
            raise SetupError(
                f"table {tables[0].id} has no primary key",
                hint='keyless = "all-columns" or "skip" in the definition',
            )
        with source.read_consistent(tables) as read:
            for table, rows in read.rows:
                writer.write_rows(table, rows, read)
            self.state.position = read.position

    def _report_unused_rules(self, tables: list[Table]) -> None:
        for table in unused_rules(self._definition, tables):
            log.warning(
                "source.rules_without_effect",
                source=self._definition.name,
                table=table,
                why=UNUSED_RULES,
                hint=f"tidemill source check {self._definition.name} lists the captured tables",
            )

    def _look_for_left_out(self, source: Source) -> None:
        """Report tables that the patterns select and that are not captured, each once."""
        found = source.left_out()
        for table in sorted(found.keys() - self.left_out.keys()):
            log.warning(
                "source.table_left_out",
                source=self._definition.name,
                table=table,
                why=found[table],
                hint=f"tidemill source check {self._definition.name} names the statement",
            )
        self.left_out = found

    def _loop(self, source: Source, writer: Writer, snapshots: Snapshots, care: Care) -> None:
        opened = 0.0
        heartbeat = time.monotonic() + self._definition.heartbeat_s
        measure = look = 0.0
        while not self._control.should_stop():
            for command, number, table in self._control.snapshots(self.state.handled):
                self.state.handled[command] = number
                snapshots.request(table)
            stepped = snapshots.active and snapshots.step()
            busy = stepped or writer.pending > 0
            lingers = writer.pending >= MANY_CHANGES and not stepped
            batch = source.poll(LINGER_S if lingers else 0.0 if busy else IDLE_S)
            now = time.monotonic()
            if batch is not None:
                opened = opened if writer.pending else now
                _take(batch, writer, snapshots)
            full = writer.pending >= MAX_CHANGES or now - opened >= MAX_OPEN_S
            due = now >= heartbeat  # an idle worker learns here that it is fenced
            noted = batch is not None and bool(batch.notes or batch.resync)
            if (writer.pending and (batch is None or full)) or stepped or due or noted:
                self._commit(writer)
                if self.state.position is not None:
                    source.confirm(self.state.position)
                heartbeat = now + self._definition.heartbeat_s
                if care.is_calm() and not snapshots.active:
                    return
            if now >= measure:
                self.lag = source.lag()
                measure = now + LAG_S
            if now >= look:
                self._look_for_left_out(source)
                look = now + LEFT_OUT_S

    def _commit(self, writer: Writer) -> None:
        """Commit what is open; if these are changes, as a span."""
        if not writer.pending:
            writer.commit()
            return
        name, count = f"capture {self._definition.name}", writer.pending
        with tracing.span(name, "producer", {}, messaging__batch__message_count=count):
            writer.commit()


def _take(batch: Batch, writer: Writer, snapshots: Snapshots) -> None:
    """Take a batch into the open transaction."""
    if batch.schemas:
        writer.prepare(batch.schemas)
    snapshots.see(batch)
    writer.write(batch)
