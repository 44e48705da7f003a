"""Writes a share of a batch in a process that kills itself at a chosen moment.

    python -m tests.spark.sinks.topic.delivery.dying_writer MOMENT BOOTSTRAP TOPIC SINK ROWS

Knows nothing of what the test makes of it.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
from confluent_kafka import Producer

from tidemill.confluent import producing as librdkafka
from tidemill.kafka_client.producing import transactional
from tidemill.kafka_client.producing.producer import Producer as OwnProducer
from tidemill.kafka_client.producing.requests import Requests
from tidemill.kafka_codec.declared import COMMIT_OFFSETS, END_TRANSACTION
from tidemill.spark.sinks.topic.delivery import exactly_once

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


def around(moments: tuple[str, str], moment: str, method: Callable[..., Any]) -> Any:
    """Return a method that kills the process before it runs, or after it."""

    def dying(*args: Any) -> Any:
        if moment == moments[0]:
            die()
        found = method(*args)
        if moment == moments[1]:
            die()
        return found

    return dying


def dying_producer(moment: str) -> type[Producer]:
    """Return a class of librdkafka's producers that kills the process."""

    class Dying(Producer):
        def send_offsets_to_transaction(self, *args: Any) -> None:
            around(MOMENTS[:2], moment, super().send_offsets_to_transaction)(*args)

        def commit_transaction(self, *args: Any) -> None:
            around(MOMENTS[3:], moment, super().commit_transaction)(*args)

    return Dying


def rows(count: int, moment: str, flushes: list[Callable[[], Any]]) -> Iterator[pa.RecordBatch]:
    """Yield numbered rows in two batches. The second comes when the broker has the first."""
    half = count // 2
    yield pa.record_batch({"value": [b"%d" % i for i in range(half)]})
    if moment == "between rows":
        for flush in flushes:
            flush()
        die()
    yield pa.record_batch({"value": [b"%d" % i for i in range(half, count)]})


def prepare(moment: str, flushes: list[Callable[[], Any]]) -> None:
    """Make both editions die at the moment."""
    kind = dying_producer(moment)

    def make(*args: Any) -> Producer:
        made = kind(*args)
        flushes.append(lambda: made.flush(60))
        return made

    def make_own(*args: Any) -> OwnProducer:
        made = OwnProducer(*args)
        flushes.append(made.flush)
        return made

    def ask(self: Requests, what: str, api: int, *args: Any, **more: Any) -> Any:
        send = functools.partial(asked, self, what, api, **more)
        if api == COMMIT_OFFSETS:
            return around(MOMENTS[:2], moment, send)(*args)
        if api == END_TRANSACTION:
            return around(MOMENTS[3:], moment, send)(*args)
        return send(*args)

    asked = Requests.ask
    librdkafka.Producer = make  # type: ignore[attr-defined,assignment]
    transactional.Producer = make_own  # type: ignore[attr-defined,assignment]
    Requests.ask = ask  # type: ignore[method-assign]


def main(moment: str, bootstrap: str, topic: str, sink: str, count: str) -> None:
    """Write the rows, and die at the chosen moment."""
    flushes: list[Callable[[], Any]] = []
    prepare(moment, flushes)
    share = exactly_once.Share(sink, 0, 0)
    settings = {"bootstrap.servers": bootstrap}
    exactly_once.write_share(
        rows(int(count), moment, flushes), topic, settings, share, marker_topic=topic
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
