"""The protocols that the broker serves. A new one is a folder and a line here."""

from __future__ import annotations

import importlib

from tidemill.protocols.contract import Protocol

PROTOCOLS = [
    "tidemill.protocols.kafka.protocol",
    "tidemill.protocols.amqp.protocol",
    "tidemill.protocols.http.protocol",
]
"""Modules, each with the ``Protocol`` object ``PROTOCOL``. They are served in this order."""


def protocols() -> list[Protocol]:
    """Return all protocols. This imports their declarations and not their servers."""
    return [importlib.import_module(module).PROTOCOL for module in PROTOCOLS]
