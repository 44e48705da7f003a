"""Storage errors in the log of the broker."""

from __future__ import annotations

from structlog.testing import capture_logs

from tidemill.clock import ManualClock
from tidemill.engine.error_log import MAX_REMEMBERED, REPEAT_AFTER_MS, StorageErrorLog
from tidemill.log.errors import CorruptLogError, InvalidRecordError, StorageError


def test_an_error_is_logged_again_only_after_a_while() -> None:
    clock = ManualClock()
    errors = StorageErrorLog(clock)
    with capture_logs() as lines:
        for _ in range(3):
            errors.report(StorageError("gone"), "t-0")
        errors.report(StorageError("gone"), "t-1")
        assert [line["partition"] for line in lines] == ["t-0", "t-1"]
        clock.advance(REPEAT_AFTER_MS)
        errors.report(StorageError("gone"), "t-0")
    assert [line["event"] for line in lines] == ["partition.failed"] * 3


def test_only_storage_errors_are_logged() -> None:
    errors = StorageErrorLog(ManualClock())
    with capture_logs() as lines:
        errors.report(None, "t-0")
        errors.report(InvalidRecordError("no key"), "t-0")
    assert lines == []


def test_the_place_of_a_damage_is_named() -> None:
    errors = StorageErrorLog(ManualClock())
    with capture_logs() as lines:
        errors.report(CorruptLogError("bad", path="/data/t-0/0.log", position=7, offset=3), "t-0")
    (line,) = lines
    assert (line["file"], line["position"], line["offset"]) == ("/data/t-0/0.log", 7, 3)


def test_memory_is_bounded() -> None:
    errors = StorageErrorLog(ManualClock())
    with capture_logs():
        for number in range(MAX_REMEMBERED + 5):
            errors.report(StorageError(f"error {number}"), "t-0")
    assert len(errors._logged._logged_at) <= MAX_REMEMBERED
