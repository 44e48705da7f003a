"""A real browser opens every page: nothing fails in it, and people with needs can use it.

Run with ``CONSOLE_SCREENSHOTS=FOLDER`` to keep pictures of all pages.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.gateway.console.test_workers import fill_with_workers
from tests.support.broker_process import BrokerProcess
from tests.support.browser import WITH_BROWSER, chromium, sync_api
from tests.support.gateway_process import GatewayProcess
from tests.support.processes import poll_until
from tidemill.amqp_client.connection import AmqpClient
from tidemill.confluent.clients import Kafka
from tidemill.gateway.console.contract import ROOT, Page
from tidemill.gateway.console.table import PAGES

axe = pytest.importorskip(
    "axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed"
)
pytestmark = WITH_BROWSER
browser = chromium

WIDTHS = {"wide": 1280, "narrow": 390}
PARAMETERS: dict[str, str] = {
    "topic": "?name=orders",
    "messages": "?topic=orders",
    "message": "?topic=orders&partition=0&offset=0",
    "produce": "?topic=orders",
    "group": "?name=billing",
    "queue": "?name=jobs",
    "pipeline": "?name=flights",
    "source": "?name=shop",
    "bridge": "?name=statsd",
    "webhook": "?name=billing",
    "event-store": "?name=accounts&stream=account-1",
}
"""Pages that are about one thing. Others that need a parameter may answer 400 and 404."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Kafka]]:
    """A gateway in front of a broker with topics, records and groups, and its address."""
    folder = tmp_path_factory.mktemp("site")
    with (
        BrokerProcess(folder / "broker") as broker,
        AmqpClient(f"amqp://127.0.0.1:{broker.amqp_port}/") as amqp,
        GatewayProcess(
            folder / "gateway",
            broker.bootstrap,
            settings={"gateway.amqp_url": f"amqp://127.0.0.1:{broker.amqp_port}/"},
        ) as gateway,
    ):
        kafka = Kafka(broker.bootstrap)
        fill_queues(amqp)
        names = ("orders", "payments", "flights", "orders-dead-letters", "empty")
        kafka.create_topics("tests", {name: (3, {}) for name in names})
        producer = kafka.producer("tests")
        trace = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
        for number in range(300):
            order = {"id": number, "cents": number * 7, "customer": {"country": "NL"}}
            producer.produce(
                names[number % 3],
                json.dumps(order),
                f"customer-{number % 20}",
                headers={"traceparent": trace},
            )
        for number in range(3):
            letter: dict[str, str | bytes | None]
            letter = {"error.reason": "not JSON", "source.topic": "orders"}
            value = "<b>hostile</b> \u202e" if number else b"\xff\xfe"
            producer.produce("orders-dead-letters", value, headers=letter)
        assert producer.flush(30) == 0
        fill_with_workers(kafka, folder)
        config = kafka.config("tests", group_id="billing", auto_offset_reset="earliest")
        consumer: Consumer = kafka.make(Consumer, config)
        consumer.subscribe(["orders"])
        poll_until(lambda: bool(consumer.consume(20, 0.5)), 60, "the group reads")
        consumer.commit(asynchronous=False)
        yield gateway.url, kafka
        consumer.close()
        assert "console.failed" not in gateway.log()


def fill_queues(amqp: AmqpClient) -> None:
    """Declare queues with messages, of which one is a dead letter."""
    letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead-jobs"}
    amqp.call("queue.declare", queue="dead-jobs")
    amqp.call("queue.declare", queue="jobs", arguments=letters)
    amqp.call("queue.bind", queue="jobs", exchange="amq.topic", routing_key="job.#")
    amqp.call("confirm.select")
    for _ in range(5):
        amqp.publish("amq.topic", "job.new", b"job")
    message = amqp.get("jobs")
    assert message is not None
    amqp.settle(message.delivery_tag, requeue=False)
    assert amqp.get("jobs") is not None


class Tab:
    """A page in the browser, with what it reports."""

    def __init__(self, browser: Any, scheme: str, width: int, *, scripts: bool = True) -> None:
        self.context = browser.new_context(
            viewport={"width": width, "height": 850},
            color_scheme=scheme,
            java_script_enabled=scripts,
        )
        self.page = self.context.new_page()
        self.problems: list[str] = []
        self.page.on("console", self._note)
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))

    def _note(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.problems.append(f"{self.page.url}: {message.text}")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.address)
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_a_page_has_no_errors_and_no_barriers(
    browser: Any, site: tuple[str, Kafka], page: Page, scheme: str, width: str
) -> None:
    url, _ = site
    tab = Tab(browser, scheme, WIDTHS[width])
    try:
        answer = tab.page.goto(f"{url}{ROOT}/{page.address}{PARAMETERS.get(page.address, '')}")
        known = page.address in PARAMETERS or not page.belongs_to
        if not known and answer.status in (400, 404):
            pytest.skip(reason="the page is about something that is not here")
        assert answer.status == 200
        if page.live_s:
            tab.page.wait_for_selector("#pulse.on", timeout=30_000)
        found = axe.Axe().run(tab.page)
        violations = [
            (each["id"], each["impact"], [node["html"][:200] for node in each["nodes"][:3]])
            for each in found.response["violations"]
        ]
        assert violations == []
        wider = "document.documentElement.scrollWidth > document.documentElement.clientWidth"
        assert not tab.page.evaluate(wider), "the page is wider than the window"
        assert tab.problems == []
        folder = os.environ.get("CONSOLE_SCREENSHOTS")
        if folder:
            name = f"{page.address.replace('/', '-')}-{width}-{scheme}.png"
            tab.page.screenshot(path=Path(folder) / name, full_page=True)
    finally:
        tab.context.close()


def test_figures_move_while_records_are_written(browser: Any, site: tuple[str, Kafka]) -> None:
    url, kafka = site
    tab = Tab(browser, "light", 1280)
    tab.page.goto(f"{url}{ROOT}/topic?name=empty")
    records = tab.page.locator("#live .figures .figure b").first
    assert records.inner_text() == "0"
    producer = kafka.producer("tests")
    for _ in range(7):
        producer.produce("empty", b"x")
    producer.flush(30)
    sync_api.expect(records).to_have_text("7", timeout=30_000)
    assert tab.problems == []
    tab.context.close()


def test_a_search_a_tail_and_forms_work(browser: Any, site: tuple[str, Kafka]) -> None:
    url, kafka = site
    tab = Tab(browser, "light", 1280)
    page, expect = tab.page, sync_api.expect
    page.goto(f"{url}{ROOT}/topics")
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.name") == "q"
    page.get_by_text("New topic").click()
    page.get_by_label("Name").fill("made")
    page.get_by_role("button", name="Create").click()
    expect(page.get_by_role("status").filter(has_text="was created")).to_be_visible()
    page.goto(f"{url}{ROOT}/produce?topic=made")
    page.get_by_label("Value is").select_option("json")
    page.get_by_label("Value", exact=True).fill('{"n": 1}')
    page.get_by_role("button", name="Write").click()
    expect(page.locator("pre code")).to_have_text('{\n  "n": 1\n}')
    page.goto(f"{url}{ROOT}/messages?topic=made")
    page.get_by_role("button", name="Follow").click()
    expect(page.locator("#state")).to_contain_text("0 new records")
    producer = kafka.producer("tests")
    producer.produce("made", b'{"n": 2}', b"<script>alert(1)</script>")
    producer.flush(30)
    expect(page.locator("#rows tr")).to_have_count(2, timeout=30_000)
    page.get_by_label("Condition").fill("n == 2")
    page.get_by_role("button", name="Search", exact=True).click()
    expect(page.locator("#rows tr")).to_have_count(1, timeout=30_000)
    page.on("dialog", lambda dialog: dialog.accept("twos"))
    page.get_by_role("button", name="Save this search").click()
    page.goto(f"{url}{ROOT}/messages?topic=made")
    page.get_by_role("link", name="twos").click()
    expect(page.get_by_label("Condition")).to_have_value("n == 2")
    page.locator("#rows input").first.check()
    page.get_by_text("Send again").first.click()
    page.get_by_role("button", name="Send", exact=True).click()
    expect(page.get_by_role("status").filter(has_text="1 of 1 records")).to_be_visible()
    theme = page.locator("#theme")
    theme.click()
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert tab.problems == []
    tab.context.close()


def test_groups_queues_and_transactions_are_changed(browser: Any, site: tuple[str, Kafka]) -> None:
    url, kafka = site
    config = kafka.config("tests", group_id="stopped", enable_auto_commit=False)
    consumer: Consumer = kafka.make(Consumer, config)
    consumer.commit(offsets=[TopicPartition("orders", 0, 5)], asynchronous=False)
    consumer.close()
    producer: Producer = kafka.make(Producer, kafka.config("tests", transactional_id="writer"))
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce("orders", b"{}")
    producer.flush(30)
    tab = Tab(browser, "light", 1280)
    page, expect = tab.page, sync_api.expect
    notice = page.locator("p.notice")
    page.on("dialog", lambda dialog: dialog.accept())
    page.goto(f"{url}{ROOT}/groups")
    page.get_by_role("link", name="stopped").click(timeout=30_000)
    page.locator("select[name=to]").select_option("beginning")
    page.get_by_role("button", name="Preview").click()
    expect(page.locator("#preview")).to_contain_text("-5")
    page.get_by_role("button", name="Reset the group").click()
    expect(notice).to_have_text("Moved stopped on 1 partition.")
    page.goto(f"{url}{ROOT}/queue?name=dead-jobs")
    page.get_by_role("button", name="Move back").click()
    expect(notice).to_have_text("1 message moved to jobs.")
    page.goto(f"{url}{ROOT}/queue?name=jobs")
    page.get_by_text("I want to drop them").click()
    page.get_by_role("button", name="Drop").click()
    expect(notice).to_have_text("Dropped 4 messages of jobs.")
    page.goto(f"{url}{ROOT}/transactions")
    page.get_by_text("Abort…").click()
    page.get_by_role("button", name="Abort writer").click()
    expect(notice).to_have_text("Aborted writer; its producer is fenced.")
    page.goto(f"{url}{ROOT}/connections")
    page.locator("#live").get_by_role("button").first.click()
    expect(notice).to_contain_text("Closed 127.0.0.1")
    assert tab.problems == []
    tab.context.close()


def test_pages_are_readable_without_scripts(browser: Any, site: tuple[str, Kafka]) -> None:
    url, _ = site
    tab = Tab(browser, "light", 1280, scripts=False)
    tab.page.goto(f"{url}{ROOT}/messages?topic=orders&where=cents%20%3E%201000")
    assert tab.page.locator("#rows tr").count() > 10
    tab.page.goto(f"{url}{ROOT}/overview")
    assert tab.page.get_by_text("Needs attention").is_visible()
    tab.context.close()
