"""The command ``tidemill sql``."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.cli.conftest import CommandLine, Terminal
from tests.interop.common import wait_for
from tests.support.broker_process import BrokerProcess
from tests.support.topics import write
from tidemill import sql
from tidemill.cli.main import app
from tidemill.cli.sql import commands

pytest.importorskip("duckdb", minversion="1.5", reason="the extra tidemill[sql] needs it")


ENDLESS = "range(99999999) a, range(99999999) b"


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with BrokerProcess(tmp_path_factory.mktemp("broker")) as broker:
        rows = ({"n": n, "s": f"a\x1b[31m{n}", "o": {"k": [n]}} for n in range(1500))
        write(broker.bootstrap, "many", *rows)
        yield broker.bootstrap


@pytest.fixture
def line(bootstrap: str, tmp_path: Path) -> CommandLine:
    return CommandLine(bootstrap, tmp_path)


def test_a_table_shows_the_first_rows_and_escapes_what_is_in_them(line: CommandLine) -> None:
    done = line.run("sql", "SELECT * FROM many ORDER BY n")
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 1001
    assert "\x1b" not in done.stdout
    assert "the first 1000 rows" in done.stderr


@pytest.mark.parametrize("options", [(), ("--follow", "--from", "beginning", "--until-end")])
def test_names_of_columns_are_escaped_too(line: CommandLine, options: tuple[str, ...]) -> None:
    write(line.env["TIDEMILL_BOOTSTRAP_SERVERS"], "named", {"a\x1b[31m\nb": 1})
    first = line.ok("sql", *options, "SELECT * FROM named").splitlines()[0]
    assert first.split()[:2] == ["a\\x1b[31m\\nb", "_key"]


def test_json_and_csv_print_all_rows(line: CommandLine) -> None:
    rows = [json.loads(each) for each in line.ok("sql", "--json", "FROM many").splitlines()]
    assert len(rows) == 1500
    assert rows[7]["o"] == {"k": [7]}
    lines = line.ok("sql", "--csv", "SELECT n, o FROM many ORDER BY n").splitlines()
    assert lines[:2] == ["n,o", '0,"{""k"": [0]}"']
    assert len(lines) == 1501


def test_statements_of_stdin_end_with_a_semicolon(line: CommandLine) -> None:
    text = "SELECT 1 AS a;\nSELECT\n 2 AS b\n;\nSELECT 3 AS c"
    assert line.ok("sql", stdin=text).split() == ["a", "1", "b", "2", "c", "3"]


def test_columns_of_the_same_name_are_all_in_json(line: CommandLine) -> None:
    found = line.ok("sql", "--json", "SELECT 1 AS n, 2 AS n, 3 AS n_1, 4 AS n")
    assert json.loads(found) == {"n": 1, "n_1": 2, "n_1_1": 3, "n_2": 4}


def test_a_semicolon_in_a_text_or_a_comment_ends_no_statement(line: CommandLine) -> None:
    text = (
        "SELECT 'x;\n;' AS a; -- first;\n/* none; */ ;;\n"
        "/* open;\n;\nSELECT 0; */ /* a /* b; */ c;\n*/\n"
        'SELECT 1 AS "b;", $$c;\n$$ AS c; SELECT 2 AS d -- last;\n'
    )
    rows = [json.loads(each) for each in line.ok("sql", "--json", stdin=text).splitlines()]
    assert rows == [{"a": "x;\n;"}, {"b;": 1, "c": "c;\n"}, {"d": 2}]
    for text in ("SELECT 'open;\n", "/* open;\nSELECT 1;\n"):
        done = line.run("sql", stdin=text)
        assert (done.returncode, done.stdout) == (1, "")


def test_stdin_is_utf8_with_the_line_ends_and_the_mark_of_windows(line: CommandLine) -> None:
    text = "\ufeffSELECT 'é\r\n;' AS a;\r\nSELECT 2 AS b;\r\n"
    rows = [json.loads(each) for each in line.ok("sql", "--json", stdin=text.encode()).splitlines()]
    assert rows == [{"a": "é\r\n;"}, {"b": 2}]
    done = line.run("sql", stdin=b"SELECT 1 AS a;\nSELECT '\xe9';\n")
    assert (done.returncode, done.stdout.split()) == (1, ["a", "1"])
    assert "error: line 2 is not UTF-8" in done.stderr


@pytest.mark.parametrize("end", ["exit;", " quit ; ", "SELECT 3 AS c; Exit;", "\\q", ".quit"])
def test_a_word_ends_the_shell(
    monkeypatch: pytest.MonkeyPatch, bootstrap: str, capsys: pytest.CaptureFixture[str], end: str
) -> None:
    typed = iter(["SELECT 2 AS", "exit;", "-- nothing", "SELECT '\udcff';", end])
    monkeypatch.setattr("builtins.input", lambda _: next(typed))
    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: True))
    with pytest.raises(SystemExit) as ended:
        app(["sql", "-b", bootstrap])
    assert ended.value.code == 0
    shown = capsys.readouterr()
    assert shown.out.split()[:2] == ["exit", "2"]  # there it is a name
    assert "line 4 is not UTF-8" in shown.err


def test_the_first_error_of_stdin_ends_it(line: CommandLine) -> None:
    done = line.run("sql", stdin="SELECT nope;\nSELECT 2;")
    assert done.returncode == 1
    assert "nope" in done.stderr
    assert done.stdout == ""


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """SIGINT raises KeyboardInterrupt, whatever commands of this process have made of it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_ends_a_statement_amid_its_query(bootstrap: str) -> None:
    cursor = sql.connect(bootstrap, threads=1).cursor()

    def run() -> None:
        cursor.execute(f"SELECT count(*) FROM {ENDLESS}").fetchall()

    def press() -> None:
        wait_for(lambda: cursor._running is not None and cursor._running._has_begun, "it runs")
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=press).start()
    with cursor, pytest.raises(KeyboardInterrupt):
        commands._until_interrupted(run, cursor.cancel)
    threads = threading.enumerate
    wait_for(lambda: "statement" not in [each.name for each in threads()], "its thread ends")


def test_ctrl_c_in_the_shell_ends_the_statement_and_not_the_shell(
    monkeypatch: pytest.MonkeyPatch, bootstrap: str, capsys: pytest.CaptureFixture[str]
) -> None:
    typed = iter(["SELECT 1 AS a;", "SELECT 2 AS b;", "exit"])
    run = commands._run

    def interrupted(connection: Any, statement: str, *more: Any, **named: Any) -> None:
        if "1" in statement:
            raise KeyboardInterrupt
        run(connection, statement, *more, **named)

    monkeypatch.setattr("builtins.input", lambda _: next(typed))
    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr(commands, "_run", interrupted)
    with pytest.raises(SystemExit) as ended:
        app(["sql", "-b", bootstrap])
    assert ended.value.code == 0
    assert capsys.readouterr().out.split() == ["b", "2"]


PATIENT = """
from tidemill.cli import main
from tidemill.cli.sql import commands
commands._CANCEL_S = 3600.0
main.main()
"""


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--json", "FROM many, range(100)"], 130),
        (["--csv", "FROM many, range(100)"], 130),
        (["--json", "--follow", "--from", "beginning", "FROM many"], 0),
    ],
)
def test_ctrl_c_ends_the_command_while_no_one_reads_what_it_prints(
    line: CommandLine, arguments: list[str], code: int
) -> None:
    reader, writer = os.pipe()
    command = [sys.executable, "-c", PATIENT, "sql", *arguments]
    with subprocess.Popen(command, stdout=writer, env=line.env) as process:
        try:
            wait_for(lambda: not select.select([], [writer], [], 0)[1], "the pipe is full")
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == code
        finally:
            process.kill()
            os.close(writer)
            os.close(reader)


@pytest.mark.parametrize(("answer", "shown"), [("", []), ("\n", ["b", "2"])])
def test_ctrl_d_at_a_question_is_a_no_and_ends_the_shell(
    monkeypatch: pytest.MonkeyPatch,
    bootstrap: str,
    capsys: pytest.CaptureFixture[str],
    answer: str,
    shown: list[str],
) -> None:
    typed = iter(["SELECT count(n) FROM many; SELECT 2 AS b;", "exit"])
    monkeypatch.setattr("builtins.input", lambda _: next(typed))
    monkeypatch.setattr("sys.stdin", Terminal(answer))
    monkeypatch.setattr("sys.stderr", asked := Terminal())
    with pytest.raises(SystemExit) as ended:
        app(["sql", "-b", bootstrap, "--max-bytes", "100"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.split() == shown
    assert asked.getvalue().count("not confirmed") == 1


def test_reading_much_needs_a_confirmation(line: CommandLine) -> None:
    done = line.run("sql", "--max-bytes", "100", "SELECT count(n) FROM many")
    assert done.returncode == 2
    assert "This reads about" in done.stderr
    assert line.ok("sql", "--max-bytes", "100", "--yes", "SELECT count(n) FROM many").split()[
        -1
    ] == ("1500")


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["SELECT * FROM nope"], 1, "there is no topic nope"),
        (["DROP TABLE many"], 1, "DROP is not a query"),
        (["--columns", "many", "SELECT 1"], 2, "TOPIC=COLUMNS"),
        (["--columns", "many=n NOTATYPE", "SELECT 1"], 1, "invalid columns"),
        (["--memory", "lots", "SELECT 1"], 1, "must have a number"),
        (["--until-end", "SELECT 1"], 2, "--until-end needs --follow"),
        (["--from", "end", "SELECT 1"], 2, "--from needs --follow"),
        (
            ["-f", "--timeout", "1", "SELECT n FROM many"],
            2,
            "--timeout can't be used with --follow",
        ),
        (["--csv", "--json", "SELECT 1"], 2, "--csv goes without --json"),
        (
            ["--timeout", "0.2", "SELECT count(*) FROM range(99999999) a, range(99999999) b"],
            1,
            "limit",
        ),
    ],
)
def test_errors_are_told_in_a_line(
    line: CommandLine, arguments: list[str], code: int, text: str
) -> None:
    done = line.run("sql", *arguments)
    assert (done.returncode, text in done.stderr) == (code, True), done.stderr
    assert "bug" not in done.stderr


def test_a_query_that_is_followed_prints_rows_as_records_come(line: CommandLine) -> None:
    options = ("sql", "--follow", "--from", "beginning", "--until-end")
    found = line.ok(*options, "--json", "SELECT n FROM many WHERE n % 500 = 0")
    assert [json.loads(each)["n"] for each in found.splitlines()] == [0, 500, 1000]
    found = line.ok("sql", "-f", "SELECT n, s FROM many WHERE _offset >= 1498 LIMIT 2")
    assert [each.split()[0] for each in found.splitlines()] == ["n", "1498", "1499"]
    done = line.run("sql", "-f", "SELECT n, count(*) FROM many GROUP BY n")
    assert done.returncode == 1
    assert "never end" in done.stderr
    assert 'pipeline.sql("query"' in done.stderr
