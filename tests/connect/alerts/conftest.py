"""A worker of alerts in this process, over a broker that the tests of connectors share."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tests.support.processes import poll_until
from tests.support.receiver import Receiver
from tests.support.topics import write
from tidemill.confluent.clients import Kafka
from tidemill.connect.alerts import topics
from tidemill.connect.alerts.definition import AlertEntry, AlertsSection, ReceiverEntry
from tidemill.connect.alerts.model import Alert, Stored
from tidemill.connect.alerts.store import read_alerts
from tidemill.connect.alerts.worker import Config, Worker


@dataclass
class Page:
    """A page of metrics that a test changes. Use it as a context manager."""

    text: str = ""
    status: int = 200
    values: dict[str, float] = field(default_factory=dict)

    def __enter__(self) -> Page:
        page = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = page.text or "".join(f"{k} {v}\n" for k, v in page.values.items())
                self.send_response(page.status)
                self.send_header("Content-Length", str(len(body.encode())))
                self.end_headers()
                self.wfile.write(body.encode())

            def log_message(self, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/metrics"


class Alerts:
    """Rules, a receiver and a worker in a thread."""

    def __init__(self, kafka: Kafka, page: Page, hook: Receiver) -> None:
        self.kafka, self.page, self.hook = kafka, page, hook
        self.rules: list[dict[str, Any]] = []
        self.receivers: list[dict[str, Any]] = [
            {"name": "ops", "url": hook.url, "allow_private": True, **self.times}
        ]
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def times(self) -> dict[str, float]:
        return {"group_wait_s": 0, "group_interval_s": 0}

    def start(self, **settings: Any) -> None:
        given = {"interval_ms": 50, "scrape": self.page.url, **settings}
        config = Config(
            AlertsSection.model_validate(given),
            [AlertEntry.model_validate(each) for each in self.rules],
            [ReceiverEntry.model_validate(each) for each in self.receivers],
            {"tidemill_group_lag_seconds"},
        )
        worker = Worker(self.kafka, config)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=worker.run, args=(self._stop,))
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(60)
            assert not self._thread.is_alive()
            self._thread = None

    def send(self, topic: str, *values: Any) -> None:
        write(self.kafka.servers, topic, *values)

    def stored(self) -> dict[str, Stored]:
        return read_alerts(self.kafka)

    def alerts(self) -> list[Alert]:
        return [each for each in self.stored().values() if isinstance(each, Alert)]

    def wait(self, condition: Callable[[], object], what: str) -> None:
        try:
            poll_until(lambda: bool(condition()), 60, what, 0.02)
        except TimeoutError as error:
            raise AssertionError(f"{error}: {self.stored()}") from None

    def wait_for(self, *statuses: str) -> list[Any]:
        """Wait for so many notices with these statuses, and return them."""

        def came() -> bool:
            return [each.json["status"] for each in self.hook.requests] == list(statuses)

        self.wait(came, f"notices {statuses}")
        return [each.json for each in self.hook.requests]


@pytest.fixture
def alerts(kafka: Kafka, name: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Alerts]:
    from tidemill.connect.alerts import store, worker

    for module in (topics, store):
        monkeypatch.setattr(module, "ALERTS", f"tidemill.alerts.{name}", raising=True)
    monkeypatch.setattr(store, "TRANSACTIONAL_ID", f"tidemill-alerts-{name}")
    monkeypatch.setattr(worker, "TURN_S", 0.02)
    with Page() as page, Receiver() as hook:
        made = Alerts(kafka, page, hook)
        yield made
        made.stop()
