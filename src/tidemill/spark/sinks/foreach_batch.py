"""A sink that calls a function of the user's for each batch.

Must not know: other sinks, Kafka clients, how pipelines run.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidemill.spark.sinks.base import Mistake, QueryContext, Run, Sink, Writer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class ForeachBatchSink(Sink):
    """A function that writes each batch.

    After a crash Spark calls the function again with the same batch, so a repeated call must do no
    harm.

    Attributes:
        function: Called with a DataFrame and the number of the batch.
        name: What the function writes to. No two queries may have the same name.
    """

    function: Callable[[Any, int], None]
    name: str = ""

    @property
    def target(self) -> str:
        return f"function {self.name or getattr(self.function, '__qualname__', self.function)}"

    @property
    def place(self) -> Hashable:
        if self.name:
            return self.target
        # Python creates a new method object on each access, so compare function and instance.
        instance = getattr(self.function, "__self__", None)
        return (id(getattr(self.function, "__func__", self.function)), id(instance))

    def check(self, context: QueryContext) -> Iterable[Mistake]:
        yield from super().check(context)
        if not callable(self.function):
            yield Mistake(f"{self.function!r} is not a function")

    def open(self, run: Run) -> Writer:
        return _FunctionWriter(self.function)


class _FunctionWriter(Writer):
    """Passes each batch to the user's function."""

    def __init__(self, function: Callable[[Any, int], None]) -> None:
        self._function = function

    def write(self, df: DataFrame, batch_id: int) -> None:
        self._function(df, batch_id)
