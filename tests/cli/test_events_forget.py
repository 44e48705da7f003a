"""``tidemill events forget`` and ``tidemill events keys``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import CommandLine
from tests.support.broker_process import BrokerProcess
from tidemill.confluent.clients import Kafka
from tidemill.eventstore.events import NewEvent
from tidemill.eventstore.forgetting.cipher import Masters
from tidemill.eventstore.forgetting.keyring import Keyring
from tidemill.eventstore.forgetting.sealed import SealedStore
from tidemill.eventstore.store import Store

FIELDS = {"registered": {"email": "id"}}


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with BrokerProcess(tmp_path_factory.mktemp("broker")) as broker:
        yield broker.bootstrap


def test_a_person_is_forgotten_by_a_command(
    bootstrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    line, key_file = CommandLine(bootstrap, tmp_path), str(tmp_path / "master")
    assert "created" in line.ok("events", "keys", "init", key_file)
    assert line.run("events", "keys", "init", key_file).returncode == 1
    kafka = Kafka(bootstrap)
    with Store(kafka, "shop") as plain:
        store = SealedStore(plain, Keyring(kafka, "shop", Masters.read(key_file)), FIELDS)
        store.append("c-1", [NewEvent("registered", b'{"id": "ann", "email": "a@example.org"}')])
        assert "wraps 1 key of shop" in line.ok("events", "keys", "rotate", "shop", key_file)
        arguments = ("events", "forget", "shop", "ann", "--key-file", key_file)
        refused = line.run(*arguments)
        assert refused.returncode == 2  # not on a terminal, and without --yes
        report = json.loads(line.ok(*arguments, "--yes", "--json"))
        assert len(report["keys"]) == 1
        again = line.run(*arguments, "--yes")
        assert (again.returncode, "has no keys of ann" in again.stderr) == (3, True)
        (event,) = store.read("c-1", fresh=True)
        assert json.loads(event.data) == {"id": "ann", "email": None}


def test_a_missing_key_file_is_reported(bootstrap: str, tmp_path: Path) -> None:
    line = CommandLine(bootstrap, tmp_path)
    done = line.run("events", "forget", "shop", "ann", "--key-file", "absent")
    assert done.returncode == 1
    assert "events keys init" in done.stderr
