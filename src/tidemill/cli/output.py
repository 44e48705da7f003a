"""Prints what commands have to say: data on stdout, everything else on stderr.

Notes and progress appear only on a terminal; ``error:``, ``warning:`` and ``hint:`` lines always.
Tables have no borders, so that ``cut`` and ``grep`` work. NO_COLOR is respected. This module must
not know a broker.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TextIO

from tidemill.amqp_client.errors import AmqpConflictError, AmqpNotFoundError, AmqpUrlError
from tidemill.connect.base.errors import DeclaredError, DefinitionExistsError
from tidemill.connect.cdc.errors import DefinitionError, FencedError
from tidemill.connect.direct import errors as bridges
from tidemill.connect.webhooks import errors as webhooks
from tidemill.errors import (
    SettingsError,
    TidemillError,
    TopicExistsError,
    UnknownTopicOrPartitionError,
    UnreachableError,
)
from tidemill.eventstore import errors as events
from tidemill.kafka_client.errors import RefusedError
from tidemill.log.errors import DataDirLockedError, InvalidTxnStateError
from tidemill.spark.errors import PipelineRunningError
from tidemill.state.errors import (
    ConcurrentTransactionsError,
    FencedInstanceIdError,
    GroupIdNotFoundError,
    GroupSubscribedToTopicError,
    NonEmptyGroupError,
    TransactionalIdNotFoundError,
    UnknownTopicIdError,
)
from tidemill.workers.errors import UnknownWorkerError, WorkerNotNeededError

OK, FAILURE, USAGE, NOT_FOUND, CONFLICT, UNREACHABLE = range(6)
"""Exit codes."""


class UsageError(TidemillError):
    """The options or arguments are invalid."""


class NoAnswerError(TidemillError):
    """The input ended where a question was asked."""


class NotFoundError(TidemillError):
    """The thing that a command is about does not exist."""


class ConflictError(TidemillError):
    """A command can't be done with what exists."""


class AddressInUseError(TidemillError):
    """Another process listens on the address."""


_EXIT_CODES: tuple[tuple[tuple[type[TidemillError], ...], int], ...] = (
    (
        (
            UsageError,
            AmqpUrlError,
            SettingsError,
            DefinitionError,
            webhooks.DefinitionError,
            bridges.DefinitionError,
            events.InvalidCommitError,
        ),
        USAGE,
    ),
    (
        (
            UnknownTopicOrPartitionError,
            UnknownTopicIdError,
            GroupIdNotFoundError,
            TransactionalIdNotFoundError,
            NotFoundError,
            AmqpNotFoundError,
            UnknownWorkerError,
        ),
        NOT_FOUND,
    ),
    (
        (
            ConflictError,
            AmqpConflictError,
            TopicExistsError,
            NonEmptyGroupError,
            GroupSubscribedToTopicError,
            FencedInstanceIdError,
            InvalidTxnStateError,
            ConcurrentTransactionsError,
            DataDirLockedError,
            PipelineRunningError,
            AddressInUseError,
            DefinitionExistsError,
            DeclaredError,
            events.ConflictError,
            FencedError,
            webhooks.FencedError,
            WorkerNotNeededError,
        ),
        CONFLICT,
    ),
    ((UnreachableError,), UNREACHABLE),
)


def exit_code(error: TidemillError) -> int:
    """Return the exit code for ``error``."""
    kind = _kind_of(error.code) if isinstance(error, RefusedError) else type(error)
    return next((code for kinds, code in _EXIT_CODES if issubclass(kind, kinds)), FAILURE)


def _kind_of(code: int) -> type[TidemillError]:
    """Return the type of error that a code of a broker means."""
    from tidemill.protocols.kafka.error_codes import CODES  # most commands don't need it

    return next((kind for kind, number in CODES.items() if number == code), TidemillError)


# --- terminals -----------------------------------------------------------------------------------


def colored(stream: TextIO) -> bool:
    """Return whether the text on ``stream`` is to be colored (https://no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def style(text: str, code: str, stream: TextIO) -> str:
    """Return ``text`` in an ANSI style (``1`` bold, ``2`` dim, ``31`` red), if colors are on."""
    return f"\x1b[{code}m{text}\x1b[0m" if colored(stream) else text


def error(message: str, hint: str = "") -> None:
    """Print an error, and a hint if there is one."""
    print(f"{style('error:', '1;31', sys.stderr)} {message}", file=sys.stderr)
    if hint:
        print(f"{style('hint:', '1;36', sys.stderr)} {hint}", file=sys.stderr)


def raise_all(failures: Sequence[TidemillError]) -> None:
    """Print all errors but the first, and raise the first one.

    Raises:
        TidemillError: the first of ``failures``, if there is one.
    """
    for failure in failures[1:]:
        error(str(failure), failure.hint)
    if failures:
        raise failures[0]


def warn(message: str) -> None:
    """Print a warning: the command does something else than what was probably meant."""
    with contextlib.suppress(OSError):
        print(f"{style('warning:', '1;33', sys.stderr)} {message}", file=sys.stderr, flush=True)


def note(message: str) -> None:
    """Print a note for a person: only on a terminal, and not if it was closed."""
    with contextlib.suppress(OSError):
        if sys.stderr.isatty():
            print(style(message, "2", sys.stderr), file=sys.stderr, flush=True)


def can_ask() -> bool:
    """Return whether a person can answer a question."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def confirm(question: str, *, yes: bool) -> None:
    """Ask for confirmation before something is deleted or changed.

    Raises:
        UsageError: this is not a terminal, and there is no ``--yes``.
        NoAnswerError: the input has ended (Ctrl-D).
        TidemillError: the user did not confirm.
    """
    if yes:
        return
    if not can_ask():
        raise UsageError(
            f"confirmation needed, but this is not a terminal: {question}",
            hint="Add --yes to do it, or --dry-run to see what would happen.",
        )
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    answer = sys.stdin.readline()
    if not answer:
        print(file=sys.stderr)
    if answer.strip().lower() not in ("y", "yes"):
        kind = TidemillError if answer else NoAnswerError
        raise kind("not confirmed: nothing was changed")


# --- the end of stdout ----------------------------------------------------------------------------


def flush_in_time(seconds: float = 1.0) -> None:
    """Flush stdout when a command was interrupted. Drop what its reader doesn't take in time.

    A flush at the exit would wait until the reader of a full pipe reads again.
    """
    try:
        descriptor = sys.stdout.fileno()
    except OSError:  # no file descriptor: stdout was replaced
        return
    deadline = time.monotonic() + seconds
    os.set_blocking(descriptor, False)
    try:
        while True:
            try:
                sys.stdout.flush()
                return
            except BlockingIOError:
                left = max(0.0, deadline - time.monotonic())
                if not select.select([], [descriptor], [], left)[1]:
                    break
            except BrokenPipeError:
                break
    finally:
        os.set_blocking(descriptor, True)  # other processes can have it, too
    drop_stdout()


def drop_stdout() -> None:
    """Drop what is written to stdout from now on, and what was not flushed: no one reads it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


# --- data ----------------------------------------------------------------------------------------


def emit_json(value: object) -> None:
    """Print a JSON document as one line on stdout."""
    print(json.dumps(value, ensure_ascii=False, default=str))


def emit_table(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print columns of text. A column of numbers is aligned to the right."""
    headers = [cell(header) for header in headers]
    cells = [[cell(value) for value in row] for row in rows]
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


Column = str | Callable[[Mapping[str, Any]], object]
"""The name of a value, or what makes it."""
Columns = Mapping[str, Column]
"""Columns by their titles."""


def titled(*keys: str) -> Columns:
    """Return the columns of values whose titles are their names."""
    return {key.upper(): key for key in keys}


def emit_columns(
    columns: Columns, found: Sequence[Mapping[str, Any]], *, as_json: bool = False
) -> None:
    """Print a table with a line for each mapping, or all that the mappings have as JSON."""
    if as_json:
        emit_json(found)
        return

    def value(record: Mapping[str, Any], column: Column) -> object:
        return record.get(column) if isinstance(column, str) else column(record)

    emit_table([*columns], [[value(each, of) for of in columns.values()] for each in found])


def emit_fields(fields: Sequence[tuple[str, object]]) -> None:
    """Print names and values, one per line."""
    width = max(len(name) for name, _ in fields)
    for name, value in fields:
        print(f"{style(name.ljust(width), '2', sys.stdout)}  {cell(value)}".rstrip())


def cell(value: object) -> str:
    """Return a value for the terminal, with escapes for what would change the terminal."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "true" if value else "false"
    text = str(value)
    return text if text.isprintable() else repr(text)[1:-1]


def _is_number(cell: str) -> bool:
    return cell == "-" or cell[:1].isdigit() or (cell[:1] in "-+" and cell[1:2].isdigit())


def size_text(size: int | None) -> str | None:
    """Return a number of bytes for people: ``1.2 MB``."""
    if size is None:
        return None
    amount = float(size)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} TB"


def duration_text(milliseconds: int | None) -> str | None:
    """Return a duration for people, with two units at most: ``3h 12m``."""
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
    """Return a number with its noun: ``1 record``, ``2 records``."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")
