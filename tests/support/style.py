"""Find phrases that ``docs/STYLE.md`` rules out, in code and in docs.

    python -m tests.support.style [FILE_OR_FOLDER ...]

prints each place and exits with 1 if there is one.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
CHECKED = ("src", "docs", "examples", "bench", "README.md", "CHANGELOG.md", "CONTRIBUTING.md")
STYLE_GUIDE = ROOT / "docs" / "STYLE.md"
"""The guide itself quotes the phrases."""

PHRASES = {
    r"anew": "again, from the beginning",
    r"put back": "restored, returned",
    r"who(?:so)?ever|somebody|nobody": "the caller, a client, no reader",
    r"(?<!there )(?:is|are|was|were) no(?! (?:longer|more))": "is not a, invalid",
    r"(?:is|are|was|were|be|been) told|tells? of": "is reported, reports, describes",
    r"doom\w*|unborn|spoil\w*|heal(?:s|ed|ing)?": "delete, not created yet, damaged, repair",
    r"comes? again|last breath": "is retried, is redelivered, occurs again",
    r"stands?(?! for\b|-)": "is in, is stored in",
    r"at once": "immediately, at the same time",
    r"(?:go|goes|went) on": "continues",
    r"may not": "must not, might not",
    r"hence|whence|thereof|therein|thereupon|whereupon|upon|lest": "so, of it, when",
}
_PHRASE = {
    re.compile(
        rf"(?<![\w`])(?:{phrase})(?!\w)".replace(" ", r"\s+").replace(r"there\s+", r"there\s"), re.I
    ): instead
    for phrase, instead in PHRASES.items()
}
_NAME = re.compile(r"COMES_AGAIN|LAST_BREATH|\bdoom\w*|\bunborn\w*", re.IGNORECASE)
_OPENING = re.compile(r"(?:Of|What|Who|Whoever|Whose|Where|How|That|Which|When)\b")
_OPENING_QUOTED = re.compile(rf"[\"']\\?\s*{_OPENING.pattern}")


class Finding(NamedTuple):
    """One phrase at one place."""

    path: Path
    line: int
    found: str
    instead: str

    def __str__(self) -> str:
        path = self.path
        if path.is_relative_to(ROOT):
            path = path.relative_to(ROOT)
        return f"{path}:{self.line}: {self.found!r}: write {self.instead}"


def files(roots: list[Path]) -> Iterator[Path]:
    """Yield the Python and Markdown files in ``roots``."""
    for root in roots:
        for path in sorted(root.rglob("*")) if root.is_dir() else [root]:
            if path.suffix in (".py", ".md") and path.resolve() != STYLE_GUIDE:
                yield path


def phrases(path: Path) -> Iterator[Finding]:
    """Yield the rejected phrases in a file. A phrase may be split over two lines."""
    text = path.read_text()
    plain = re.sub(r"\n[ \t]*#?[ \t]*", lambda m: " " * len(m.group()), text)
    for pattern, instead in _PHRASE.items():
        for match in pattern.finditer(plain):
            yield Finding(path, text.count("\n", 0, match.start()) + 1, match.group(), instead)
    if path.suffix == ".py":
        for match in _NAME.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            yield Finding(path, line, match.group(), "a name that says what it is")


def openings(path: Path) -> Iterator[Finding]:
    """Yield the docstrings of a Python file that begin with a question word."""
    text = path.read_text()
    if not _OPENING_QUOTED.search(text):
        return  # it takes long to parse all
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            said = ast.get_docstring(node) or ""
            if _OPENING.match(said):
                line = node.body[0].lineno
                yield Finding(path, line, said.split("\n")[0], "a verb or a noun first")


def findings(roots: list[Path]) -> list[Finding]:
    """Return all findings in ``roots``."""
    found: list[Finding] = []
    for path in files(roots):
        found += phrases(path)
        if path.suffix == ".py":
            found += openings(path)
    return found


def main(arguments: list[str]) -> int:
    """Print the findings; return 1 if there are any."""
    roots = [Path(each) for each in arguments] or [
        ROOT / each for each in CHECKED if (ROOT / each).exists()
    ]
    found = findings(roots)
    for each in found:
        print(each)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
