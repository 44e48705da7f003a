"""The pages of the console, in the order of the navigation: one line for each.

Must not know: how pages are served.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path

from tidemill.errors import SettingsError
from tidemill.gateway.console import alerts, groups, overview, queues, sql, topics, transactions
from tidemill.gateway.console.contract import Check, Page
from tidemill.gateway.console.messages import pages as messages
from tidemill.gateway.console.workers import definitions, pipelines, stores

PAGES: Sequence[Page] = [
    overview.PAGE,
    topics.LIST,
    topics.DETAIL,
    messages.LIST,
    messages.DETAIL,
    messages.PRODUCE,
    sql.PAGE,
    groups.GROUPS,
    groups.GROUP,
    groups.SHARES,
    queues.QUEUES,
    queues.QUEUE,
    queues.CONNECTIONS,
    transactions.PAGE,
    alerts.PAGE,
    pipelines.LIST,
    pipelines.ONE,
    *definitions.PAGES,
    *stores.PAGES,
]

CHECKS: Sequence[Check] = [
    overview.check,
    queues.check,
    transactions.check,
    alerts.check,
    pipelines.check,
    definitions.check,
]
"""What the overview asks for things that need attention."""


def pages_of(modules: Sequence[str]) -> tuple[list[Page], list[Path]]:
    """Return all pages, with those of modules that come from elsewhere, and folders of templates.

    Raises:
        SettingsError: a module can't be imported, has no list ``PAGES``, or has an address that is
            used already.
    """
    pages, folders = list(PAGES), []
    for name in modules:
        try:
            module = importlib.import_module(name)
        except ImportError as error:
            raise SettingsError(
                f"console.pages: module {name} can't be imported: {error}",
                hint="Install its package beside tidemill.",
            ) from error
        more = getattr(module, "PAGES", None)
        if not isinstance(more, list) or not all(isinstance(each, Page) for each in more):
            raise SettingsError(f"console.pages: module {name} has no list PAGES of pages")
        pages += more
        folders.append(Path(str(module.__file__)).parent / "templates")
    known: set[str] = set()
    for each in pages:
        if each.address in known:
            raise SettingsError(f"console.pages: two pages have the address {each.address}")
        known.add(each.address)
    return pages, folders
