"""What Apache Kafka's perf tools print, and the figures of several client processes."""

from __future__ import annotations

import pytest
from bench.clients.perf_tools import parse_consumed, parse_produced
from bench.clients.program import Outcome
from bench.steps import timeline
from bench.traced import MESSAGE, REQUEST, Steps

PRODUCED = """\
12000 records sent, 8000.0 records/sec (7.63 MB/sec), 3.1 ms avg latency, 200.0 ms max latency, \
1 ms 50th, 9 ms 95th, 20 ms 99th, 90 ms 99.9th.
10000 records sent, 9803.9 records/sec (9.35 MB/sec), 2.04 ms avg latency, 150.00 ms max latency, \
2 ms 50th, 5 ms 95th, 11 ms 99th, 42 ms 99.9th.
"""
CONSUMED = (
    "2026-11-22 19:00:00:000, 2026-11-22 19:00:02:000, 95.3674, 47.6837, 100000, 50000.0000, "
    "1000, 1000, 95.3674, 100000.0000\n"
)


def test_the_last_summary_is_that_of_the_measured_records() -> None:
    found = parse_produced(PRODUCED, 1000)
    assert found.mb_per_s == pytest.approx(9.8039)
    assert (found.p50_ms, found.p99_ms, found.p999_ms) == (2, 11, 42)
    with pytest.raises(RuntimeError, match="no summary"):
        parse_produced("error", 1000)


def test_the_time_of_a_rebalance_does_not_count() -> None:
    assert parse_consumed("WARNING: a line\n" + CONSUMED, 100_000) == 100_000
    with pytest.raises(RuntimeError, match="read 100000 of 100001"):
        parse_consumed(CONSUMED, 100_001)
    with pytest.raises(RuntimeError, match="no figures"):
        parse_consumed("error", 1)


def test_a_record_without_an_acknowledgement_has_no_latency() -> None:
    class Unacknowledged:
        def latency(self) -> None:
            return None

    outcome = Outcome()
    outcome.delivered(None, Unacknowledged())  # type: ignore[arg-type]
    assert (outcome.failed, outcome.latencies) == (1, [])


def test_each_second_has_its_own_latencies() -> None:
    found = timeline([(0.2, 0.001), (0.9, 0.003), (2.5, 0.5)])
    assert found.rows == [[0, 2, 1.0, 3.0], [1, 0, 0.0, 0.0], [2, 1, 500.0, 500.0]]


def test_steps_of_one_request_are_noted_in_their_order() -> None:
    steps, session, other, run = Steps(REQUEST), object(), object(), object()
    steps.begin(session)
    steps.begin(other)  # one is followed
    steps.end("append", session, then=run)
    for name in REQUEST[1:4]:
        steps.end("append", session)
        steps.end(name)
    steps.end("release", object())
    assert not any(steps.found.values())
    steps.end("release", run, then=session)
    steps.end("answer", other)
    steps.end("answer", session)
    assert {name: len(times) for name, times in steps.found.items()} == dict.fromkeys(REQUEST, 1)


def test_a_request_that_did_not_wait_for_the_journal_is_not_followed() -> None:
    steps, session, run = Steps(REQUEST), object(), object()
    steps.begin(session)
    steps.end("append", session, then=run)
    steps.end("release", run, then=session)
    steps.begin(session)
    steps.abandon(session)
    steps.begin(session)
    steps.end("append", session, then=run)
    assert steps._times is not None
    assert len(steps._times) == 1


def test_steps_of_a_message_are_noted_in_their_order_only() -> None:
    steps = Steps(MESSAGE)
    steps.end(MESSAGE[0])  # no message is on its way
    steps.begin()
    steps.end(MESSAGE[1])
    for name in MESSAGE:
        steps.begin()
        steps.end(name)
    assert {name: len(times) for name, times in steps.found.items()} == dict.fromkeys(MESSAGE, 1)
