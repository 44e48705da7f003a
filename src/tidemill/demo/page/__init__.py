"""The demo's page in the console: New York's airports as their reports come in.

The demo starts a gateway with ``console.pages`` set to this package, which is all that the gateway
knows of it. ``live`` has what is shown, ``following`` reads the topics, ``places`` has the map, and
``view`` puts them together. Must not know: how the demo runs.
"""

from __future__ import annotations

from tidemill.demo.page.view import PAGE

PAGES = [PAGE]

__all__ = ["PAGES"]
