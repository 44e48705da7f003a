"""A model of windows in plain Python, and of what Spark does with them in each batch.

Times are whole microseconds. An event is ``(key, time)``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from tidemill.spark.windows.spec import Kind, WindowSpec

Event = tuple[str, int]
Group = tuple[str, int, int]
"""Key, start and end of a window."""


def windows_of(spec: WindowSpec, time: int) -> Iterator[tuple[int, int]]:
    """The windows that an instant belongs to (not for sessions)."""
    start = (time - spec.start) // spec.step * spec.step + spec.start
    while start > time - spec.size:
        yield start, start + spec.size
        start -= spec.step


def grouped(spec: WindowSpec, events: Iterable[Event]) -> Counter[Group]:
    """Return the number of events in each window of each key."""
    if spec.kind is Kind.SESSION:
        return merged(Counter((key, time, time + spec.size) for key, time in events))
    return Counter((key, *w) for key, time in events for w in windows_of(spec, time))


def merged(sessions: Counter[Group]) -> Counter[Group]:
    """Sessions that overlap or touch become one."""
    found: list[tuple[Group, int]] = []
    for (key, start, end), count in sorted(sessions.items()):
        if found and found[-1][0][0] == key and start <= found[-1][0][2]:
            (_, first, last), before = found.pop()
            found.append(((key, first, max(last, end)), before + count))
        else:
            found.append(((key, start, end), count))
    return Counter(dict(found))


@dataclass
class Stream:
    """A windowed count as Spark runs it: a batch's watermark comes from the batches before it.

    A row is late when its window ends at or before the watermark of the *previous* batch; a window
    is final when it ends at or before the watermark of this one. The first watermark is 1970.
    """

    spec: WindowSpec
    mode: str
    delay: int
    state: Counter[Group] = field(default_factory=Counter)
    watermark: int = 0
    late_watermark: int = 0
    next_watermark: int = 0
    late: int = 0

    def batch(self, events: list[Event]) -> Counter[Group]:
        """Return what one batch emits."""
        self.late_watermark, self.watermark = self.watermark, self.next_watermark
        is_session = self.spec.kind is Kind.SESSION
        rows = Counter((k, t, t + self.spec.size) for k, t in events) if is_session else None
        rows = rows if rows is not None else grouped(self.spec, events)
        if self.mode != "complete" or is_session:
            late = {group for group in rows if group[2] <= self.late_watermark}
            self.late += len(late)
            rows = Counter({group: n for group, n in rows.items() if group not in late})
        self.state += rows
        if is_session:
            self.state = merged(self.state)
        if events:
            newest = max(time for _, time in events) // 1000 * 1000
            self.next_watermark = max(self.next_watermark, newest - self.delay)
        if self.mode == "complete":
            return Counter(self.state)
        final = Counter({g: n for g, n in self.state.items() if g[2] <= self.watermark})
        updated = Counter({group: self.state[group] for group in rows})
        self.state -= final
        return final if self.mode == "append" else updated
