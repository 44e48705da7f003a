"""A browser's EventSource follows a topic, loses its gateway, and goes on without a gap."""

from __future__ import annotations

import shutil
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.gateway_process import GatewayProcess
from tests.support.processes import poll_until
from tidemill.confluent.clients import Kafka

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(shutil.which("chromium") is None, reason="there is no chromium"),
]

PAGE = """<!doctype html><script>
const source = new EventSource("%s/topics/%s?from=beginning");
source.onmessage = event => {
  const record = JSON.parse(event.data);
  fetch("/seen?" + record.partition + "-" + record.offset + "-" + record.value);
};
</script>"""


def test_a_page_of_an_allowed_origin_gets_each_record_once_over_a_kill(
    broker: BrokerProcess, kafka: Kafka, topic: str, tmp_path: Path
) -> None:
    seen: list[str] = []
    page = ""

    class Site(BaseHTTPRequestHandler):
        """The web server of another origin."""

        def do_GET(self) -> None:
            if self.path.startswith("/seen?"):
                seen.append(self.path.partition("?")[2])
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.end_headers()
            self.wfile.write(page.encode() if self.path == "/" else b"")

        def log_message(self, *_: object) -> None:
            pass

    site = ThreadingHTTPServer(("127.0.0.1", 0), Site)
    threading.Thread(target=site.serve_forever, daemon=True).start()
    origin = f"http://127.0.0.1:{site.server_port}"
    settings = {"gateway.origins": origin}
    with GatewayProcess(tmp_path / "g", broker.bootstrap, settings=settings) as gateway:
        page = PAGE % (gateway.url, topic)
        browser = subprocess.Popen(
            [
                *("chromium", "--headless=new", "--no-sandbox", "--disable-gpu"),
                *("--disable-dev-shm-usage", f"--user-data-dir={tmp_path / 'chromium'}"),
                *("--remote-debugging-port=0", origin + "/"),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            producer = kafka.producer("tests")
            for number in range(20):
                producer.produce(topic, b"%d" % number, partition=number % 2)
            producer.flush(30)
            poll_until(lambda: len(seen) >= 20, 120, "the browser has seen 20 records")
            gateway.kill()
            for number in range(20, 40):
                producer.produce(topic, b"%d" % number, partition=number % 2)
            producer.flush(30)
            gateway.start()
            poll_until(lambda: len(seen) >= 40, 120, "the browser has seen 40 records")
        finally:
            browser.terminate()
            browser.wait(30)
            site.shutdown()
            site.server_close()
    assert sorted(int(each.split("-")[2]) for each in seen) == list(range(40))
