"""``tidemill`` with one more kind of worker: a worker that counts, for each ``[[counter]]``."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from tidemill.cli.main import main
from tidemill.cli.server.worker_kinds import KINDS, Broker, Kind
from tidemill.settings import Section
from tidemill.workers.spec import WorkerSpec

COUNT = "import itertools, time\nfor n in itertools.count(): print('count', n); time.sleep(0.02)"


class Counter(Section):
    """A worker that counts."""

    key = "counter"
    is_repeated = True
    name: str


def counters(broker: Broker) -> Iterable[WorkerSpec]:
    for entry in broker.settings.entries(Counter):
        yield WorkerSpec(f"counter/{entry.name}", [sys.executable, "-c", COUNT])


KINDS.append(Kind(Counter, counters))

if __name__ == "__main__":
    main()
