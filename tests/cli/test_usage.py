"""Wrong usage, failures and their exit codes; no broker is needed here."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support import effort
from tests.support.cli_runner import CliRunner, Result
from tidemill.cli import tree
from tidemill.cli.main import app
from tidemill.cli.transaction.commands import State

pytestmark = pytest.mark.usefixtures("clean_environment")


def run(*arguments: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(app, arguments, input=stdin)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["topc"], "no such command 'topc'"),
        (["topic", "lst"], "did you mean 'list'"),
        (["topic", "create"], "missing argument"),
        (["topic", "create", "a", "--partitions", "0"], "--partitions"),
        (["topic", "create", "a", "--set", "novalue"], "--set novalue: expected key=value"),
        (["topic", "alter", "a"], "nothing to change"),
        (["topic", "consume", "a", "--from", "soon"], "--from soon: invalid position"),
        (
            ["topic", "consume", "a", "--group", "g", "--from", "5"],
            "--from must be beginning or end",
        ),
        (
            ["topic", "consume", "a", "--group", "g", "--partition", "0"],
            "--partition can't be used with --group",
        ),
        (
            ["topic", "produce", "a", "--key", "k", "--key-separator", ":"],
            "--key-separator can't be used",
        ),
        (["topic", "create", "a", "--partitions", "100001"], "--partitions"),
        (["topic", "produce", "a", "--acks", "2"], "invalid value for '--acks': '2' is not one"),
        (["topic", "list", "-b", "nonsense:x"], "expected host:port"),
        (["group", "seek", "g"], "use either --to or --shift"),
        (["group", "seek", "g", "--to", "end", "--shift", "1"], "use either --to or --shift"),
        (["group", "seek", "g", "--to", "end", "--partition", "1"], "needs one --topic"),
        (["transaction", "abort"], "use either an id, or --topic"),
        (["transaction", "abort", "a", "--topic", "t"], "use either an id, or --topic"),
        (["transaction", "abort", "--topic", "t", "--partition", "0"], "use either an id"),
        (["transaction", "find", "--partition", "0"], "--partition needs one topic"),
        (["transaction", "list", "--open-longer-than", "5"], "--open-longer-than 5: expected a"),
        (["transaction", "list", "--state", "done"], "invalid value for '--state': 'done'"),
        (["serve", "--config", "nowhere.toml"], "nowhere.toml: no such file"),
        (["dev", "--set", "kafka.port"], "expected key=value"),
        (["config", "show", "--set", "kafka.prt=1"], "unknown key kafka.prt"),
    ],
)
def test_wrong_usage_is_exit_2_with_an_error_line_and_a_hint(
    arguments: list[str], said: str
) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    first, *_ = result.stderr.splitlines()
    assert first.startswith("error: ")
    assert said in first.lower()
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("arguments", [[], ["topic"], ["group"], ["transaction"]])
def test_without_a_verb_the_help_is_shown_and_no_error(arguments: list[str]) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("Usage: tidemill")
    assert "Commands:" in result.stderr
    assert "error:" not in result.stderr


def test_help_names_values_as_people_do() -> None:
    verbs = [["topic", "consume"], ["topic", "create"], ["group", "seek"], ["dev"], ["demo"]]
    for verb in [*verbs, ["transaction", "list"], ["transaction", "abort"]]:
        text = run(*verb, "--help").stdout
        assert not re.findall(r"<(?:str|int|path|list)\b.*", text.partition("Options:")[2])
        assert "...}..." not in text


@pytest.mark.parametrize(
    "arguments",
    [
        ["topic", "consume", b"\xff"],
        ["topic", "produce", "t", "--key", b"k\xfe"],
        ["topic", "delete", b"a\xffb", "--yes"],
        ["group", "describe", b"\xff"],
        ["group", "seek", b"\xff", "--to", "end"],
        ["queue", "create", b"\xff"],
        ["serve", "--data-dir", b"\xff"],
    ],
    ids=ascii,
)
def test_arguments_that_are_not_utf8_are_refused(arguments: list[str | bytes]) -> None:
    result = run(*map(os.fsdecode, arguments))
    assert result.exit_code == 2
    assert re.search(r"error: argument \d is not UTF-8: \w*\\x", result.stderr)


def test_settings_that_are_not_utf8_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEMILL_BOOTSTRAP_SERVERS", os.fsdecode(b"\xfe:1"))
    result = run("topic", "list")
    assert result.exit_code == 2
    assert r"error: TIDEMILL_BOOTSTRAP_SERVERS is not UTF-8: \xfe:1" in result.stderr


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize("command", ["topic produce t -b {0}", "topic delete t -b {0}", "version"])
def test_commands_work_with_standard_streams_that_are_closed(command: str, closed: str) -> None:
    with socket.socket() as bound:  # bound but not listening: connections are refused
        bound.bind(("127.0.0.1", 0))
        words = command.format(f"127.0.0.1:{bound.getsockname()[1]}")
        line = f"exec {sys.executable} -m tidemill {words} {closed}"
        done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, timeout=60)
    expected = 0 if command == "version" else 5
    assert done.returncode == expected, done.stderr
    if "2>&-" not in closed and expected:
        assert done.stderr.startswith("error: ")
        assert "bug" not in done.stderr
    if closed == "<&-" and not expected:
        assert done.stdout.startswith("tidemill ")


def test_help_goes_to_stdout_and_names_every_verb() -> None:
    result = run("--help")
    assert result.exit_code == 0
    for verb in ("dev", "serve", "topic", "group", "transaction", "config", "doctor", "version"):
        assert f"  {verb}" in result.stdout


def test_every_list_of_commands_says_in_a_line_what_each_does() -> None:
    for group in ([], ["topic"], ["group"], ["transaction"], ["pipeline"], ["config"]):
        result = CliRunner().invoke(app, [*group, "--help"], terminal_width=80)
        lines = result.stdout.partition("Commands:")[2].strip().splitlines()
        assert lines
        for line in lines:
            assert re.fullmatch(r" *[a-z]+ +[A-Z].*\.", line), line
            assert "..." not in line


def test_help_and_error_name_the_same_states() -> None:
    states = [each.value for each in State]
    shown = "".join(run("transaction", "list", "--help").stdout.split())  # it is wrapped
    assert f"state:{','.join(states[:-1])}or{states[-1]}." in shown
    refused = run("transaction", "list", "--state", "done").stderr
    assert re.findall(r"'([a-z-]+)'", refused.partition("is not one of")[2]) == states


def test_version_shows_the_version() -> None:
    assert run("version").stdout.startswith("tidemill ")
    assert run("--version").stdout == run("version").stdout
    assert run("--version").exit_code == 0
    assert set(json.loads(run("version", "--json").stdout)) == {"tidemill", "python"}


def test_config_show_names_the_origin_of_each_value(tmp_path: Path) -> None:
    (tmp_path / "tidemill.toml").write_text("default_partitions = 4")
    table = run("config", "show", "--kafka-port", "0").stdout
    assert "default_partitions" in table
    assert [line.split() for line in table.splitlines() if line.startswith("kafka.port")] == [
        ["kafka.port", "0", "--kafka-port"]
    ]
    values = json.loads(run("config", "show", "--json").stdout)
    assert values["default_partitions"] == {"value": 4, "origin": "tidemill.toml"}
    assert values["host"]["origin"] == "default"


CLIENT_COMMANDS = [
    ["topic", "create", "a"],
    ["topic", "list"],
    ["topic", "describe", "a"],
    ["topic", "alter", "a", "--partitions", "2"],
    ["topic", "delete", "a", "--yes"],
    ["topic", "produce", "a"],
    ["topic", "consume", "a"],
    ["group", "list"],
    ["group", "describe", "g"],
    ["group", "seek", "g", "--to", "end", "--yes"],
    ["group", "delete", "g", "--yes"],
    ["transaction", "list"],
    ["transaction", "describe", "x"],
    ["transaction", "find"],
    ["transaction", "abort", "x", "--yes"],
]


@pytest.mark.timing
@pytest.mark.parametrize("command", CLIENT_COMMANDS, ids=" ".join)
def test_without_a_broker_every_client_command_fails_fast_with_exit_5(command: list[str]) -> None:
    with socket.socket() as bound:  # bound but not listening: connections are refused
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
        started = time.monotonic()
        result = run(*command, "-b", f"127.0.0.1:{port}", stdin="")
    assert result.exit_code == 5
    assert f"error: no broker answers at 127.0.0.1:{port}" in result.stderr
    assert "hint: Start one with 'tidemill dev'" in result.stderr
    assert time.monotonic() - started < effort.bound(3, normal=60)


def test_the_brokers_address_may_come_from_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{bound.getsockname()[1]}"
        monkeypatch.setenv("TIDEMILL_BOOTSTRAP_SERVERS", address)
        assert f"no broker answers at {address}" in run("topic", "list").stderr


def test_a_wrong_librdkafka_property_is_wrong_usage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidemill.kafka_client.who_answers.TIMEOUT_S", 0.1)  # nobody answers here
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        result = run("topic", "list", "-b", address, "-X", "no.such=1")
    assert result.exit_code == 2
    assert "no.such" in result.stderr


def test_debug_shows_the_stack_trace() -> None:
    result = run("--debug", "group", "seek", "g")
    assert result.exit_code == 2
    assert "Traceback" in result.stderr


def test_debug_after_the_command_is_an_error_with_the_right_place() -> None:
    result = run("group", "seek", "my group", "--debug")
    assert result.exit_code == 2
    # Older versions of typer use click, whose newest versions quote the option.
    assert result.stderr.replace("option '--debug'", "option: --debug").splitlines() == [
        "error: no such option: --debug",
        "hint: Put it first: tidemill --debug group seek 'my group'",
    ]


INTERRUPTED = """
import os, runpy, signal, sys

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == "tidemill.cli.main":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupt())
signal.signal(signal.SIGINT, getattr(signal, sys.argv.pop()))
runpy.run_module("tidemill", run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize(
    ("handler", "code"), [("default_int_handler", -signal.SIGINT), ("SIG_IGN", 0)]
)
def test_ctrl_c_during_the_imports_ends_the_command_without_a_stack_trace(
    handler: str, code: int
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, "--version", handler],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (code, "")


HEAVY = ["confluent_kafka", "pyspark", "pandas", "pyarrow", "numpy", "pydantic_settings", "py4j"]
COMMAND_MODULES = {
    f"tidemill.cli.{place.partition(':')[0]}" for place, _ in tree.PLACES.values()
} - {"tidemill.cli.main"}


@pytest.mark.parametrize(
    ("modules", "heavy"),
    [
        (
            f"tidemill.cli.main, {', '.join(sorted(COMMAND_MODULES))}",
            [*HEAVY, "rich", "structlog", "asyncio", "kio", "importlib.metadata"],
        ),
        (
            "tidemill.cli.main, tidemill.cli.server.serve",
            sorted(COMMAND_MODULES - {"tidemill.cli.server.serve", "tidemill.cli.server.config"}),
        ),
        (
            # With the command, structlog does not import rich (tests/test_telemetry.py).
            "tidemill.cli.main, tidemill.cli.server.process, tidemill.cli.server.settings_file,"
            "tidemill.engine.engine, tidemill.protocols.kafka.server",
            HEAVY,
        ),
        (
            # A gateway without hooks, and whose console shows no event store.
            "tidemill.cli.main, tidemill.cli.gateway.commands, tidemill.gateway.run",
            ["pyspark", "pandas", "pyarrow", "numpy", "duckdb", "aiohttp", "sqlite3", "cramjam"],
        ),
    ],
    ids=["every command", "one command", "dev", "gateway"],
)
def test_imports_at_start_are_light(modules: str, heavy: list[str]) -> None:
    program = f"import sys\nimport {modules}\nprint([n for n in {heavy} if n in sys.modules])\n"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
