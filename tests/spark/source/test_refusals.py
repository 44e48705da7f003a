"""Reports of tasks: what they call clean is exact, and a lost report costs nothing but a read."""

from __future__ import annotations

import json
import socket
import threading
from pathlib import Path

import pyarrow as pa
import pytest

from tidemill.reading.ranges import OffsetRange
from tidemill.spark.source.planning.parsing import RowPlan
from tidemill.spark.source.refusals import Reports, send
from tidemill.spark.source.rows import parse_range


@pytest.fixture
def reports() -> Reports:
    return Reports()


def part(start: int, end: int, partition: int = 0, topic: str = "t") -> OffsetRange:
    return OffsetRange(topic, partition, start, end)


def known(*sent: tuple[OffsetRange, int]) -> Reports:
    reports = Reports()
    for wanted, refused in sent:
        send(reports.path, wanted, refused)
        reports.receive(5.0)
    return reports


def test_without_reports_everything_is_left() -> None:
    reports = known()
    assert reports.rest(part(3, 9)) == [part(3, 9)]
    assert not reports.are_settled([part(3, 9)])
    assert reports.are_settled([])


@pytest.mark.parametrize(
    ("clean", "left"),
    [
        ([(0, 10)], []),
        ([(0, 3)], [(3, 10)]),
        ([(7, 12)], [(0, 7)]),
        ([(3, 5)], [(0, 3), (5, 10)]),
        ([(5, 10), (0, 5)], []),
        ([(5, 8), (1, 6), (9, 10)], [(0, 1), (8, 9)]),
        ([(10, 20), (-5, 0)], [(0, 10)]),
    ],
)
def test_what_no_report_calls_clean_is_left(
    clean: list[tuple[int, int]], left: list[tuple[int, int]]
) -> None:
    reports = known(*((part(*each), 0) for each in clean))
    assert reports.rest(part(0, 10)) == [part(*each) for each in left]
    assert reports.are_settled([part(0, 10)]) is (not left)


def test_a_report_is_about_its_partition_only() -> None:
    reports = known((part(0, 10, 1), 0), (part(0, 10, topic="u"), 0))
    assert reports.rest(part(0, 10)) == [part(0, 10)]


def test_a_refused_record_ends_the_wait_and_is_not_clean() -> None:
    reports = known((part(0, 10), 2))
    assert reports.rest(part(0, 20)) == [part(0, 20)]
    assert reports.are_settled([part(0, 20)])
    assert not reports.are_settled([part(10, 20)])
    reports.forget("t", 0, 10)
    assert not reports.are_settled([part(0, 20)])


@pytest.mark.parametrize("data", [b"", b"x", b"{}", b"[]", b'["t", 0, 1]', b'["t", "x", 0, 9, 0]'])
def test_what_is_not_a_report_is_ignored(reports: Reports, data: bytes) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.sendto(data, reports.path)
    reports.receive(5.0)
    assert reports.rest(part(0, 10)) == [part(0, 10)]


def test_a_report_that_is_not_received_does_not_fail_the_task(
    reports: Reports, tmp_path: Path
) -> None:
    send(str(tmp_path / "no-socket"), part(0, 1), 0)
    for number in range(2000):  # more than a socket holds
        send(reports.path, part(number, number + 1), 0)
    reports.receive(0.0)
    assert reports.rest(part(0, 1)) == []


def test_a_wait_ends_with_the_first_report(reports: Reports) -> None:
    timer = threading.Timer(0.05, send, (reports.path, part(0, 1), 0))
    timer.start()
    assert reports.receive(60.0)
    timer.join()
    assert not reports.receive(0.0)
    assert reports.rest(part(0, 1)) == []


def test_the_socket_is_removed_with_its_owner() -> None:
    reports = Reports()
    folder = Path(reports.path).parent
    assert folder.is_dir()
    del reports
    assert not folder.exists()


def test_a_task_reports_its_range_when_it_has_read_all_of_it(reports: Reports) -> None:
    plan = RowPlan("id INT", drop_malformed=True, report=reports.path)
    batches = [
        pa.RecordBatch.from_pydict({"value": pa.array([json.dumps({"id": 1}).encode()])}),
        pa.RecordBatch.from_pydict({"value": pa.array([json.dumps({"id": 2}).encode()])}),
    ]
    rows = parse_range(batches, plan, part(0, 2))
    next(rows)
    reports.receive(0.0)
    assert reports.rest(part(0, 2)) == [part(0, 2)]
    assert [batch.num_rows for batch in rows] == [1]
    reports.receive(5.0)
    assert reports.rest(part(0, 2)) == []


def test_a_task_reports_refused_records(reports: Reports) -> None:
    plan = RowPlan("id INT", drop_malformed=True, report=reports.path)
    batch = pa.RecordBatch.from_pydict({"value": pa.array([b'{"id": 1}', b"x"])})
    assert [each.num_rows for each in parse_range([batch], plan, part(0, 2))] == [1]
    reports.receive(5.0)
    assert reports.rest(part(0, 2)) == [part(0, 2)]
    assert reports.are_settled([part(0, 2)])
