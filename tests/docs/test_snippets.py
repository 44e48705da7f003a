"""Every snippet of the README, the guides and the page on transactions runs as the page says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.snippets import Snippet, run, snippets
from tests.support.broker_process import BrokerProcess

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [*(ROOT / "docs").glob("guide-*.md"), ROOT / "docs" / "transactions.md", ROOT / "README.md"]
)


@pytest.mark.timeout(900)  # two of them start Spark
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_page_tells_the_truth(page: Path, tmp_path: Path) -> None:
    folder = tmp_path / "here"
    folder.mkdir()
    with BrokerProcess(tmp_path / "broker") as broker:
        (folder / "tidemill-data").symlink_to(broker.data_dir)
        for snippet in snippets(page):
            run(snippet, folder, broker.bootstrap)


def test_the_guides_have_snippets() -> None:
    for page in PAGES:
        if page.name != "README.md":
            assert len(list(snippets(page))) > 5, page


def test_snippets_are_read_in_order_with_what_they_print(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "```console\n$ one\nout\nmore\n$ two\n```\n"
        "```console no-run\n$ never\n```\n"
        "```console\n$ tidemill dev\nbanner\n$ three <<E\n> in\n> E\nerror: x\n```\n"
        "```python\nprint(1)\n```\n\n```text\n1\n```\n"
    )
    found = list(snippets(page))
    assert [(s.command[-1], s.expected, s.may_fail) for s in found] == [
        ("one", "out\nmore", False),
        ("two", "", False),
        ("three <<E\nin\nE", "error: x", True),
        ("print(1)\n", "1\n", False),
    ]
    assert found[0].place == "page.md:1"


def test_a_page_that_lies_is_found_out(tmp_path: Path) -> None:
    def say(text: str, expected: str) -> None:
        run(Snippet("p", ["bash", "-c", f"printf '{text}'"], expected), tmp_path, "localhost:1")

    say("a 12 b\\nx\\ny\\nz\\n", "a ... b\n...\nz")
    say("", "")
    for text, expected in (("a\\n", "b"), ("a\\nb\\n", "a"), ("", "a"), ("a b\\n", "a...c")):
        with pytest.raises(AssertionError, match="but the page says"):
            say(text, expected)
    with pytest.raises(AssertionError, match="exit code 3"):
        run(Snippet("p", ["bash", "-c", "exit 3"], ""), tmp_path, "localhost:1")
