"""The files of an index: their place, and the locks of the processes that use and write it.

Must not know: what is in the index.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from tidemill.eventstore.errors import IndexUnusableError


def default_folder() -> Path:
    """Return the folder of this user's indexes (XDG Base Directory Specification)."""
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "tidemill" / "eventstore"


def index_path(cluster: str, topic: str, folder: Path | str | None) -> Path:
    """Return the path of the index of a topic. Without a folder, each cluster has one."""
    if folder is None:
        name = "".join(each if each.isalnum() or each in "-_" else "_" for each in cluster)
        return default_folder() / (name or "cluster") / f"{topic}.sqlite"
    return Path(folder) / f"{topic}.sqlite"


class Lock:
    """A lock of a file, held by a process until it ends or gives it back.

    Raises:
        IndexUnusableError: the file can't be created.
    """

    def __init__(self, path: Path) -> None:
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise IndexUnusableError(f"{path} can't be created: {error}") from error

    def take(self, *, shared: bool = False) -> bool:
        """Take the lock if it is free; return whether this process has it."""
        kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        try:
            fcntl.flock(self._fd, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        """Give the lock back."""
        os.close(self._fd)


def make_private(path: Path) -> None:
    """Create a file that only this user can read, if it is missing. It has what the events have.

    Raises:
        IndexUnusableError: it can't be created.
    """
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    except OSError as error:
        raise IndexUnusableError(f"the index {path} can't be created: {error}") from error


def lock_path(index: Path) -> Path:
    """Return the path of the lock of what writes an index."""
    return index.with_name(index.name + ".lock")


def users_path(index: Path) -> Path:
    """Return the path of the lock that all share who use an index."""
    return index.with_name(index.name + ".users")


def remove(path: Path, *, by: Path | None = None) -> None:
    """Delete an index.

    Args:
        by: the file that takes its place.

    Raises:
        IndexUnusableError: another process uses it.
    """
    users = Lock(users_path(path))
    try:
        if not users.take():
            raise IndexUnusableError(
                f"other processes use the index {path}", hint="Stop them, then try again."
            )
        for suffix in ("", "-wal", "-shm"):
            path.with_name(path.name + suffix).unlink(missing_ok=True)
        if by is not None:
            by.replace(path)
    except OSError as error:
        raise IndexUnusableError(f"the index {path} can't be deleted: {error}") from error
    finally:
        users.close()
