"""The output of workers: whole lines with a name, bounded, and never a wait for the broker."""

from __future__ import annotations

import os
import threading
import time

from tests.support.processes import poll_until
from tests.workers.running import Log
from tidemill.workers.output import LINE_COST, OutputLimits, OutputReader, WorkerLog


class Worker:
    """Writes as a worker does."""

    def __init__(self, limits: OutputLimits = OutputLimits()) -> None:  # noqa: B008
        self.shown = Log()
        self.log = WorkerLog("w", self.shown.write, limits)
        self.reader = OutputReader(self.log)

    def write(self, data: bytes) -> None:
        while data:
            data = data[os.write(self.reader.writable, data) :]

    def end(self) -> list[bytes]:
        """Close the output, and return the kept lines."""
        os.close(self.reader.writable)
        self.reader.finish(60)
        return self.log.after(0)[0]


def test_lines_are_kept_and_copied_with_the_name_of_the_worker() -> None:
    worker = Worker()
    worker.write(b"one\ntw")
    worker.write(b"o\r\n\n\xff\nno end")
    assert worker.end() == [b"one", b"two", b"", b"\xff", b"no end"]
    assert worker.shown.data == b"[w] one\n[w] two\n[w] \n[w] \xff\n[w] no end\n"


def test_a_long_line_is_cut() -> None:
    worker = Worker(OutputLimits(line=10))
    worker.write(b"x" * 100_000 + b"\nshort\n")
    assert worker.end() == [b"x" * 10 + "…".encode(), b"short"]


def test_only_the_last_lines_are_kept_in_bounded_memory() -> None:
    worker = Worker(OutputLimits(kept=10 * (LINE_COST + 2)))
    worker.write(b"".join(b"%d\n" % number for number in range(10, 40)))
    assert worker.end() == [b"%d" % number for number in range(30, 40)]
    assert worker.log.last(2) == ([b"38", b"39"], 30)
    assert worker.log.last(100)[0] == worker.log.after(0)[0]
    assert worker.log.after(30) == ([], 30)
    assert len(worker.shown.lines) == 30


def test_a_flood_is_dropped_and_counted_and_the_lines_after_it_are_kept() -> None:
    worker = Worker(OutputLimits(burst=4000, per_second=4000))
    line = b"y" * 35 + b"\n"
    for _ in range(20):
        worker.write(line * 5000)
    dropped = "lines were dropped"
    poll_until(lambda: "were dropped" in worker.shown.data.decode(), 60, dropped)
    worker.write(b"\nthe end\n")
    lines = worker.end()
    notices = [each for each in lines if each.startswith(b"... ")]
    counted = sum(int(each.split()[1]) for each in notices)
    taken = sum(each not in notices for each in lines)
    # The rest of a line at the end of what was dropped, and the line that ends it, count once more.
    assert 0 <= counted + taken - (100_000 + 2) <= 2 * len(notices)
    assert taken < 2000
    assert len(worker.shown.data) < 200_000


def test_a_flood_is_read_so_slowly_that_it_takes_little_processor_time() -> None:
    worker = Worker(OutputLimits(burst=4000, per_second=4000))
    stop = threading.Event()

    def flood() -> None:
        while not stop.is_set():
            worker.write(b"z\n" * 10_000)

    thread = threading.Thread(target=flood)
    thread.start()
    began, used = time.monotonic(), time.process_time()
    poll_until(lambda: time.monotonic() - began > 1, 60, "a second has passed", interval=0.1)
    used = time.process_time() - used
    stop.set()
    thread.join()
    worker.end()
    assert used < 0.5


def test_a_log_that_nothing_reads_delays_no_one_but_its_worker() -> None:
    gate = threading.Event()
    log = WorkerLog("w", lambda _: _wait(gate), OutputLimits())
    reader = OutputReader(log)
    os.write(reader.writable, b"one\ntwo\n")
    poll_until(lambda: log.last(2)[0] == [b"one", b"two"], 60, "it was read")
    os.close(reader.writable)
    reader.finish(0.01)
    gate.set()


def _wait(gate: threading.Event) -> None:
    gate.wait()


def test_a_child_that_keeps_the_output_open_does_not_hold_the_reader() -> None:
    worker = Worker()
    worker.write(b"one\n")
    worker.reader.finish(60)
    assert worker.log.after(0)[0] == [b"one"]
    os.close(worker.reader.writable)


def test_the_reason_of_an_end_is_the_last_error_or_the_last_line() -> None:
    worker = Worker()
    worker.write(b"error: old\n")
    poll_until(lambda: worker.log.last(0)[1] == 1, 60, "it was read")
    worker.write(b"error: no file\nhint: create it\n\n")
    worker.end()
    assert worker.log.reason(1) == "error: no file"
    assert worker.log.reason(2) == "hint: create it"
    assert worker.log.reason(4) == ""


def test_a_worker_that_is_killed_gives_no_line_about_its_work_as_the_reason() -> None:
    worker = Worker()
    worker.write(b"timestamp=2026-11-27T06:25:28Z level=warning event=view.failed view=v\n")
    worker.write(b'{"event":"ready","pid":7}\n')
    worker.write(b"timestamp=2026-11-27T06:25:29Z level=info event=view.running view=v\n")
    worker.end()
    assert "event=view.failed" in worker.log.reason(0)
    assert worker.log.reason(1) == ""
