"""Runs the snippets of a Markdown page, in order, against a broker, and compares what they print.

- ``console`` blocks: lines that begin with ``$`` are run by bash, the lines below them are what
  they print (stdout and stderr). Commands of one page share a folder.
- ``python`` blocks are run as a program; a ``text`` block right below is what it prints.
- ``...`` in an expected line stands for anything in it, a line ``...`` for any lines.
- A block whose fence says ``no-run`` is shown only.

``localhost:9092`` in a snippet means the broker of the test. What a reader does once to get there
(``pip install``, ``git clone``, ``make``) is passed over, and so is ``tidemill dev``: that broker
runs already.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

TIMEOUT_SECONDS = 300
"""A snippet may start Spark, on a machine that does other things, too."""

ALREADY_DONE = re.compile(r"tidemill (dev|serve|demo)\b|pip install |make |git |cd ")
_FENCE = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Snippet:
    """One command or program, and what it must print; ``expected`` None means anything."""

    place: str
    command: list[str]
    expected: str | None
    may_fail: bool = False


def snippets(page: Path) -> Iterator[Snippet]:
    """The snippets of a page in order."""
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
            yield Snippet(place, [sys.executable, "-c", body], expected)


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


def run(snippet: Snippet, folder: Path, bootstrap: str) -> str:
    """Run it and return what it printed.

    Raises:
        AssertionError: it failed, or printed something else than the page says.
    """
    kept = {k: v for k, v in os.environ.items() if not k.startswith("TIDEMILL_")}
    path = f"{Path(sys.executable).parent}{os.pathsep}{kept.get('PATH', '')}"
    done = subprocess.run(
        [part.replace("localhost:9092", bootstrap) for part in snippet.command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=kept | {"TIDEMILL_BOOTSTRAP_SERVERS": bootstrap, "PATH": path},
        cwd=folder,
        timeout=TIMEOUT_SECONDS,
    )
    printed = done.stdout.decode(errors="replace").replace(bootstrap, "localhost:9092")
    what = f"{snippet.place}: {snippet.command[-1]}\nprinted (exit code {done.returncode}):\n"
    assert done.returncode == 0 or snippet.may_fail, what + printed
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
