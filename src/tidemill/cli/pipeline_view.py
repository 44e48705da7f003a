"""Shows how a pipeline's queries are doing while it runs: live on a terminal, else in lines.

Data goes to stdout when the run is over; this is for people, on stderr.
"""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self, TextIO

from tidemill.cli import output
from tidemill.cli.pipeline_status import lag_of

if TYPE_CHECKING:
    from rich.console import Group
    from rich.live import Live
    from rich.table import Table

    from tidemill.spark.progress import QueryStatus


class View(Protocol):
    """What the runner tells."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...

    def show(self, status: QueryStatus) -> None:
        """A query's status has changed."""

    def warn(self, message: str) -> None:
        """Something may go wrong."""


def view_for(stream: TextIO) -> View:
    """The view that suits a stream."""
    return LiveView(stream) if stream.isatty() else LineView(stream)


class LineView:
    """A line when a query starts, fails or ends."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._states: dict[str, tuple[str, int]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        return None

    def show(self, status: QueryStatus) -> None:
        state = (status.state, status.restarts)
        if self._states.get(status.query) == state:
            return
        self._states[status.query] = state
        line = f"{status.key}: {status.state}"
        if status.state in ("waiting", "failed") and status.error:
            line += f": {status.error}"
        print(line, file=self._stream, flush=True)

    def warn(self, message: str) -> None:
        print(f"warning: {message}", file=self._stream, flush=True)


class LiveView:
    """A table that is drawn anew as queries go on, with errors below it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._statuses: dict[str, QueryStatus] = {}
        self._live: Live | None = None

    def __enter__(self) -> Self:
        from rich.console import Console
        from rich.live import Live

        console = Console(file=self._stream, highlight=False)
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, status: QueryStatus) -> None:
        self._statuses[status.query] = status
        if self._live is not None:
            self._live.update(self._picture(), refresh=True)

    def warn(self, message: str) -> None:
        from rich.text import Text

        if self._live is not None:
            self._live.console.print(Text(f"warning: {message}", style="yellow"))

    def _picture(self) -> Group:
        from rich.console import Group
        from rich.text import Text

        errors = [
            Text(f"{status.query}: {status.error}", style="red")
            for status in self._statuses.values()
            if status.error and status.state in ("waiting", "failed")
        ]
        return Group(self._table(), *errors)

    def _table(self) -> Table:
        from rich.table import Table

        table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 1, 0, 0))
        for name in ("QUERY", "STATE", "ROWS", "ROWS/S", "LAG", "LATE", "WATERMARK", "LATENCY"):
            # Those that may be wrapped are narrowed first: a number that is cut is a wrong one.
            gives = name in ("QUERY", "WATERMARK")
            right = name in ("ROWS", "ROWS/S", "LAG", "LATE")
            table.add_column(
                name,
                justify="right" if right else "left",
                no_wrap=not gives,
                overflow="ellipsis",
            )
        for status in self._statuses.values():
            lag = lag_of(status)
            table.add_row(
                status.query,
                status.state,
                f"{status.rows:,}",
                f"{status.rows_per_second:,.0f}",
                "-" if lag is None else f"{lag:,}",
                f"{status.late_rows:,}",
                (status.watermark or "-")[:16].replace("T", " "),
                output.duration_text(status.latency_p50_ms) or "-",
            )
        return table
