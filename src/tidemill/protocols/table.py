"""The protocols that the broker serves. A new one is a folder and a line here."""

from __future__ import annotations

import importlib

from tidemill.protocols.contract import Protocol
from tidemill.protocols.listeners import NamedListener
from tidemill.protocols.logins.settings import LoginSettings, OauthSettings
from tidemill.settings import Section

PROTOCOLS = [
    "tidemill.protocols.kafka.protocol",
    "tidemill.protocols.amqp.protocol",
    "tidemill.protocols.http.protocol",
]
"""Modules, each with the ``Protocol`` object ``PROTOCOL``. They are served in this order."""


SECTIONS: list[type[Section]] = [NamedListener, LoginSettings, OauthSettings]
"""Sections of the settings that several protocols have together."""


def protocols() -> list[Protocol]:
    """Return all protocols. This imports their declarations and not their servers."""
    return [importlib.import_module(module).PROTOCOL for module in PROTOCOLS]
