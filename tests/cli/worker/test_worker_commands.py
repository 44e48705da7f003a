"""Workers beside a real broker: one entry in ``tidemill.toml`` each, and ``tidemill worker``."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import CommandLine, Done
from tests.support.broker_process import BrokerProcess
from tests.support.processes import poll_until
from tests.workers.running import lives

COUNTING = (sys.executable, str(Path(__file__).parent / "counting.py"))


class Deployment:
    """A broker with a settings file, and commands about it."""

    def __init__(self, folder: Path, toml: str) -> None:
        self.folder = folder
        self.file = folder / "tidemill.toml"
        self.file.write_text(toml)
        self.broker = BrokerProcess(folder, command=COUNTING).start()
        self._command_line = CommandLine(self.broker.bootstrap, folder)

    def run(self, *arguments: str) -> Done:
        return self._command_line.run(*arguments)

    def worker(self, *arguments: str) -> Done:
        return self.run("worker", *arguments, "--data-dir", str(self.broker.data_dir))

    def status(self, name: str) -> dict[str, Any]:
        done = self.worker("list", "--json")
        assert done.returncode == 0, done.stderr
        return next(each for each in json.loads(done.stdout) if each["name"] == name)

    def wait_for(self, name: str, state: str) -> dict[str, Any]:
        poll_until(lambda: self.status(name)["state"] == state, 60, f"{name} is {state}", 0.1)
        return self.status(name)

    def source(self, state: str) -> dict[str, Any]:
        """Wait until source shop is in a state, and return what is known of it."""
        found: dict[str, Any] = {}

        def is_so() -> bool:
            done = self.run("source", "describe", "shop", "--json")
            found.update(json.loads(done.stdout) if done.returncode == 0 else {})
            return bool(found) and found["state"] == state and not found.get("snapshots")

        poll_until(is_so, 60, f"source shop is {state}", interval=0.2)
        return found


@pytest.fixture
def deploy(tmp_path: Path) -> Iterator[Any]:
    made: list[Deployment] = []

    def start(toml: str) -> Deployment:
        made.append(Deployment(tmp_path, toml))
        return made[-1]

    yield start
    for each in made:
        each.broker.kill()


def counted(text: str) -> int:
    """Return the last number that the worker has written into the broker's log."""
    lines = [line for line in text.splitlines() if line.startswith("[counter/a] count ")]
    return int(lines[-1].split()[-1]) if lines else -1


def test_one_entry_is_a_worker_that_is_restarted_shown_and_stopped(deploy: Any) -> None:
    it: Deployment = deploy("[[counter]]\nname = 'a'\n")
    poll_until(lambda: counted(it.broker.log()) > 20, 60, "it counts in the broker's log")
    first = it.wait_for("counter/a", "running")

    os.kill(first["pid"], signal.SIGKILL)
    poll_until(lambda: it.status("counter/a")["restarts"] == 1, 60, "the restart")
    second = it.wait_for("counter/a", "running")
    assert (second["last_exit"], it.broker.process.exit_code) == (-9, None)
    assert "event=worker.ended" in it.broker.log()
    assert "SIGKILL" in it.worker("list").stdout

    assert it.worker("restart", "counter/a").stdout == "restarted worker counter/a\n"
    third = it.wait_for("counter/a", "running")
    assert third["pid"] not in (first["pid"], second["pid"])
    poll_until(lambda: not lives(second["pid"]), 60, "the old process is gone")

    lines = it.worker("logs", "counter/a", "-n", "2").stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["count", "count"]
    as_json = json.loads(it.worker("logs", "counter/a", "-n", "2", "--json").stdout)
    assert len(as_json["lines"]) == 2
    assert it.broker.terminate() == 0
    assert not lives(third["pid"])


def test_a_follower_sees_new_lines_until_it_ends(deploy: Any) -> None:
    it: Deployment = deploy("[[counter]]\nname = 'a'\n")
    it.wait_for("counter/a", "running")
    command = [*COUNTING, "worker", "logs", "counter/a", "-f", "--data-dir"]
    with subprocess.Popen([*command, str(it.broker.data_dir)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        numbers = [int(process.stdout.readline().split()[1]) for _ in range(60)]
        assert numbers == list(range(60))
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == -signal.SIGINT


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a child with its parent")
def test_workers_end_with_a_broker_that_is_killed_and_start_with_the_next_one(deploy: Any) -> None:
    it: Deployment = deploy("[[counter]]\nname = 'a'\n")
    pid = it.wait_for("counter/a", "running")["pid"]
    it.broker.kill()
    poll_until(lambda: not lives(pid), 60, "the worker has ended")
    assert it.worker("list").returncode == 5
    it.broker.start()
    assert it.wait_for("counter/a", "running")["pid"] != pid


def test_what_can_not_be_done_has_an_exit_code_and_a_hint(deploy: Any, tmp_path: Path) -> None:
    it: Deployment = deploy("")
    assert it.wait_for("sources", "waiting")["restarts"] == 0
    for arguments, code, text in (
        (("restart", "nothing"), 3, "hint: Workers: sources, webhooks, bridges, views."),
        (("logs", "nothing"), 3, "worker nothing does not exist"),
        (("restart", "sources"), 4, "it is waiting"),
        (("logs", "sources", "--json", "--follow"), 2, "--json and --follow"),
    ):
        done = it.worker(*arguments)
        assert (done.returncode, text in done.stderr) == (code, True), done.stderr
    done = it.run("worker", "list", "--data-dir", str(tmp_path / "other"))
    assert done.returncode == 5
    assert "hint: Use the --data-dir or --config" in done.stderr


def test_the_worker_of_the_sources_can_be_switched_off(deploy: Any) -> None:
    kinds = ("sources", "webhooks", "bridges", "views")
    it: Deployment = deploy(SHOP + "".join(f"[{each}]\nrun = false\n" for each in kinds))
    assert json.loads(it.worker("list", "--json").stdout) == []


@pytest.mark.slow
def test_a_pipeline_whose_file_is_missing_backs_off_and_the_broker_serves(deploy: Any) -> None:
    it: Deployment = deploy("[[pipeline]]\nfile = 'none.py'\nfrom = 'beginning'\n")
    status = it.wait_for("pipeline/none", "backing off")
    assert status["last_exit"] == 2
    assert status["reason"] == f"error: file {it.folder / 'none.py'} does not exist"
    assert it.run("topic", "list").returncode == 0


SHOP = """
[[source]]
name = "shop"
kind = "sqlite"
heartbeat_s = 0.5
database.path = "shop.db"
"""


@pytest.mark.slow
def test_a_source_of_the_file_is_applied_kept_from_commands_and_paused_when_it_is_removed(
    deploy: Any, tmp_path: Path
) -> None:
    db = sqlite3.connect(tmp_path / "shop.db", isolation_level=None)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
    db.execute("INSERT INTO orders VALUES (1)")
    it: Deployment = deploy(SHOP)
    found = it.source("running")
    assert found["declared"] == str(it.file)
    assert found["definition"]["database"]["path"] == str(tmp_path / "shop.db")
    definition = tmp_path / "again.toml"
    definition.write_text(SHOP.replace("[[source]]", ""))
    for arguments in (
        ("pause", "shop"),
        ("resume", "shop"),
        ("delete", "shop", "--yes"),
        ("create", str(definition), "--replace"),
    ):
        done = it.run("source", *arguments)
        assert done.returncode == 4, arguments
        assert f"source shop is declared in {it.file}" in done.stderr
        assert "hint: Change or remove its entry there" in done.stderr

    it.file.write_text(SHOP + "tables = ['orders']\n")
    assert it.worker("restart", "sources").returncode == 0
    poll_until(
        lambda: it.source("running")["definition"].get("tables") == ["orders"], 60, "the change"
    )

    it.file.write_text("")
    assert it.worker("restart", "sources").returncode == 0
    assert it.source("paused")["declared"] is None
    db.execute("INSERT INTO orders VALUES (2)")
    it.file.write_text(SHOP)
    assert it.worker("restart", "sources").returncode == 0
    it.source("running")
    read = ("topic", "consume", "shop.main.orders", "--from", "beginning", "--until-end")
    poll_until(lambda: len(it.run(*read).stdout.splitlines()) == 2, 60, "no change is lost", 0.2)

    it.file.write_text("")
    assert it.worker("restart", "sources").returncode == 0
    it.source("paused")
    assert it.run("source", "delete", "shop", "--yes").returncode == 0
    db.close()


@pytest.mark.parametrize(
    ("toml", "text", "hint"),
    [
        (
            SHOP + "tabels = ['a']",
            "tidemill.toml, [[source]] 1: unknown key tabels",
            "Did you mean tables?",
        ),
        (SHOP + SHOP, "[[source]] 2: another entry has the name shop", "a name of its own"),
        (
            SHOP + "database.password = 'hunter2'",
            "[[source]] 1: database.password contains a secret as plain text",
            "${env:NAME}",
        ),
        ("[[pipeline]]\nname = 'a'", "[[pipeline]] 1: file is missing", "Python file"),
        ("[[pipeline]]\nfile = 'a.py'\nfrm = 'x'", "unknown key frm", "Did you mean from?"),
        (
            "[[pipeline]]\nfile = 'a.py'\n[[pipeline]]\nfile = 'b/a.py'",
            "[[pipeline]] 2: another entry has the name a",
            "a name of its own",
        ),
        ("[pipeline]\nfile = 'a.py'", "pipeline is not a list of tables", "[[pipeline]]"),
        ("[[pipelin]]\nfile = 'a.py'", "unknown key pipelin", "Did you mean pipeline?"),
    ],
)
def test_an_invalid_entry_is_refused_with_its_place(
    toml: str, text: str, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tidemill.toml").write_text(toml)
    done = CommandLine("localhost:1", tmp_path).run("config", "show")
    assert done.returncode == 2
    assert text in done.stderr
    assert hint in done.stderr


def test_the_entries_of_the_file_are_shown_with_the_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tidemill.toml").write_text(SHOP + "[[pipeline]]\nfile = 'a.py'\nfrom = 'end'\n")
    shown = CommandLine("localhost:1", tmp_path).json("config", "show")
    entries = {key: each["value"] for key, each in shown.items() if "[" in key}
    assert entries == {
        "source[shop].name": "shop",
        "source[shop].kind": "sqlite",
        "source[shop].heartbeat_s": 0.5,
        "source[shop].database.path": str(tmp_path / "shop.db"),
        "pipeline[a].file": "a.py",
        "pipeline[a].from": "end",
    }
    assert shown["pipeline[a].file"]["origin"] == "tidemill.toml"
