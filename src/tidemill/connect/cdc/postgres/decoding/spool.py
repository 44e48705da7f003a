"""Keeps the changes of large transactions that are not committed yet, on disk.

With ``streaming 'on'`` the server sends parts of large transactions before their commit, mixed with
other transactions. What a rolled back savepoint did is dropped. A file has no name and
disappears with the process: after a crash the server sends the transaction again.
Must not know: connections, tables, values.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from struct import Struct
from typing import IO

from tidemill.connect.cdc.errors import SourceUnavailableError

_frame = Struct(">IIQ")  # length of the message, subtransaction, LSN
_BUFFER = 256 * 1024


class Spool:
    """The messages of one transaction, in the order in which they came."""

    def __init__(self, folder: str | None) -> None:
        self._file: IO[bytes] = tempfile.TemporaryFile(  # noqa: SIM115 - closed by close
            buffering=_BUFFER, prefix="tidemill-cdc-", dir=folder
        )
        self.aborted: set[int] = set()

    def add(self, sub: int, lsn: int, message: bytes) -> None:
        """Append a message of a subtransaction."""
        try:
            self._file.write(_frame.pack(len(message), sub, lsn))
            self._file.write(message)
        except OSError as fault:
            raise SourceUnavailableError(
                f"can't keep a large transaction until its commit: {fault}",
                hint="Free disk space, set database.spool_dir, or set database.streaming = false: "
                "then the server keeps it.",
            ) from None

    def messages(self) -> Iterator[tuple[int, int, bytes]]:
        """Yield subtransaction, LSN and message of everything, from the beginning."""
        self._file.seek(0)
        while header := self._file.read(_frame.size):
            length, sub, lsn = _frame.unpack(header)
            yield sub, lsn, self._file.read(length)

    def close(self) -> None:
        """Free the disk space."""
        self._file.close()


class Spools:
    """The spools of all transactions that the server is streaming."""

    def __init__(self, folder: str | None) -> None:
        self._folder = folder
        self._open: dict[int, Spool] = {}

    def of(self, xid: int) -> Spool:
        """Return the spool of a transaction, a new one if it is the first part."""
        found = self._open.get(xid)
        if found is None:
            try:
                found = self._open[xid] = Spool(self._folder)
            except OSError as fault:
                raise SourceUnavailableError(
                    f"can't make a temporary file for a large transaction: {fault}",
                    hint="Set database.spool_dir to a folder that exists and can be written.",
                ) from None
        return found

    def abort(self, xid: int, sub: int) -> None:
        """Drop a transaction, or note that one of its subtransactions was rolled back."""
        if sub != xid:
            self.of(xid).aborted.add(sub)
        elif xid in self._open:
            self._open.pop(xid).close()

    def take(self, xid: int) -> Spool | None:
        """Return the spool of a committed transaction; the caller closes it."""
        return self._open.pop(xid, None)

    def __len__(self) -> int:
        return len(self._open)

    def close(self) -> None:
        """Drop everything."""
        while self._open:
            self._open.popitem()[1].close()
