"""What a source must know again after a restart is stored with its position."""

from __future__ import annotations

from typing import Any, cast

from tests.connect.conftest import RunningWorker
from tests.support.logged import logged
from tests.support.snapshots import TABLE, FakeSource, FakeWriter
from tidemill.confluent.clients import Kafka
from tidemill.confluent.reading import read_table
from tidemill.connect.cdc.contract import Batch, Capture, Source
from tidemill.connect.cdc.definition import Definition, parse
from tidemill.connect.cdc.snapshots import Snapshots
from tidemill.connect.cdc.state import WorkerState, notes_of
from tidemill.connect.cdc.topics import state_topic
from tidemill.connect.cdc.writer import Writer


class NotingSource(FakeSource):
    """A source whose batches have notes."""

    def __init__(self, capture: Capture, batches: list[Batch]) -> None:
        super().__init__()
        self.capture = capture
        self.batches = batches

    def poll(self, timeout_s: float, limit: int = 3) -> Batch | None:
        return self.batches.pop(0) if self.batches else super().poll(timeout_s, limit)


def _definition(name: str) -> Definition:
    return parse({"name": name, "kind": "sqlite", "database": {"path": "unused"}})


def _run(definition: Definition, kafka: Kafka, *batches: Batch) -> NotingSource:
    """Run a worker until the batches are stored; return its source."""
    made: list[NotingSource] = []
    waiting = list(batches)

    def make(capture: Capture) -> Any:
        made.append(NotingSource(capture, waiting))
        return made[-1]

    running = RunningWorker(definition, kafka)
    running.worker._make_source = make
    topic = state_topic(definition.name)

    def is_stored() -> bool:
        wanted = {name: note for batch in batches for name, note in batch.notes.items()}
        stored = notes_of(read_table(kafka, "tests", topic))
        return not waiting and all(stored.get(name) == wanted[name] for name in wanted)

    with running:
        running.wait_for_snapshots()
        running.wait(is_stored, "the notes are stored")
    return made[-1]


def test_the_next_source_gets_the_notes_of_all_before_it(kafka: Kafka, name: str) -> None:
    definition = _definition(name)
    first = _run(
        definition,
        kafka,
        Batch([], {"n": 0}, notes={"a": "1", "é/b": "2", "c": "3"}),
        Batch([], {"n": 0}, notes={"a": "4", "c": None}),
    )
    assert first.capture.notes == {}
    assert _run(definition, kafka).capture.notes == {"a": "4", "é/b": "2"}


def test_a_table_that_is_read_again_says_why_and_what_was_done() -> None:
    source, state = FakeSource(), WorkerState(position={"n": 0})
    writer = FakeWriter([(b'{"k": 5}', 1)], state)
    writer.state = state
    snapshots = Snapshots(
        cast(Source, source), cast(Writer, writer), state, lambda topic: [(b'{"k": 5}', b"1")], 2
    )
    snapshots.know([TABLE])
    with logged() as events:
        snapshots.see(Batch([], {"n": 0}, resync=[TABLE.id], reasons={TABLE.id: "DROP PARTITION"}))
        assert WorkerState.decode(state.encode()).snapshots[0].why == "DROP PARTITION"
        state.request(TABLE.id)  # an order of the user does not hide it
        assert state.snapshots[0].why == "DROP PARTITION"
        while snapshots.step():
            pass
    assert events[0] == {
        "event": "snapshot.requested",
        "table": TABLE.id,
        "why": "DROP PARTITION",
        "resync": True,
        "log_level": "info",
    }
    done = {"event": "snapshot.done", "table": TABLE.id, "rows": 0, "deleted_keys": 1}
    assert events[-1] == {**done, "log_level": "info"}
