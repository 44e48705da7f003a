"""Chooses between the two editions of what a module does: native code, and Python."""

from __future__ import annotations

from types import ModuleType

import pytest

from tidemill import native

needs_native = pytest.mark.skipif(native.load() is None, reason="the extension is not built")
both_editions = pytest.mark.parametrize(
    "edition", [pytest.param("native", marks=needs_native), "python"]
)


def use(monkeypatch: pytest.MonkeyPatch, module: ModuleType, edition: str) -> None:
    """Let a module work with an edition. Its ``_native`` is the extension, or None."""
    monkeypatch.setattr(module, "_native", native.load() if edition == "native" else None)
