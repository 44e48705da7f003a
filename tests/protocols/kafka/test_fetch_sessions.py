"""Fetch sessions: their partitions, what responses name, and invalid requests (KIP-227)."""

from __future__ import annotations

import pytest

from tidemill.protocols.kafka import fetch_sessions
from tidemill.protocols.kafka.errors import FetchSessionNotFoundError, InvalidFetchSessionEpochError
from tidemill.protocols.kafka.fetch_sessions import FetchPart, FetchSessions


def part(partition: int, offset: int = 0) -> FetchPart:
    return FetchPart("t", partition, offset, 1000)


def begun(sessions: FetchSessions, *parts: FetchPart) -> fetch_sessions.FetchSession:
    made, incremental, read = sessions.begin(0, 0, list(parts), [])
    assert made is not None
    assert not incremental
    assert read == list(parts)
    return made


def test_fetch_without_a_session_stays_without() -> None:
    assert FetchSessions().begin(0, -1, [part(0)], []) == (None, False, [part(0)])


def test_session_remembers_partitions_and_takes_changes() -> None:
    sessions = FetchSessions()
    made = begun(sessions, part(0), part(1), part(2))
    changed = [part(1, 50), part(3)]
    again, incremental, read = sessions.begin(made.session_id, 1, changed, [("t", 0)])
    assert again is made
    assert incremental
    assert [(p.partition, p.offset) for p in read] == [(1, 50), (2, 0), (3, 0)]


def test_epoch_out_of_order_is_refused() -> None:
    sessions = FetchSessions()
    made = begun(sessions, part(0))
    sessions.begin(made.session_id, 1, [], [])
    for epoch in (1, 3):
        with pytest.raises(InvalidFetchSessionEpochError):
            sessions.begin(made.session_id, epoch, [], [])
    sessions.begin(made.session_id, 2, [], [])


def test_epoch_wraps_to_one() -> None:
    sessions = FetchSessions()
    made = begun(sessions, part(0))
    made.epoch = 0x7FFFFFFF
    sessions.begin(made.session_id, 0x7FFFFFFF, [], [])
    sessions.begin(made.session_id, 1, [], [])


def test_unknown_session_is_refused() -> None:
    sessions = FetchSessions()
    with pytest.raises(FetchSessionNotFoundError):
        sessions.begin(5, 1, [], [])
    made = begun(sessions, part(0))
    with pytest.raises(FetchSessionNotFoundError):
        sessions.begin(made.session_id + 1, 1, [], [])


def test_final_epoch_ends_the_session() -> None:
    sessions = FetchSessions()
    made = begun(sessions, part(0))
    assert sessions.begin(made.session_id, -1, [part(0)], [])[0] is None
    with pytest.raises(FetchSessionNotFoundError):
        sessions.begin(made.session_id, 1, [], [])


def test_session_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_sessions, "MAX_PARTITIONS", 2)
    sessions = FetchSessions()
    assert sessions.begin(0, 0, [part(0), part(1), part(2)], [])[0] is None
    made = begun(sessions, part(0), part(1))
    with pytest.raises(FetchSessionNotFoundError, match="more than"):
        sessions.begin(made.session_id, 1, [part(2)], [])


def test_a_response_names_only_partitions_with_news() -> None:
    quiet = part(0)

    def news(**changed: int) -> bool:
        state = {"error_code": 0, "record_bytes": 0, "high_watermark": 5, "log_start": 0}
        return quiet.update_sent(**state | changed)

    assert news()  # the first time
    assert not news()
    assert news(record_bytes=10)
    assert news(high_watermark=6)
    assert not news(high_watermark=6)
    assert news(high_watermark=6, log_start=2)
    assert news(error_code=3)
    assert news()  # the error is gone
    assert not news()


def test_partition_with_records_is_served_last_next_time() -> None:
    sessions = FetchSessions()
    made = begun(sessions, part(0), part(1))
    made.move_to_end(made.parts["t", 0])
    _, _, read = sessions.begin(made.session_id, 1, [], [])
    assert [p.partition for p in read] == [1, 0]
