"""Closes at the end of a ``with`` block. Must not know: what it closes."""

from __future__ import annotations

import abc
from typing import Self


class Closing(abc.ABC):
    """A context manager that closes at its end."""

    @abc.abstractmethod
    def close(self) -> None:
        """Close it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
