"""Output of commands: exit codes, tables, confirmation, texts."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import threading
from collections.abc import Iterator

import pytest

from tests.cli.conftest import Terminal
from tidemill.cli import output
from tidemill.errors import (
    SettingsError,
    TidemillError,
    TopicExistsError,
    UnknownTopicOrPartitionError,
    UnreachableError,
    lower_first,
)
from tidemill.log.errors import DataDirLockedError, StorageError
from tidemill.state.errors import GroupIdNotFoundError, NonEmptyGroupError


def test_exit_codes_follow_the_kind_of_error() -> None:
    expected = {
        SettingsError("x"): 2,
        output.UsageError("x"): 2,
        UnknownTopicOrPartitionError("x"): 3,
        GroupIdNotFoundError("x"): 3,
        TopicExistsError("x"): 4,
        NonEmptyGroupError("x"): 4,
        DataDirLockedError("x"): 4,
        output.AddressInUseError("x"): 4,
        UnreachableError("x"): 5,
        StorageError("x"): 1,
        TidemillError("x"): 1,
    }
    assert {error: output.exit_code(error) for error in expected} == expected


def test_a_table_has_no_borders_and_aligns_numbers_right(
    capsys: pytest.CaptureFixture[str],
) -> None:
    output.emit_table(["TOPIC", "N", "NOTE"], [["a", 5, None], ["longer", 1000, "x\ny"]])
    assert capsys.readouterr().out.splitlines() == [
        "TOPIC      N  NOTE",
        "a          5  -",
        "longer  1000  x\\ny",
    ]


def test_an_empty_table_still_names_its_columns(capsys: pytest.CaptureFixture[str]) -> None:
    output.emit_table(["TOPIC", "N"], [])
    assert capsys.readouterr().out == "TOPIC  N\n"


def test_notes_are_for_terminals_only(capsys: pytest.CaptureFixture[str]) -> None:
    output.note("hello")
    assert capsys.readouterr().err == ""


def test_color_needs_a_terminal_without_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert output.style("x", "1", Terminal()) == "\x1b[1mx\x1b[0m"
    assert output.style("x", "1", io.StringIO()) == "x"
    monkeypatch.setenv("NO_COLOR", "1")
    assert output.style("x", "1", Terminal()) == "x"
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert output.style("x", "1", Terminal()) == "x"


@pytest.mark.parametrize(("answer", "goes_on"), [("y\n", True), ("YES\n", True), ("\n", False)])
def test_on_a_terminal_it_asks_and_no_is_the_default(
    monkeypatch: pytest.MonkeyPatch, answer: str, goes_on: bool
) -> None:
    asked = Terminal()
    monkeypatch.setattr("sys.stdin", Terminal(answer))
    monkeypatch.setattr("sys.stderr", asked)
    if goes_on:
        output.confirm("Delete x?", yes=False)
    else:
        with pytest.raises(TidemillError, match="nothing was changed"):
            output.confirm("Delete x?", yes=False)
    assert asked.getvalue() == "Delete x? [y/N] "


def test_without_a_terminal_confirmation_needs_yes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    output.confirm("Delete x?", yes=True)
    with pytest.raises(output.UsageError) as refused:
        output.confirm("Delete x?", yes=False)
    assert "--yes" in refused.value.hint


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [
        (None, None),
        (0, "0ms"),
        (999, "999ms"),
        (1000, "1s"),
        (61_000, "1m 1s"),
        (60_000, "1m"),
        (3_600_000, "1h"),
        (3_660_000, "1h 1m"),
        (90_061_000, "1d 1h"),
    ],
)
def test_durations_have_two_units_at_most(milliseconds: int | None, text: str | None) -> None:
    assert output.duration_text(milliseconds) == text


@pytest.mark.parametrize(
    ("size", "text"),
    [(None, None), (0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (2_500_000_000_000, "2.5 TB")],
)
def test_sizes_are_for_people(size: int | None, text: str | None) -> None:
    assert output.size_text(size) == text


@pytest.mark.parametrize(
    ("said", "quoted"),
    [
        ("Input should be valid", "input should be valid"),
        ("SELECT clause without selection list", "SELECT clause without selection list"),
        ("SSL handshake failed", "SSL handshake failed"),
        ("A", "a"),
        ("", ""),
    ],
)
def test_a_quoted_sentence_keeps_abbreviations_and_keywords(said: str, quoted: str) -> None:
    assert lower_first(said) == quoted


@contextlib.contextmanager
def full_pipe() -> Iterator[int]:
    """Make stdout a pipe that is full, and write to it; yield its other end."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with open(reader, "rb", buffering=0), open(writer, "w") as stdout:
        with contextlib.suppress(BlockingIOError):
            while os.write(writer, bytes(4096)):
                pass
        os.set_blocking(writer, True)
        with contextlib.redirect_stdout(stdout):
            print("last")
            yield reader


def test_what_the_reader_of_a_full_pipe_does_not_take_is_dropped() -> None:
    with full_pipe() as reader:
        output.flush_in_time(0.0)
        print("more", flush=True)
        os.set_blocking(reader, False)
        assert not os.read(reader, 1 << 20).strip(b"\0")


def test_what_the_reader_of_a_full_pipe_takes_in_time_is_flushed() -> None:
    with full_pipe() as reader:
        threading.Thread(target=os.read, args=(reader, 1 << 20)).start()
        output.flush_in_time(60.0)
        assert os.get_blocking(sys.stdout.fileno())
        assert os.read(reader, 1 << 20).endswith(b"last\n")


def test_a_reader_that_is_gone_is_no_error_after_ctrl_c() -> None:
    with full_pipe() as reader:
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, reader)
        os.close(nothing)
        output.flush_in_time(60.0)
