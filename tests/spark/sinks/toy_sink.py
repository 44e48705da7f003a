"""A complete sink in one file, as another package would have it. It needs nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from tidemill.spark.sinks.base import (
    CheckpointState,
    Mistake,
    QueryContext,
    Run,
    Sink,
    SinkTopic,
    Writer,
)


@dataclass(frozen=True)
class ToySink(Sink):
    """Appends a line for each batch to a file, and announces a topic."""

    path: Path
    topic: str
    key: str = ""

    modes: ClassVar[tuple[str, ...]] = ("append", "update")
    needs_key: ClassVar[bool] = True

    @property
    def target(self) -> str:
        return f"toy {self.path.name}"

    @property
    def key_columns(self) -> tuple[str, ...]:
        return (self.key,) if self.key else ()

    def topics(self) -> Sequence[SinkTopic]:
        return (SinkTopic(self.topic, is_compacted=True),)

    def check(self, context: QueryContext) -> Iterable[Mistake]:
        yield from super().check(context)
        if self.path.suffix != ".txt":
            yield Mistake(
                f"{self.target} of query {context.query} is not a .txt file", "Rename it."
            )

    def check_result(self, df: Any, checkpoint: CheckpointState) -> None:
        super().check_result(df, checkpoint)
        self._append({"fresh": checkpoint.is_fresh})

    def open(self, run: Run) -> Writer:
        self._append({"open": run.name, "mode": run.mode, "servers": sorted(run.kafka)})
        return ToyWriter(self)

    def _append(self, line: dict[str, Any]) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps(line) + "\n")


class ToyWriter(Writer):
    """Writes the rows of each batch."""

    def __init__(self, sink: ToySink) -> None:
        self._sink = sink

    def write(self, df: Any, batch_id: int) -> None:
        self._sink._append({"batch": batch_id, "rows": df.toArrow().to_pylist()})

    def close(self) -> None:
        self._sink._append({"closed": True})
