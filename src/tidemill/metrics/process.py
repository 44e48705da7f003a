"""Metrics of the process: processor, memory, files, and how late its event loop is.

The names are those of Prometheus's client libraries
(https://prometheus.io/docs/instrumenting/writing_clientlibs/#process-metrics).
"""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Callable, Iterator

from tidemill import __version__, system
from tidemill.metrics.definition import Metric, gauge, histogram
from tidemill.metrics.definition import counter as counter_of
from tidemill.metrics.registry import Family, Registry

BUILD_INFO = gauge("tidemill_build_info", "1; its labels have the versions.", "version", "python")
CPU = counter_of("process_cpu_seconds_total", "Processor time of the process, in seconds.")
RESIDENT = gauge("process_resident_memory_bytes", "Memory of the process in RAM, in bytes.")
VIRTUAL = gauge("process_virtual_memory_bytes", "Virtual memory of the process, in bytes.")
OPEN_FILES = gauge("process_open_fds", "Open file descriptors of the process.")
MOST_FILES = gauge("process_max_fds", "File descriptors that the process can open.")
STARTED = gauge(
    "process_start_time_seconds", "When the process started, in seconds since the epoch."
)
LOOP_LAG = histogram(
    "tidemill_event_loop_lag_seconds",
    "How much later than asked for the event loop did something, measured twice a second.",
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0),
)

LAG_PERIOD_S = 0.5


def add_process(registry: Registry) -> None:
    """Add the metrics of this process to a registry."""
    about = (__version__, platform.python_version())

    def collect() -> Iterator[Family]:
        yield BUILD_INFO, [(about, 1)]
        usage = system.process_usage()
        values: tuple[tuple[Metric, float | None], ...] = (
            (CPU, usage.cpu_seconds),
            (RESIDENT, usage.resident_bytes),
            (VIRTUAL, usage.virtual_bytes),
            (OPEN_FILES, usage.open_files),
            (MOST_FILES, usage.most_files),
            (STARTED, usage.started),
        )
        for metric, value in values:
            if value is not None:
                yield metric, [((), value)]

    registry.collect(collect)


class LoopLag:
    """Measures how late the running event loop is, until ``stop``.

    Args:
        on_turn: called at each measurement. A process whose loop hangs does not call it.
    """

    def __init__(self, registry: Registry, on_turn: Callable[[], None] = lambda: None) -> None:
        self._histogram = registry.histogram(LOOP_LAG)
        self._loop = asyncio.get_running_loop()
        self._on_turn = on_turn
        self._schedule()

    def _schedule(self) -> None:
        self._due = self._loop.time() + LAG_PERIOD_S
        self._timer = self._loop.call_at(self._due, self._measure)

    def _measure(self) -> None:
        self._histogram.observe(max(self._loop.time() - self._due, 0.0))
        self._on_turn()
        self._schedule()

    def stop(self) -> None:
        """Measure no more."""
        self._timer.cancel()
