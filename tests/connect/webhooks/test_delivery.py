"""Records of a topic arrive at an endpoint: over a real broker, a real receiver and real sockets."""

from __future__ import annotations

import standardwebhooks
import svix

from tests.connect.webhooks.conftest import SECRET, Shop
from tests.support.receiver import Receiver


def test_records_arrive_signed_and_other_libraries_verify_them(shop: Shop) -> None:
    with Receiver() as receiver:
        shop.define(receiver.url)
        shop.start()
        for number in range(20):
            shop.send({"type": "order.paid", "number": number}, f"key{number % 3}")
        shop.wait(lambda: len(receiver.requests) == 20, "all arrive")
        for request in receiver.requests:
            found = standardwebhooks.Webhook(SECRET).verify(request.body, request.headers)
            assert found == request.json
            renamed = {f"svix-{k.partition('-')[2]}": v for k, v in request.headers.items()}
            svix.Webhook(SECRET).verify(request.body, renamed)
        assert len({each.id for each in receiver.requests}) == 20
        for key in range(3):
            numbers = [each.json["number"] for each in receiver.requests]
            assert [n for n in numbers if n % 3 == key] == list(range(key, 20, 3))
        shop.wait(lambda: len(shop.attempts(outcome="delivered")) == 20, "all are recorded")
        assert shop.attempts()[0]["answer"].startswith("answer ")
        assert len(shop.attempts()[0]["answer"]) == 1024
