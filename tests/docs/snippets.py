"""Runs the snippets of a Markdown page, in order, against a broker, and compares what they print.

- ``console`` blocks: bash runs the lines that begin with ``$``. The lines below them are the
  expected output (stdout and stderr). The commands of one page share a folder.
- ``python`` blocks are run as a program. A ``text`` block right below is the expected output. A
  block with ``title="NAME.py"`` in its fence is also a file, which later ones can import or run.
- ``...`` in an expected line matches anything in that line, a line ``...`` matches any lines.
- A block with ``no-run`` in its fence is not run.

``localhost:9092`` and ``localhost:5672`` (AMQP) in a snippet are replaced by the addresses of the
test's broker, ``localhost:8080`` and ``localhost:8081`` by those of the gateway that a line
``tidemill gateway`` starts, and ``127.0.0.1:8125`` (StatsD), ``:5556`` and ``:5557`` (ZeroMQ) by
free ports. The commands of an installation (``pip install``, ``git clone``, ``make``) are skipped,
and so is ``tidemill dev``, because the broker runs already. Commands of tidemill and programs that
need Spark can run in this process (``InProcess``); everything else is a process of its own.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.support import environment
from tests.support.in_process import InProcess

TIMEOUT_SECONDS = 600
"""Enough for a snippet that starts Spark on a busy machine."""

ALREADY_DONE = re.compile(r"tidemill (dev|serve|demo)\b|pip install |make |git |cd ")
_FENCE = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Snippet:
    """One command or program. If ``expected`` is None, it may print anything."""

    place: str
    command: list[str]
    expected: str | None
    may_fail: bool = False
    file: str = ""

    @property
    def text(self) -> str:
        """The code or the shell command."""
        return self.command[-1]

    @property
    def is_python(self) -> bool:
        """Whether it is a Python program."""
        return self.command[0] == sys.executable

    @property
    def is_command(self) -> bool:
        """Whether it is a command of tidemill, and nothing that only a shell can run."""
        return self.text.startswith("tidemill ") and not set(self.text) & set("|<>;&$*\n")

    @property
    def needs_spark(self) -> bool:
        """Whether it starts Spark."""
        if self.is_python:
            return "spark_session(" in self.text
        return self.text.startswith("tidemill pipeline run ")


_TITLE = re.compile(r'title="([\w.-]+)"')


def snippets(page: Path) -> Iterator[Snippet]:
    """Yield the snippets of a page in order."""
    text = page.read_text()
    fences = list(_FENCE.finditer(text))
    for index, fence in enumerate(fences):
        language, info, body = fence.groups()
        place = f"{page.name}:{text.count(chr(10), 0, fence.start()) + 1}"
        if "no-run" in info:
            continue
        if language == "console":
            yield from _console(place, body)
        elif language == "python":
            output = fences[index + 1] if index + 1 < len(fences) else None
            below = output and not text[fence.end() : output.start()].strip()
            expected = output[3] if output and below and output[1] == "text" else None
            title = _TITLE.search(info)
            file = title[1] if title else ""
            yield Snippet(place, [sys.executable, "-c", body], expected, file=file)


def _console(place: str, body: str) -> Iterator[Snippet]:
    command: str | None = None
    expected: list[str] = []
    for line in [*body.splitlines(), "$ :"]:
        if (line == ">" or line.startswith("> ")) and command is not None and not expected:
            command += "\n" + line[2:]
        elif line.startswith("$ "):
            if command is not None and not ALREADY_DONE.match(command):
                fails = any(text.startswith("error:") for text in expected)
                yield Snippet(place, ["bash", "-c", command], "\n".join(expected), fails)
            command, expected = line[2:], []
        else:
            expected.append(line)


def run(
    snippet: Snippet,
    folder: Path,
    bootstrap: str,
    in_process: InProcess | None = None,
    amqp: str = "localhost:5672",
    gateway: Mapping[str, str] | None = None,
) -> str:
    """Run a snippet and return what it printed.

    Args:
        gateway: addresses of a gateway, by those in the text.

    Raises:
        AssertionError: it failed, or its output differs from the page.
    """
    text = snippet.text.replace("localhost:9092", bootstrap).replace("localhost:5672", amqp)
    for written, address in (gateway or {}).items():
        text = text.replace(written, address)
    if snippet.file:
        (folder / snippet.file).write_text(text)
    kept = environment.without_settings()
    path = f"{Path(sys.executable).parent}{os.pathsep}{kept.get('PATH', '')}"
    env = kept | {"TIDEMILL_BOOTSTRAP_SERVERS": bootstrap, "PATH": path}
    env["XDG_CACHE_HOME"] = str(folder / ".cache")  # indexes of event stores
    env["TIDEMILL_AMQP_URL"] = f"amqp://{amqp}/"
    if in_process is None or not (
        (snippet.needs_spark and in_process.has_spark) if snippet.is_python else snippet.is_command
    ):
        done = subprocess.run(
            [*snippet.command[:-1], text],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=env,
            cwd=folder,
            timeout=TIMEOUT_SECONDS,
        )
        exit_code, output = done.returncode, done.stdout.decode(errors="replace")
    else:
        result = (
            in_process.run_program(text, folder, env)
            if snippet.is_python
            else in_process.run_command(shlex.split(text)[1:], folder, env)
        )
        exit_code, output = result.exit_code, result.output
    printed = output.replace(bootstrap, "localhost:9092")
    for written, address in (gateway or {}).items():
        printed = printed.replace(address, written)
    what = f"{snippet.place}: {snippet.text}\nprinted (exit code {exit_code}):\n"
    assert exit_code == 0 or snippet.may_fail, what + printed
    if snippet.expected is not None:
        pattern = _pattern(snippet.expected)
        assert pattern.fullmatch(_stripped(printed)), (
            f"{what}{printed}\nbut the page says:\n{snippet.expected}"
        )
    return printed


def _stripped(text: str) -> str:
    return "".join(f"{line.rstrip()}\n" for line in text.strip("\n").splitlines())


def _pattern(expected: str) -> re.Pattern[str]:
    parts = []
    for line in _stripped(expected).splitlines():
        if line.strip() == "...":
            parts.append(r"(?:.*\n)*?")
        else:
            parts.append(".*".join(map(re.escape, line.split("..."))) + r"\n")
    return re.compile("".join(parts))
