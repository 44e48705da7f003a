"""``tidemill events archive``, and what reads an archive."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import CommandLine
from tests.support.broker_process import BrokerProcess


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with BrokerProcess(tmp_path_factory.mktemp("broker")) as broker:
        yield broker.bootstrap


def test_a_store_is_archived_verified_and_built_from_its_checkpoint(
    bootstrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    line, folder = CommandLine(bootstrap, tmp_path), str(tmp_path / "archive")
    for number in range(4):
        line.ok("events", "append", "shop", "cart-1", "added", "-d", str(number))
    before = line.ok("events", "read", "shop")
    printed = line.ok("events", "archive", "shop", folder)
    assert "archived 3 records of shop" in printed
    found = json.loads(line.ok("events", "verify", "shop", "--archive", folder, "--json"))
    assert (found["accepted"], found["events"]) == (4, 4)
    done = line.run("events", "verify", "shop")
    assert done.returncode == 1
    assert "events verify --archive FOLDER" in done.stderr
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "elsewhere"))
    other = CommandLine(bootstrap, tmp_path)
    assert other.run("events", "read", "shop").returncode == 1
    (checkpoint,) = Path(folder).glob("checkpoint-*")
    assert "4 events" in other.ok("events", "rebuild", "shop", "--checkpoint", str(checkpoint))
    assert other.ok("events", "read", "shop") == before
    assert line.run("events", "archive", "shop", "/dev/null/x").returncode == 1
