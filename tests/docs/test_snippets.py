"""Every snippet of the README and of the documentation prints what its page says."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.snippets import Snippet, run, snippets
from tests.support.broker_process import BrokerProcess
from tests.support.gateway_process import GatewayProcess
from tests.support.in_process import InProcess
from tests.support.ports import reserve_port

ROOT = Path(__file__).parents[2]
PAGES = [
    page
    for page in [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md"]
    # The examples of the first are parts of programs: the tests of sinks and tables run them. The
    # second needs a broker with its own settings: test_security_page runs it.
    if page.name not in ("extending.md", "security.md") and list(snippets(page))
]


ZEROMQ_PORTS = (5556, 5557)
WITH_SPARK = [page for page in PAGES if any(snippet.needs_spark for snippet in snippets(page))]
WITHOUT_SPARK = [page for page in PAGES if page not in WITH_SPARK]


@pytest.mark.slow
@pytest.mark.parametrize("page", WITHOUT_SPARK, ids=lambda page: page.name)
def test_the_snippets_of_a_page_print_what_it_says(page: Path, tmp_path: Path) -> None:
    # The commands of the README are the end-to-end test of the program ``tidemill``.
    run_page(page, tmp_path, None if page.name == "README.md" else InProcess(None))


@pytest.mark.spark
@pytest.mark.parametrize("page", WITH_SPARK, ids=lambda page: page.name)
def test_the_snippets_of_a_page_with_spark_print_what_it_says(
    page: Path, tmp_path: Path, warm_spark: InProcess
) -> None:
    run_page(page, tmp_path, warm_spark)


def run_page(page: Path, folder: Path, in_process: InProcess | None) -> None:
    """Run all snippets of a page in a new folder, with a new broker."""
    here = folder / "here"
    here.mkdir()
    statsd = str(reserve_port())
    gateway = {f"127.0.0.1{sign}8125": f"127.0.0.1{sign}{statsd}" for sign in ":/"}
    gateway |= {f"127.0.0.1:{port}": f"127.0.0.1:{reserve_port()}" for port in ZEROMQ_PORTS}
    with BrokerProcess(folder / "broker") as broker, contextlib.ExitStack() as stack:
        (here / "tidemill-data").symlink_to(broker.data_dir)
        for snippet in snippets(page):
            if snippet.text.startswith("tidemill gateway"):
                gateway |= stack.enter_context(
                    running_gateway(here, broker.bootstrap, snippet.text)
                )
                continue
            amqp = f"localhost:{broker.amqp_port}"
            run(snippet, here, broker.bootstrap, in_process, amqp, gateway)


@contextlib.contextmanager
def running_gateway(folder: Path, bootstrap: str, command: str) -> Iterator[dict[str, str]]:
    """Run the gateway of a command; yield its addresses, by those that pages have."""
    file = folder / "tidemill.toml" if "--config tidemill.toml" in command else None
    hooks = {"hooks.port": str(reserve_port())}
    with GatewayProcess(folder, bootstrap, settings=hooks, config=file) as gateway:
        yield {
            "localhost:8080": f"127.0.0.1:{gateway.port}",
            "localhost:8081": f"127.0.0.1:{hooks['hooks.port']}",
        }


def test_pages_with_and_without_spark_are_told_apart() -> None:
    assert {"guide-pipelines.md", "guide-windows.md"} <= {page.name for page in WITH_SPARK}
    assert {"guide-groups.md", "README.md"} <= {page.name for page in WITHOUT_SPARK}


def test_the_guides_have_snippets() -> None:
    guides = [*(ROOT / "docs").glob("guide-*.md"), ROOT / "docs" / "transactions.md"]
    for page in guides:
        assert len(list(snippets(page))) > 5, page
    assert {page.name for page in PAGES} > {"README.md", "tour.md", "install.md", "operations.md"}


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
