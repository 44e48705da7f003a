"""Secrets come from the environment or a file, and are never shown."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from tidemill.connect.base.secrets import Secret, find_plain, redact, references, resolve
from tidemill.connect.cdc.definition import Definition, parse
from tidemill.errors import SettingsError


def test_references_are_resolved_to_texts_that_hide_themselves(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("SHOP_PASSWORD", "hunter2")
    (tmp_path / "secret").write_text("hunter3\n")
    found = resolve(
        {"password": "${env:SHOP_PASSWORD}", "more": [f"x${{file:{tmp_path}/secret}}y"], "n": 1}
    )
    assert found["password"] == "hunter2"
    assert found["more"][0].reveal() == "xhunter3y"
    assert found["n"] == 1
    with caplog.at_level(logging.INFO):
        logging.getLogger("x").info("%s %r %s", found["password"], found, f"{found['password']}")
    assert "hunter" not in caplog.text


def test_a_reference_to_nothing_is_named_without_a_value(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="variable NO_SUCH_VARIABLE is not set"):
        resolve("${env:NO_SUCH_VARIABLE}")
    with pytest.raises(SettingsError, match="can't be read: No such file"):
        resolve(f"${{file:{tmp_path}/missing}}")


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ({"password": "x"}, ["password"]),
        ({"database": {"url": "postgresql://u:x@h/d"}}, ["database.url"]),
        ({"database": {"dsn": "host=h password=x"}}, ["database.dsn"]),
        ({"hash_key": "x", "api_token": "t"}, ["hash_key", "api_token"]),
        ({"password": "${env:A}", "url": "postgresql://u:${env:A}@h/d"}, []),
        ({"password_file": ""}, []),
        ({"url": "postgresql://u@h/d", "path": "a.db"}, []),
    ],
)
def test_plain_secrets_are_found(values: dict[str, object], found: list[str]) -> None:
    assert find_plain(values) == found


def test_passwords_in_texts_are_hidden() -> None:
    text = "can't connect to postgresql://user:hunter2@host/db or host=h password=hunter2 port=1"
    shown = redact(text)
    assert "hunter2" not in shown
    assert "user" in shown
    assert "port=1" in shown


def test_a_definition_stores_references_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_PASSWORD", "hunter2")
    definition = parse(
        {"name": "x", "kind": "postgres", "database": {"password": "${env:SHOP_PASSWORD}"}}
    )
    assert b"hunter2" not in definition.encode()
    assert Definition.decode(definition.encode()) == definition
    capture = definition.capture()
    assert capture.database["password"] == Secret("hunter2")
    assert "hunter2" not in repr(capture)


def test_variables_that_a_definition_refers_to_are_named() -> None:
    database = {
        "user": "u",
        "password": "${env:SECOND}",
        "more": ["${file:/x}", "a${env: FIRST }b"],
    }
    assert sorted(references([database, "${env:KEY}", 7])) == ["FIRST", "KEY", "SECOND"]
    with pytest.raises(SettingsError) as caught:
        resolve("${env:NO_SUCH_VARIABLE}")
    assert "environment with which the broker was started" in caught.value.hint
