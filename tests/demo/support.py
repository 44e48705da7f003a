"""Rows of the flights table for tests that need no data set."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime

import psutil
import pytest

from tidemill.demo.flights import DataSetMissingError, Flight, data_folder


def skip_without_data_set() -> None:
    """Skip the test or fixture where the data set is not installed."""
    try:
        data_folder()
    except DataSetMissingError as missing:
        pytest.skip(str(missing))


def instant(text: str) -> int:
    """Return a time in ISO 8601 in Unix seconds."""
    return int(datetime.fromisoformat(text).timestamp())


CANCELLED = {"dep_delay": None, "arr_time": None, "arr_delay": None, "air_time": None}


def row(**changes: str | None) -> dict[str, str | None]:
    """Return the data set's first flight: UA1545 from Newark to Houston on 1 January."""
    first: dict[str, str | None] = {
        "year": "2013",
        "month": "1",
        "day": "1",
        "dep_time": "517",
        "sched_dep_time": "515",
        "dep_delay": "2",
        "arr_time": "830",
        "sched_arr_time": "819",
        "arr_delay": "11",
        "carrier": "UA",
        "flight": "1545",
        "tailnum": "N14228",
        "origin": "EWR",
        "dest": "IAH",
        "air_time": "227",
        "distance": "1400",
        "hour": "5",
        "minute": "15",
        "time_hour": "2013-01-01T10:00:00Z",
    }
    return first | changes


def flight(
    number: int = 1,
    *,
    departed: int,
    arrived: int | None = None,
    delay: int = 0,
    tail_number: str | None = None,
) -> Flight:
    """Return a flight from JFK to BOS that left, and perhaps arrived, at the given Unix times."""
    return Flight(
        carrier="B6",
        number=number,
        tail_number=tail_number,
        origin="JFK",
        destination="BOS",
        miles=187,
        scheduled=departed - delay * 60,
        departed=departed,
        departure_delay=delay,
        arrived=arrived,
        arrival_delay=None if arrived is None else delay,
    )


def cancelled(number: int = 1, *, scheduled: int) -> Flight:
    """Return a flight from JFK to BOS that was cancelled."""
    planned = flight(number, departed=scheduled)
    return replace(planned, departed=None, departure_delay=None)


@contextmanager
def no_process_left() -> Iterator[set[psutil.Process]]:
    """Yield a set of processes. Fail if one of them still runs a while after the block."""
    processes: set[psutil.Process] = set()
    yield processes
    _, alive = psutil.wait_procs(processes, timeout=60)
    left = [process for process in alive if process.is_running() and not _is_zombie(process)]
    descriptions = [command_of(process)[:200] for process in left]
    for process in left:
        process.kill()
    assert not left, f"processes were left behind: {descriptions}"


def command_of(process: psutil.Process) -> str:
    """Return the command line of a process, or nothing if it has ended."""
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""


def _is_zombie(process: psutil.Process) -> bool:
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True
