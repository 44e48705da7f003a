"""Pages with long figures, in a real browser: nothing touches its neighbour, and nothing is cut."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.browser import WITH_BROWSER, chromium
from tidemill.gateway.console.app import _STATIC, Frame
from tidemill.gateway.console.render import Renderer
from tidemill.gateway.console.table import PAGES

pytestmark = WITH_BROWSER
browser = chromium

HOUR = [(1e9 + 60 * minute, float(minute % 5)) for minute in range(20)]
GROUP = {
    "group": SimpleNamespace(
        name="payments-consumers",
        lag=1_234_567_890,
        hour=HOUR,
        per_s=123_456.7,
        is_older=True,
        lag_s=12.5 * 86_400,
        members=1200,
        state="preparing rebalance",
        kind="consumer",
    ),
    "read": HOUR,
    "protocol": "cooperative-sticky",
    "partitions": [],
    "members": [],
    "positions": [],
    "topics": [],
    "left_out": 0,
    "members_left_out": 0,
    "result": None,
}
QUERY = SimpleNamespace(
    status=SimpleNamespace(
        query="flights_by_airline_hour",
        sources=[SimpleNamespace(topic="flights.departures", name="")],
        writes=["flights.by-airline-hour"],
        sink="",
        latency_p50_ms=12_345,
        batch=123_456,
    ),
    state="running",
    rows_per_s=12_345.0,
    rates=HOUR,
    lag=123_456_789,
    final_up_to="2026-11-27 06:48:20",
    slowest=HOUR,
)
PIPELINE = {
    "name": "flights",
    "state": "running",
    "runner": "host:1",
    "spark_ui": "",
    "errors": [],
    "rows_per_s": 1_234_567.0,
    "lag": 1_234_567_890_123,
    "latency_ms": 3.2 * 86_400_000,
    "final_up_to": "2026-11-27 06:48:20",
    "late_rows": 12_345_678_901,
    "restarts": 3,
    "graph": None,
    "rates": HOUR,
    "found": [QUERY],
}
TOUCHING = """() => [...document.querySelectorAll(".figures")].flatMap(box => {
  const texts = [...box.querySelectorAll(".figure")].map(each => {
    const range = document.createRange();
    range.selectNodeContents(each);
    return range.getBoundingClientRect();
  });
  const right = box.getBoundingClientRect().right;
  return texts.flatMap((a, i) => [
    ...(a.right > right ? [`${i} is outside`] : []),
    ...texts.slice(i + 1)
      .filter(b => a.bottom > b.top + 1 && b.bottom > a.top + 1)
      .filter(b => a.right + 8 > b.left && b.right + 8 > a.left)
      .map(b => `${i} touches ${texts.indexOf(b)}`),
  ]);
})"""
CUT = """() => [...document.querySelectorAll(".scroll")]
  .filter(each => each.scrollWidth > each.clientWidth).length"""


@pytest.mark.parametrize("width", [1280, 1024, 390])
@pytest.mark.parametrize(("address", "data"), [("group", GROUP), ("pipeline", PIPELINE)])
def test_long_figures_do_not_touch_and_tables_fit_a_common_screen(
    browser: Any, address: str, data: dict[str, Any], width: int
) -> None:
    view = SimpleNamespace(url=lambda **_: "", kept={})
    frame = Frame(*("1", PAGES, address, "Title", "", True, True, False, "", ""))
    context = {**data, "frame": frame, "view": view, "csrf": lambda: ""}
    page = browser.new_page(viewport={"width": width, "height": 900})
    page.set_content(Renderer().page(f"{address}.html", context))
    page.add_style_tag(content=(_STATIC / "console.css").read_text())
    assert page.evaluate(TOUCHING) == []
    assert page.evaluate("() => document.documentElement.scrollWidth - innerWidth") == 0
    if width == 1280:
        assert page.evaluate(CUT) == 0
    page.close()
