"""A real browser looks at a running demo: its page moves, and every page of the console opens."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from tests.demo.support import skip_without_data_set
from tests.demo.test_demo import running_demo
from tests.support.browser import WITH_BROWSER, chromium, sync_api
from tests.support.processes import poll_until
from tidemill.gateway.console.contract import ROOT
from tidemill.gateway.console.table import PAGES

axe = pytest.importorskip(
    "axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed"
)
pytestmark = [*WITH_BROWSER, pytest.mark.spark]
browser = chromium
START_S = 300


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The storm of 8 March at a pace that lasts, and the address of its gateway."""
    pytest.importorskip("pyspark")
    skip_without_data_set()
    folder = tmp_path_factory.mktemp("demo")
    output = folder / "output"
    options = ("--from", "2013-03-08", "--days", "1", "--speed", "600x", "--keep-running")
    with running_demo(folder, *options) as process:
        poll_until(
            lambda: "/console/demo" in output.read_text() or process.poll() is not None,
            START_S,
            "the page is there",
        )
        found = re.search(r"(http://[\d.:]+)/console/demo", output.read_text())
        assert found is not None, output.read_text()
        yield found[1], process
        process.terminate()
        process.wait(60)


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """A page of the browser that reports no error and no warning."""
    made = browser.new_page(viewport={"width": 1280, "height": 900})
    problems: list[str] = []
    made.on("pageerror", lambda error: problems.append(str(error)))

    def note(said: Any) -> None:
        if said.type in ("error", "warning"):
            problems.append(said.text)

    made.on("console", note)
    yield made
    made.close()
    assert problems == []


def test_the_page_moves(demo: tuple[str, Any], page: Any) -> None:
    url, _ = demo
    page.goto(f"{url}{ROOT}/demo")
    page.wait_for_selector(".plane circle[cx]", timeout=START_S * 1000)
    expect, clock = sync_api.expect, page.inner_text("#demo-clock")
    assert "March 2013" in clock
    expect(page.locator("#demo-clock")).not_to_have_text(clock, timeout=30_000)
    plane = page.locator(".plane circle").first
    expect(plane).not_to_have_attribute("cx", plane.get_attribute("cx"), timeout=30_000)
    page.wait_for_selector(".bar.open", state="attached")
    page.wait_for_selector(".bar.final", state="attached", timeout=START_S * 1000)
    assert page.locator("#demo-closed li b").count() > 0
    assert "queries run" in page.inner_text("#demo-pipeline")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_has_no_barriers(
    demo: tuple[str, Any], page: Any, scheme: str, width: int
) -> None:
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": width, "height": 850})
    page.goto(f"{demo[0]}{ROOT}/demo")
    page.wait_for_selector("#demo-hours .axis", state="attached", timeout=START_S * 1000)
    found = axe.Axe().run(page)
    serious = [
        (each["id"], [node["html"][:200] for node in each["nodes"][:3]])
        for each in found.response["violations"]
        if each["impact"] in ("serious", "critical")
    ]
    assert serious == []
    assert not page.evaluate(
        "document.documentElement.scrollWidth > document.documentElement.clientWidth"
    )


def test_every_page_of_the_running_demo_opens(demo: tuple[str, Any], page: Any) -> None:
    url, _ = demo
    about = {"pipeline": "?name=control-room", "source": "?name=demo", "topic": "?name=departures"}
    for each in PAGES:
        if each.belongs_to and each.address not in about:
            continue
        answer = page.goto(f"{url}{ROOT}/{each.address}{about.get(each.address, '')}")
        assert answer.status == 200, each.address
        if each.live_s:
            page.wait_for_selector("#pulse.on", timeout=60_000)


def test_without_scripts_the_page_can_be_read(demo: tuple[str, Any], browser: Any) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{demo[0]}{ROOT}/demo")
    text = page.inner_text("main")
    assert "LaGuardia" in text
    assert re.search(r"\d+ departures", text)
    context.close()
