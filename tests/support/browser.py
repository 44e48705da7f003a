"""A headless Chromium for tests of pages. They are nightly, and skipped where it is missing.

A file of tests names the fixture, ``browser = chromium``, and has ``pytestmark = WITH_BROWSER``.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

_CHROMIUM = shutil.which("chromium")
WITH_BROWSER = [
    pytest.mark.nightly,
    pytest.mark.slow,
    pytest.mark.skipif(_CHROMIUM is None, reason="there is no chromium"),
]


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """A browser for the tests of a file."""
    with sync_api.sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=_CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()
