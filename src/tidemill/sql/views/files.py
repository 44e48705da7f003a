"""The folders of views: which board defines a view, and what views that are gone have left.

A worker can share a folder with others, also of other clusters. So it deletes only folders that it
knows to be of its own board, and in them only what it has made. Must not know: DuckDB.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Collection
from pathlib import Path

import structlog

from tidemill.confluent.asking import TopicQuestions
from tidemill.sql.views.topics import VIEWS

_BOARD = "board"
"""The file with the id of the topic that defines the view."""

log = structlog.get_logger("tidemill.views")


def board(asking: TopicQuestions) -> str:
    """Return the id of the topic that defines views; empty if there is none, or it has no id."""
    found = asking.identity(VIEWS)
    return "" if found is None or found == VIEWS else found


def mark(own: Path, board: str) -> None:
    """Note which board defines the view of a folder.

    Args:
        board: the id of the board's topic; if it is empty, its files are never deleted.
    """
    if board and _board_of(own) != board:
        (own / _BOARD).write_text(board)


def tidy(folder: Path, board: str, names: Collection[str]) -> None:
    """Delete the files of views that a board does not define any more.

    Args:
        folder: has the folders of views.
        board: the id of the board's topic; if it is empty, nothing is deleted.
        names: the views that there are.
    """
    for own in _folders(folder) if board else ():
        if own.name in names or own.is_symlink() or _board_of(own) != board:
            continue
        try:
            size = _delete(own)
        except OSError as error:
            log.warning("view.files_left", view=own.name, folder=str(own), error=str(error))
        else:
            log.info("view.files_deleted", view=own.name, folder=str(own), bytes=size)


def _folders(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:  # there is none yet; if it can't be read, views say so
        return []


def _board_of(own: Path) -> str:
    try:
        return (own / _BOARD).read_text()
    except (OSError, UnicodeDecodeError):
        return ""


def _delete(own: Path) -> int:
    size = 0
    for path in own.glob("*.duckdb*"):  # also the log and the temporary folder of a database
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            size += path.lstat().st_size
            path.unlink()
    (own / _BOARD).unlink()
    with contextlib.suppress(OSError):  # a user has put something there
        own.rmdir()
    return size
