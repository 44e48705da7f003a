"""The analysts' desk: it takes alerts as webhooks, and stores a case for each card as events."""

import base64
import hmac
import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tidemill.errors import TidemillError
from tidemill.eventstore.app import Codec, Repository

events = Codec()


@events.event("case opened")
@dataclass(frozen=True)
class Opened:
    card: str


@events.event("alert added")
@dataclass(frozen=True)
class AlertAdded:
    alert: str
    payment: str


@events.event("case closed")
@dataclass(frozen=True)
class Closed:
    verdict: str


@dataclass
class Case:
    """All that is known about a card. The next alert opens a case again that was closed."""

    card: str = ""
    verdict: str = ""
    alerts: dict[str, str] = field(default_factory=dict)

    def report(self, card, alert, payment):
        opened = [] if self.card and not self.verdict else [Opened(card)]
        return [*opened, AlertAdded(alert, payment)]

    def decide(self, charged_back):
        """Close the case: the customer has complained about one of its payments, or has not."""
        is_fraud = not charged_back.isdisjoint(self.alerts.values())
        return Closed("fraud" if is_fraud else "false alarm")

    def apply_opened(self, event: Opened):
        self.card, self.verdict = event.card, ""

    def apply_added(self, event: AlertAdded):
        self.alerts[event.alert] = event.payment

    def apply_closed(self, event: Closed):
        self.verdict = event.verdict


class Desk:
    """The receiver of the webhook. A repeated delivery has the same id, and changes nothing."""

    def __init__(self, store, secret):
        self.store, self._secret = store, secret
        self.cases = Repository(store, events, Case)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._server.server_port}/alerts"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def take(self, identity, alert):
        card = alert["card"]
        self.cases.execute(
            card,
            lambda case: case.report(card, alert["alert"], alert["payment"]),
            command_id=identity,
        )

    def alerts(self):
        """The alerts of all cases, in the order in which they came."""
        stored = map(events.decode, self.store.read_all(category="case"))
        return [event.alert for event in stored if isinstance(event, AlertAdded)]

    def decide(self, cards, charged_back):
        """Close the cases of cards, and return their verdicts."""
        for card in cards:
            self.cases.execute(card, lambda case: case.decide(charged_back), command_id="decide")
        return {card: self.cases.load(card).state.verdict for card in cards}

    def close(self):
        self._server.shutdown()
        self._server.server_close()

    def _handler(desk):  # noqa: N805 - the handler has a self of its own
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if not is_signed(self.headers, body, desk._secret):
                    return self.answer(401)
                try:
                    desk.take(self.headers["webhook-id"], json.loads(body))
                except TidemillError:  # the store does not answer: the webhook is sent again
                    return self.answer(503)
                return self.answer(204)

            def answer(self, status):
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_):
                return

        return Handler


def is_signed(headers, body, secret):
    """Check the signature, as Standard Webhooks describes it."""
    identity, sent = headers.get("webhook-id", ""), headers.get("webhook-timestamp", "")
    key = base64.b64decode(secret.removeprefix("whsec_"))
    digest = hmac.digest(key, f"{identity}.{sent}.".encode() + body, "sha256")
    expected = "v1," + base64.b64encode(digest).decode()
    given = headers.get("webhook-signature", "").split()
    return any(hmac.compare_digest(expected, each) for each in given)
