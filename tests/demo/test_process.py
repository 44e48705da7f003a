"""The demo's own broker starts, whatever settings the user has for another one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidemill.demo.process import BrokerProcess


def test_the_users_settings_do_not_apply_to_the_demos_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEMILL_CONFIG", "missing.toml")
    monkeypatch.setenv("TIDEMILL_NODE_ID", "invalid")
    with BrokerProcess(tmp_path / "data", tmp_path / "broker.log") as broker:
        assert broker.bootstrap_servers.startswith("127.0.0.1:")
