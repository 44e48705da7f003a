"""A report is sent only when all edits up to its time are in the topics."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.support.processes import poll_until
from tidemill.demo.database.editor import Editor, EditorStalledError, lead_for
from tidemill.demo.database.registry import AIRCRAFT, Edit
from tidemill.demo.database.tables import DatabaseError

EDITS = tuple(Edit(at, AIRCRAFT, "update", "N1", {"seats": at}) for at in (10, 20, 30))


class FakeTables:
    """Tables that only note their edits."""

    def __init__(self) -> None:
        self.made: list[Edit] = []
        self.error: Exception | None = None
        self.is_closed = False

    def make(self, edit: Edit) -> None:
        if self.error is not None:
            raise self.error
        self.made.append(edit)

    def close(self) -> None:
        self.is_closed = True


class FakeDelivery:
    """Topics in which edits arrive when a test says so."""

    def __init__(self) -> None:
        self.is_loaded = False
        self.expected = deque(EDITS)
        self.delivered = 0

    @property
    def undelivered(self) -> float:
        return self.expected[0].time if self.expected else float("inf")

    def arrive(self) -> None:
        self.expected.popleft()
        self.delivered += 1

    def poll(self, timeout_s: float) -> None:
        time.sleep(timeout_s / 10)  # as a client that waits for records


@contextmanager
def running(lead: int = 0, **options: Any) -> Iterator[tuple[Editor, FakeTables, FakeDelivery]]:
    tables, delivery, stop = FakeTables(), FakeDelivery(), threading.Event()
    editor = Editor(lambda: tables, delivery, EDITS, lead, **options)  # type: ignore[arg-type, return-value]
    errors: list[BaseException] = []

    def run() -> None:
        try:
            editor.run(stop)
        except DatabaseError as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield editor, tables, delivery
    finally:
        stop.set()
        thread.join()
        assert tables.is_closed


def asks(editor: Editor, moment: int) -> threading.Thread:
    thread = threading.Thread(target=editor.wait_for, args=(moment, threading.Event()))
    thread.start()
    return thread


def test_nothing_is_edited_before_the_first_rows_have_arrived() -> None:
    with running() as (editor, tables, delivery):
        waiting = asks(editor, 5)
        waiting.join(0.1)
        assert waiting.is_alive()
        assert not tables.made
        assert not editor.is_loaded
        delivery.is_loaded = True
        waiting.join(10)
        assert not waiting.is_alive()
        assert not tables.made
        assert editor.is_loaded


def test_a_report_waits_for_the_edits_up_to_its_time_and_for_no_others() -> None:
    with running() as (editor, tables, delivery):
        delivery.is_loaded = True
        waiting = asks(editor, 20)
        poll_until(lambda: len(tables.made) == 2, 10, "the edits up to the report are made")
        delivery.arrive()
        waiting.join(0.1)
        assert waiting.is_alive()
        delivery.arrive()
        waiting.join(10)
        assert not waiting.is_alive()
        assert [edit.time for edit in tables.made] == [10, 20]
        assert editor.progress().delivered == 2


def test_the_editor_is_ahead_by_its_lead() -> None:
    with running(lead=10) as (editor, tables, delivery):
        delivery.is_loaded = True
        editor.wait_for(5, threading.Event())
        poll_until(lambda: len(tables.made) == 1, 10, "the first edit is made early")
        delivery.arrive()
        editor.wait_for(10, threading.Event())
        poll_until(lambda: len(tables.made) == 2, 10, "the second edit is made early")
        assert editor.progress().made == 2


def test_edits_that_do_not_arrive_are_an_error_for_the_replayer() -> None:
    with running(stalled_s=0.05) as (editor, _, delivery):
        delivery.is_loaded = True
        with pytest.raises(EditorStalledError, match="not in the topics after"):
            editor.wait_for(10, threading.Event())


def test_an_editor_that_fails_does_not_let_the_replayer_wait() -> None:
    with running() as (editor, tables, delivery):
        tables.error = DatabaseError("the disk is full")
        delivery.is_loaded = True
        with pytest.raises(EditorStalledError):
            editor.wait_for(10, threading.Event())


def test_a_stopped_replayer_does_not_wait() -> None:
    stop = threading.Event()
    stop.set()
    with running() as (editor, _, _):
        editor.wait_for(10, stop)


@pytest.mark.parametrize(
    ("speed", "lead"), [(None, 6 * 3600), (1.0, 1), (7200.0, 7200), (1e6, 6 * 3600)]
)
def test_the_lead_is_about_a_second_and_bounded(speed: float | None, lead: int) -> None:
    assert lead_for(speed) == lead
