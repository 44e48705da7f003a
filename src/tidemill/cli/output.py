"""How the command line talks: data on stdout, everything else on stderr. Knows no broker.

Notes and progress are for people and appear only on a terminal; ``error:`` and ``hint:`` lines
always. Tables have no borders, so that they can be cut and grepped. NO_COLOR is honoured.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterable, Sequence
from typing import TextIO

from tidemill.errors import (
    ConcurrentTransactionsError,
    DataDirLockedError,
    FencedInstanceIdError,
    GroupIdNotFoundError,
    GroupSubscribedToTopicError,
    InvalidTxnStateError,
    NonEmptyGroupError,
    PipelineRunningError,
    SettingsError,
    TidemillError,
    TopicExistsError,
    TransactionalIdNotFoundError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
    UnreachableError,
)

OK, FAILURE, USAGE, NOT_FOUND, CONFLICT, UNREACHABLE = range(6)
"""Exit codes."""


class UsageError(TidemillError):
    """The command was called in a way that can't mean anything."""


class NotFoundError(TidemillError):
    """What was named is not there."""


class AddressInUseError(TidemillError):
    """Another process listens on the address."""


_EXIT_CODES: tuple[tuple[tuple[type[TidemillError], ...], int], ...] = (
    ((UsageError, SettingsError), USAGE),
    (
        (
            UnknownTopicOrPartitionError,
            UnknownTopicIdError,
            GroupIdNotFoundError,
            TransactionalIdNotFoundError,
            NotFoundError,
        ),
        NOT_FOUND,
    ),
    (
        (
            TopicExistsError,
            NonEmptyGroupError,
            GroupSubscribedToTopicError,
            FencedInstanceIdError,
            InvalidTxnStateError,
            ConcurrentTransactionsError,
            DataDirLockedError,
            PipelineRunningError,
            AddressInUseError,
        ),
        CONFLICT,
    ),
    ((UnreachableError,), UNREACHABLE),
)


def exit_code(error: TidemillError) -> int:
    """The exit code that stands for ``error``."""
    return next((code for kinds, code in _EXIT_CODES if isinstance(error, kinds)), FAILURE)


# --- terminals -----------------------------------------------------------------------------------


def colored(stream: TextIO) -> bool:
    """Whether to colour what goes to ``stream`` (https://no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def style(text: str, code: str, stream: TextIO) -> str:
    """``text`` in an ANSI style (``1`` bold, ``2`` dim, ``31`` red ...) where colour is wanted."""
    return f"\x1b[{code}m{text}\x1b[0m" if colored(stream) else text


def error(message: str, hint: str = "") -> None:
    """Say what failed and, if known, what to do about it."""
    print(f"{style('error:', '1;31', sys.stderr)} {message}", file=sys.stderr)
    if hint:
        print(f"{style('hint:', '1;36', sys.stderr)} {hint}", file=sys.stderr)


def raise_all(failures: Sequence[TidemillError]) -> None:
    """Name every failure of a command that goes on after one; its exit code is the first's.

    Raises:
        TidemillError: there is one.
    """
    for failure in failures[1:]:
        error(str(failure), failure.hint)
    if failures:
        raise failures[0]


def note(message: str) -> None:
    """Say something that only a person wants to know; a terminal that was closed needs no notes."""
    with contextlib.suppress(OSError):
        if sys.stderr.isatty():
            print(style(message, "2", sys.stderr), file=sys.stderr, flush=True)


def can_ask() -> bool:
    """Whether there is somebody to answer a question."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def confirm(question: str, *, yes: bool) -> None:
    """Ask before something is destroyed.

    Raises:
        UsageError: there is nobody to ask and ``--yes`` was not given.
        TidemillError: the answer was no.
    """
    if yes:
        return
    if not can_ask():
        raise UsageError(
            f"nobody can be asked here: {question}",
            hint="Add --yes to do it, or --dry-run to see what it would do.",
        )
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise TidemillError("not confirmed: nothing was changed")


# --- data ----------------------------------------------------------------------------------------


def emit_json(value: object) -> None:
    """One JSON document on a line of stdout."""
    print(json.dumps(value, ensure_ascii=False, default=str))


def emit_table(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Columns of text; a column that holds only numbers is aligned to the right."""
    cells = [[_cell(value) for value in row] for row in rows]
    rows_by_column = list(zip(*cells, strict=True)) if cells else [() for _ in headers]
    numeric = [all(_is_number(cell) for cell in column) for column in rows_by_column]
    widths = [
        max(len(header), *(len(cell) for cell in column), 0)
        for header, column in zip(headers, rows_by_column, strict=True)
    ]

    def line(values: Sequence[str]) -> str:
        fitted = (
            value.rjust(width) if right else value.ljust(width)
            for value, width, right in zip(values, widths, numeric, strict=True)
        )
        return "  ".join(fitted).rstrip()

    print(style(line(headers), "2", sys.stdout))
    for row in cells:
        print(line(row))


def emit_fields(fields: Sequence[tuple[str, object]]) -> None:
    """Names and values, one a line."""
    width = max(len(name) for name, _ in fields)
    for name, value in fields:
        print(f"{style(name.ljust(width), '2', sys.stdout)}  {_cell(value)}".rstrip())


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "true" if value else "false"
    text = str(value)
    return text if text.isprintable() else repr(text)[1:-1]


def _is_number(cell: str) -> bool:
    return cell == "-" or cell[:1].isdigit() or (cell[:1] in "-+" and cell[1:2].isdigit())


def size_text(size: int | None) -> str | None:
    """Bytes for people: ``1.2 MB``."""
    if size is None:
        return None
    amount = float(size)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} TB"


def duration_text(milliseconds: int | None) -> str | None:
    """A duration for people, two units at most: ``3h 12m``."""
    if milliseconds is None:
        return None
    if milliseconds < 1000:
        return f"{milliseconds}ms"
    seconds = milliseconds // 1000
    parts: list[str] = []
    for unit, length in (("d", 86_400), ("h", 3600), ("m", 60), ("s", 1)):
        amount, seconds = divmod(seconds, length)
        if amount or parts:
            parts.append(f"{amount}{unit}")
    return " ".join(part for part in parts[:2] if not part.startswith("0"))


def plural(count: int, noun: str) -> str:
    """``1 record``, ``2 records``."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")
