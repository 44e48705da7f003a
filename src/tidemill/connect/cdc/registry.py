"""Find the class of a source by its kind: built in, or an entry point of another package.

Must not know: how a source works.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from tidemill.connect.cdc.errors import DefinitionError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tidemill.connect.cdc.contract import Capture, Source

GROUP = "tidemill.sources"
"""The group of entry points. Each is a callable that takes a ``Capture`` and returns a source."""

BUILT_IN = {
    "sqlite": ("tidemill.connect.cdc.sqlite", "SqliteSource"),
    "mariadb": ("tidemill.connect.cdc.mariadb", "MariaDbSource"),
    "mysql": ("tidemill.connect.cdc.mysql", "MySqlSource"),
    "postgres": ("tidemill.connect.cdc.postgres", "PostgresSource"),
}


def kinds() -> list[str]:
    """Return the kinds of sources that are installed."""
    return sorted({*BUILT_IN, *(each.name for each in entry_points(group=GROUP))})


def source_class(kind: str) -> Callable[[Capture], Source]:
    """Return what makes a source of this kind.

    Raises:
        DefinitionError: there is no such kind, or its package is not installed.
    """
    for entry in entry_points(group=GROUP):
        if entry.name == kind:
            loaded: Callable[[Capture], Source] = entry.load()
            return loaded
    if kind not in BUILT_IN:
        raise DefinitionError(
            f"unknown kind of source {kind!r}", hint=f"Installed kinds: {', '.join(kinds())}."
        )
    module, name = BUILT_IN[kind]
    try:
        found: Callable[[Capture], Source] = getattr(import_module(module), name)
    except ImportError as error:
        raise DefinitionError(
            f"sources of kind {kind} can't be used here: {error}",
            hint=f"Install what they need: pip install 'tidemill[{kind}]'",
        ) from error
    return found
