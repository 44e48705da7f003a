"""Shows a pipeline's queries while it runs: a live table on a terminal, lines elsewhere.

This is for people, on stderr. The command prints data on stdout when the run is over. This module
must not know how a pipeline runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self, TextIO

from tidemill.cli import output
from tidemill.cli.pipeline.status import lag_of

if TYPE_CHECKING:
    from rich.console import Group
    from rich.live import Live
    from rich.table import Table

    from tidemill.spark.pipelines.progress import QueryStatus


def view_for(stream: TextIO) -> LineView | LiveView:
    """Return the view for a stream."""
    return LiveView(stream) if stream.isatty() else LineView(stream)


class LineView:
    """Prints a line when a query starts, fails or ends."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._states: dict[str, tuple[str, int]] = {}
        self._first_with: dict[str, str] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def show(self, status: QueryStatus) -> None:
        """Show the changed status of a query."""
        state = (status.state, status.restarts)
        if self._states.get(status.query) == state:
            return
        self._states[status.query] = state
        line = f"{status.key}: {status.state}"
        if status.state in ("waiting", "failed") and status.error:
            first = self._first_with.setdefault(status.general_error, status.query)
            line += f": {status.error if first == status.query else f'the same error as {first}'}"
        print(line, file=self._stream, flush=True)

    def warn(self, message: str) -> None:
        print(f"warning: {message}", file=self._stream, flush=True)


class LiveView:
    """Shows a table that is updated when a status changes, with errors below it."""

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

    def __exit__(self, *_: object) -> None:
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

        from tidemill.spark.pipelines.progress import errors_of

        troubled = [
            status
            for status in self._statuses.values()
            if status.error and status.state in ("waiting", "failed")
        ]
        errors = [Text(line, style="red") for line in errors_of(troubled)]
        return Group(self._table(), *errors)

    def _table(self) -> Table:
        from rich.table import Table

        table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 1, 0, 0))
        for name in ("QUERY", "STATE", "ROWS", "ROWS/S", "LAG", "LATE", "WATERMARK", "LATENCY"):
            # On a narrow terminal, only these columns may be wrapped: numbers must not be cut.
            may_wrap = name in ("QUERY", "WATERMARK")
            right = name in ("ROWS", "ROWS/S", "LAG", "LATE")
            table.add_column(
                name,
                justify="right" if right else "left",
                no_wrap=not may_wrap,
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
