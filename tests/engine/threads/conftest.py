"""Which edition of the threads a test runs: the native one, or Python's."""

from __future__ import annotations

import pytest

from tidemill import native, system


@pytest.fixture(params=["native", "python"])
def edition(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "native":
        if native.load() is None or not system.is_linux():
            pytest.skip("the extension is not built")
    else:
        monkeypatch.setenv(native.SWITCH, "0")
    return str(request.param)
