"""Fixtures for the tests of the engine."""

from __future__ import annotations

import pytest

from tidemill.engine import journaling


@pytest.fixture
def no_extents(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the sync of the second place that knows the journal's last entry.

    It comes a tenth of a second after the entry, and would be counted with others.
    """
    monkeypatch.setattr(journaling, "EXTENT_S", 3600.0)
