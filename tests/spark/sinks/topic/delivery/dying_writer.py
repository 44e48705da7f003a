"""Writes a share of a batch in a process that kills itself at a chosen moment.

    python -m tests.spark.sinks.topic.delivery.dying_writer MOMENT BOOTSTRAP TOPIC SINK ROWS

Knows nothing of what the test makes of it.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from confluent_kafka import Producer

from tidemill.spark.sinks.topic.delivery import at_least_once, exactly_once

MOMENTS = (
    "before the marker",
    "after the marker",
    "between rows",
    "before the commit",
    "after the commit",
)


def die() -> None:
    """Kill this process. No handler runs, as in a power cut."""
    os.kill(os.getpid(), signal.SIGKILL)


def dying_producer(moment: str) -> type[Producer]:
    """Return a class of producers that kills the process."""

    class Dying(Producer):
        def send_offsets_to_transaction(self, *args: Any) -> None:
            if moment == "before the marker":
                die()
            super().send_offsets_to_transaction(*args)
            if moment == "after the marker":
                die()

        def commit_transaction(self, *args: Any) -> None:
            if moment == "before the commit":
                die()
            super().commit_transaction(*args)
            if moment == "after the commit":
                die()

    return Dying


def rows(count: int, moment: str, producers: list[Producer]) -> Iterator[pa.RecordBatch]:
    """Yield numbered rows in two batches. The second comes when the broker has the first."""
    half = count // 2
    yield pa.record_batch({"value": [b"%d" % i for i in range(half)]})
    if moment == "between rows":
        for producer in producers:
            producer.flush(60)
        die()
    yield pa.record_batch({"value": [b"%d" % i for i in range(half, count)]})


def main(moment: str, bootstrap: str, topic: str, sink: str, count: str) -> None:
    """Write the rows, and die at the chosen moment."""
    made: list[Producer] = []
    kind = dying_producer(moment)

    def make(*args: Any) -> Producer:
        made.append(kind(*args))
        return made[-1]

    at_least_once.Producer = make  # type: ignore[attr-defined,assignment]
    share = exactly_once.Share(sink, 0, 0)
    settings = {"bootstrap.servers": bootstrap}
    exactly_once.write_share(
        rows(int(count), moment, made), topic, settings, share, marker_topic=topic
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
