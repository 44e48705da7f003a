"""Texts follow ``docs/STYLE.md``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import style

PATHS = [style.ROOT / each for each in style.CHECKED if (style.ROOT / each).exists()]


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.name)
def test_no_rejected_phrase(path: Path) -> None:
    assert [str(each) for each in style.findings([path])] == []


@pytest.mark.parametrize(
    "text",
    [
        '"""Of all queries, as they were last told."""',
        "# the batch is planned anew",
        "# a checkpoint that was put\n# back",
        'raise Error(f"{name!r} is no name of a pipeline")',
        "COMES_AGAIN = 1",
        "def doom(segment): ...",
    ],
)
def test_the_check_finds_rejected_phrases(tmp_path: Path, text: str) -> None:
    (tmp_path / "module.py").write_text(text + "\n")
    assert style.findings([tmp_path])


def test_the_check_accepts_plain_sentences(tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text(
        '"""Return the latest published status of each query; there is no default."""\n'
    )
    assert style.findings([tmp_path]) == []
