"""Secrets reach libpq as they are, and are shown nowhere."""

from __future__ import annotations

import pytest

pytest.importorskip("psycopg", reason="needs the extra postgres")

from psycopg.conninfo import conninfo_to_dict

from tidemill.connect.cdc.definition import parse
from tidemill.connect.cdc.postgres.settings import settings_of


@pytest.mark.parametrize(
    "database",
    [
        {"host": "h", "password": "${env:SHOP_PASSWORD}"},
        {"dsn": "host=h password=${env:SHOP_PASSWORD}"},
        {"url": "postgresql://u:${env:SHOP_PASSWORD}@h/d"},
    ],
)
def test_a_password_from_the_environment_reaches_libpq(
    monkeypatch: pytest.MonkeyPatch, database: dict[str, str]
) -> None:
    monkeypatch.setenv("SHOP_PASSWORD", "hunter2")
    capture = parse({"name": "x", "kind": "postgres", "database": database}).capture()
    assert conninfo_to_dict(settings_of(capture).conninfo)["password"] == "hunter2"
    assert "hunter2" not in repr(capture)
