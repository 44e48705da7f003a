"""Files and ranges of them, for the tests of what is sent."""

from __future__ import annotations

import os
from pathlib import Path


class FileRange:
    """A range of an open file."""

    def __init__(self, path: Path, position: int, size: int) -> None:
        self.fd = os.open(path, os.O_RDWR)
        self.position = position
        self._size = size
        self._closed = False

    def __len__(self) -> int:
        return self._size

    def close(self) -> None:
        """Close the file; the range keeps a number that no other file has now."""
        if not self._closed:
            self._closed = True
            os.close(self.fd)

    def __del__(self) -> None:
        self.close()


def content(path: Path, size: int) -> bytes:
    """Write random bytes, the same in each 4 KiB, to a file, and return them."""
    data = (os.urandom(4096) * (size // 4096 + 1))[:size]
    path.write_bytes(data)
    return data
