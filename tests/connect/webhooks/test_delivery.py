"""Records of a topic arrive at an endpoint: a real broker, a real receiver, real sockets."""

from __future__ import annotations

import itertools
import os
import ssl
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import standardwebhooks
import structlog
import svix
from confluent_kafka import KafkaError, KafkaException, Producer

from tests.connect.webhooks.conftest import SECRET, Shop
from tests.support.certificates import self_signed
from tests.support.ports import reserve_port
from tests.support.receiver import Receiver, Reply, Request
from tests.support.spans import PARENT, TRACE_ID, recorded, trace_of
from tests.support.topics import remove_before
from tidemill.confluent import reading
from tidemill.confluent.reading import Follower, read_to_end
from tidemill.connect.webhooks import intake, redelivery
from tidemill.connect.webhooks.signatures import Verifier, new_key_pair, new_secret
from tidemill.connect.webhooks.topics import dead_letters_topic


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as made:
        yield made


def numbers(receiver: Receiver) -> list[int]:
    return [each.json["number"] for each in receiver.requests]


def test_records_arrive_signed_and_other_libraries_verify_them(
    shop: Shop, receiver: Receiver
) -> None:
    shop.define(receiver.url, headers={"X-Shop": "north"})
    shop.start()
    shop.send_all([(f"key{n % 3}", {"type": "order.paid", "number": n}) for n in range(20)])
    shop.wait(lambda: len(receiver.requests) == 20, "all arrive")
    for request in receiver.requests:
        found = standardwebhooks.Webhook(SECRET).verify(request.body, request.headers)
        assert found == request.json
        renamed = {f"svix-{k.partition('-')[2]}": v for k, v in request.headers.items()}
        svix.Webhook(SECRET).verify(request.body, renamed)
        assert request.headers["x-shop"] == "north"
        assert request.headers["content-type"] == "application/json"
    assert len({each.id for each in receiver.requests}) == 20
    for key in range(3):
        assert [n for n in numbers(receiver) if n % 3 == key] == list(range(key, 20, 3))
    shop.wait(lambda: len(shop.attempts(outcome="delivered")) == 20, "all are recorded")
    first = shop.attempts()[0]
    assert first["answer"].startswith("answer ")
    assert (len(first["answer"]), first["status"], first["attempt"]) == (1024, 200, 1)


def test_the_ids_of_retries_are_the_same_and_their_signatures_valid(shop: Shop) -> None:
    statuses = iter([500, 301, 404, 204])
    with Receiver(lambda request: next(statuses, 200)) as receiver:
        shop.define(receiver.url)
        shop.start()
        shop.send({"number": 1})
        shop.wait(lambda: shop.attempts(outcome="delivered"), "it is delivered")
        assert len({each.id for each in receiver.requests}) == 1
        for each in receiver.requests:
            standardwebhooks.Webhook(SECRET).verify(each.body, each.headers)
    found = [(each["attempt"], each["status"], each["outcome"]) for each in shop.attempts()]
    assert found == [(1, 500, "retry"), (2, 301, "retry"), (3, 404, "retry"), (4, 204, "delivered")]
    assert shop.attempts()[1]["error"] == "redirects are not followed"


def test_a_failing_key_holds_only_itself_and_is_shown(shop: Shop) -> None:
    works = False

    def reply(request: Request) -> Reply:
        return 200 if works or request.json["key"] != "bad" else 500

    with Receiver(reply) as receiver:
        shop.define(receiver.url, retries_s=[0.2] * 50)
        shop.start()
        keys = ["bad", "a", "bad", "b", "bad", "a"]
        shop.send_all([(key, {"key": key, "number": n}) for n, key in enumerate(keys)])
        shop.wait(lambda: {1, 3, 5} <= set(numbers(receiver)), "the others arrive")
        shop.wait(
            lambda: shop.status().get("blocked") == [{"key": "bad", "behind": 2}],
            "what waits is shown",
        )
        assert {2, 4} & set(numbers(receiver)) == set()
        works = True
        shop.wait(lambda: len(shop.attempts(outcome="delivered")) == 6, "all arrive")
        arrived = [n for n in numbers(receiver) if n in (0, 2, 4)]
        assert sorted(arrived) == arrived
        shop.wait(lambda: shop.status().get("lag") == 0, "nothing is behind")


def test_what_can_not_be_delivered_becomes_a_dead_letter_and_can_be_redelivered(
    shop: Shop,
) -> None:
    works = False
    with Receiver(lambda request: 200 if works else 500) as receiver:
        shop.define(receiver.url, retries_s=[0.01])
        shop.start()
        shop.send({"number": 1}, "k", headers=[("a", b"b")])
        shop.send({"number": 2}, "k")
        shop.wait(lambda: len(shop.attempts(outcome="dead")) == 2, "both are dead")
        topic = dead_letters_topic(shop.name)
        letters = list(read_to_end(shop.kafka, "tests", topic))
        assert [value for _, value in letters] == [b'{"number": 1}', b'{"number": 2}']
        ids = {each.id for each in receiver.requests}
        receiver.requests.clear()
        works = True
        job = shop.order("redeliver/one", failed=True)
        shop.wait(lambda: len(shop.attempts(outcome="delivered")) == 2, "both are delivered")
        assert {each.id for each in receiver.requests} == ids
        assert {each["job"] for each in shop.attempts(outcome="delivered")} == {"one"}
        shop.order("redeliver/two", failed=True)
        shop.send({"number": 3})
        shop.wait(lambda: len(shop.attempts(outcome="delivered")) == 3, "only the new one is left")
        assert job


def test_a_range_is_redelivered(shop: Shop, receiver: Receiver) -> None:
    shop.define(receiver.url)
    shop.start()
    for n in range(6):
        shop.send({"number": n}, "k", partition=0)
    shop.wait(lambda: len(shop.attempts(outcome="delivered")) == 6, "all are delivered")
    receiver.requests.clear()
    shop.order("redeliver/r", **{"partition": 0, "from": 2, "to": 4})
    shop.wait(lambda: len(shop.attempts(job="r")) == 2, "they are redelivered")
    assert sorted(numbers(receiver)) == [2, 3]
    shop.order("redeliver/all", **{"partition": None, "from": 3, "to": None})
    shop.wait(lambda: len(shop.attempts(job="all")) == 3, "they are redelivered")
    assert sorted(numbers(receiver)) == [2, 3, 3, 4, 5]


def test_a_redelivery_that_can_not_read_for_a_moment_is_not_forgotten(
    shop: Shop, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.define(receiver.url)
    shop.start()
    shop.send_all([(None, {"number": n}) for n in range(5)])
    shop.wait(lambda: len(receiver.requests) == 5, "all arrive")
    receiver.requests.clear()
    failures = iter(range(3))

    class Failing(Follower):
        def poll(self, timeout_s: float) -> Iterator[Any]:
            if next(failures, None) is not None:
                raise KafkaException(KafkaError(KafkaError._TRANSPORT))
            return super().poll(timeout_s)

    monkeypatch.setattr(redelivery, "Follower", Failing)
    monkeypatch.setattr(redelivery, "RETRY_S", 0.01)
    shop.order("redeliver/one", **{"from": 0})
    shop.wait(lambda: len(shop.attempts(outcome="delivered", job="one")) == 5, "all again")
    assert sorted(numbers(receiver)) == [0, 1, 2, 3, 4]


def test_a_bare_error_of_the_client_is_a_failure_and_not_the_end(
    shop: Shop, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some calls raise a KafkaError, which is not an Exception."""
    real, errors = reading.arrived, iter([KafkaError(KafkaError._FATAL)])

    def arrived(consumer: Any, timeout_s: float) -> Iterator[Any]:
        if (error := next(errors, None)) is not None:
            raise error  # type: ignore[misc]
        return real(consumer, timeout_s)

    monkeypatch.setattr(intake, "arrived", arrived)
    shop.define(receiver.url)
    shop.start()
    shop.send({"number": 1})
    shop.wait(lambda: receiver.requests, "another run delivers it")


def test_410_disables_until_resumed_and_nothing_is_lost(shop: Shop) -> None:
    gone = True
    with Receiver(lambda request: 410 if gone else 200) as receiver:
        shop.define(receiver.url)
        shop.start()
        shop.send_all([("k", {"number": n}) for n in range(3)])
        shop.wait(lambda: shop.status().get("phase") == "disabled", "it is disabled")
        assert "410" in shop.status()["disabled"]
        assert shop.attempts(event="disabled")[0]["reason"] == "the endpoint answered 410 Gone"
        count = len(receiver.requests)
        shop.stop()
        shop.start()  # a new worker knows it too
        shop.wait(lambda: shop.status().get("phase") == "disabled", "it is disabled")
        assert len(receiver.requests) == count
        gone = False
        shop.board.done(shop.name, "disable")
        shop.order("pause", paused=False)
        shop.wait(lambda: len(shop.attempts(outcome="delivered")) == 3, "all are delivered")


def test_days_of_failure_disable(shop: Shop) -> None:
    with Receiver(lambda request: 500) as receiver:
        shop.define(receiver.url, disable_after_s=1)
        shop.start()
        shop.send({"number": 1})
        shop.wait(lambda: shop.status().get("phase") == "disabled", "it is disabled")
        assert "every attempt failed" in shop.attempts(event="disabled")[0]["reason"]


@pytest.mark.parametrize("hours", [-1, 24 * 6])
def test_a_clock_that_jumps_neither_delays_retries_nor_disables(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    real_ns, numbered = time.time_ns, itertools.count(1)

    def reply(request: Request) -> Reply:
        number = next(numbered)
        if number == 1:
            monkeypatch.setattr(time, "time_ns", lambda: real_ns() + hours * 3600 * 10**9)
        return 500 if number < 4 else 200

    with Receiver(reply) as receiver:
        shop.define(receiver.url, rate=100.0)
        shop.start()
        shop.send({"number": 1})
        shop.wait(lambda: len(receiver.requests) == 4, "it is retried")
        shop.wait(lambda: shop.attempts(outcome="delivered"), "it is delivered")
        assert shop.attempts(event="disabled") == []


def test_a_new_worker_continues_exactly_where_the_last_one_stopped(shop: Shop) -> None:
    """Also above a record that fails: what was delivered behind it is not delivered again."""
    with Receiver(lambda request: 500 if request.json["number"] == 0 else 200) as receiver:
        shop.define(receiver.url, retries_s=[3600.0] * 9)
        shop.start()
        shop.send_all([(f"k{n}", {"number": n}) for n in range(30)])
        shop.wait(lambda: len(shop.attempts(outcome="delivered")) == 29, "29 are delivered")
        shop.stop()
        receiver.requests.clear()
        shop.start()
        shop.send({"number": 99}, "new")
        shop.wait(lambda: 99 in numbers(receiver), "the new one arrives")
        shop.wait(lambda: shop.status().get("retrying") == 1, "the plan of the retry is kept")
        assert numbers(receiver) == [99]


def test_only_what_the_filter_accepts_is_delivered_and_transformed(
    shop: Shop, receiver: Receiver
) -> None:
    shop.define(
        receiver.url,
        types=["order.*", "refund"],
        filter="cents > 100 and $headers.test == null",
        template={"text": "${type} of ${cents}", "number": "${number}"},
    )
    shop.start()
    shop.send({"type": "order.paid", "cents": 500, "number": 1})
    shop.send({"type": "orders", "cents": 500, "number": 2})
    shop.send({"type": "order.paid", "cents": 5, "number": 3})
    shop.send({"type": "order.paid", "cents": 500, "number": 4}, headers=[("test", b"1")])
    shop.send(b"not json")
    shop.send({"type": "refund", "cents": 101, "number": 5})
    wanted = {"delivered": 2, "filtered": 3, "dead": 1}
    shop.wait(lambda: wanted.items() <= shop.status().items(), "all are finished")
    assert sorted((each.json["text"], each.json["number"]) for each in receiver.requests) == [
        ("order.paid of 500", 1),
        ("refund of 101", 5),
    ]
    (dead,) = shop.attempts(outcome="dead")
    assert "not JSON" in dead["error"]


def test_a_batch_has_an_id_of_its_own_and_each_record_keeps_its(shop: Shop) -> None:
    statuses = iter([500])
    with Receiver(lambda request: next(statuses, 200)) as receiver:
        shop.define(receiver.url, batch=10, concurrency=1)
        shop.send_all([("k", {"type": "t", "number": n}) for n in range(25)])
        shop.start()
        shop.wait(lambda: shop.status().get("delivered") == 25, "all are delivered")
        first, again, *_ = receiver.requests
        assert first.id == again.id
        assert first.id.startswith("batch_")
        found: dict[str, list[Any]] = defaultdict(list)
        for request in receiver.requests[1:]:
            standardwebhooks.Webhook(SECRET).verify(request.body, request.headers)
            assert 1 <= len(request.json) <= 10
            for entry in request.json:
                found[entry["id"]].append(entry)
        assert len(found) == 25
        assert [each[0]["data"]["number"] for each in found.values()] == list(range(25))
        assert {each[0]["type"] for each in found.values()} == {"t"}


def test_concurrency_is_a_limit(shop: Shop) -> None:
    with Receiver(delay_s=0.05) as receiver:
        shop.define(receiver.url, concurrency=3)
        shop.send_all([(None, {"number": n}) for n in range(30)])
        shop.start()
        shop.wait(lambda: len(receiver.requests) == 30, "all arrive")
        assert receiver.most_open == 3


def test_a_throttled_receiver_is_left_alone(shop: Shop) -> None:
    times: list[float] = []

    def reply(request: Request) -> Reply:
        times.append(time.monotonic())
        return (429, {"Retry-After": "1"}) if len(times) == 1 else 200

    with Receiver(reply) as receiver:
        shop.define(receiver.url, concurrency=1)
        shop.send_all([(None, {"number": n}) for n in range(5)])
        shop.start()
        shop.wait(lambda: shop.status().get("delivered") == 5, "all are delivered")
        assert times[1] - times[0] >= 0.9
        assert len(receiver.requests) == 6


def test_memory_is_bounded_while_the_receiver_is_down(shop: Shop) -> None:
    down = True
    with Receiver(lambda request: 500 if down else 200) as receiver:
        shop.define(receiver.url, max_waiting=20, concurrency=2)
        shop.start()
        shop.send_all([(f"k{n % 40}", {"number": n}) for n in range(2500)])
        shop.wait(lambda: shop.status().get("is_full"), "reading waits")
        assert shop.status()["waiting"] <= 20 + 2000  # the bound, and what was fetched together
        down = False
        shop.wait(lambda: shop.status().get("delivered") == 2500, "all are delivered")
        assert len({each.id for each in receiver.requests}) == 2500


def test_a_key_that_fails_makes_room_if_the_user_wants_that(shop: Shop) -> None:
    with Receiver(lambda request: 500 if request.json["key"] == "bad" else 200) as receiver:
        shop.define(receiver.url, max_waiting=10, overflow="dead-letter", retries_s=[3600.0])
        shop.start()
        shop.send({"key": "bad", "number": -1}, "bad")
        shop.wait(lambda: shop.attempts(outcome="retry"), "it fails")
        shop.send_all([("bad", {"key": "bad", "number": n}) for n in range(15)])
        shop.send({"key": "good", "number": 100}, "good")
        shop.wait(lambda: 100 in numbers(receiver), "others are delivered")
        shop.wait(lambda: len(shop.attempts(outcome="dead")) >= 10, "it made room")
        assert "wait behind" in shop.attempts(outcome="dead")[0]["error"]


def test_a_test_event_is_sent_in_any_state(shop: Shop, receiver: Receiver) -> None:
    shop.define(receiver.url)
    shop.order("pause", paused=True)
    shop.start()
    shop.order("test/42")
    shop.wait(lambda: shop.attempts(job="42"), "the test is recorded")
    shop.wait(lambda: shop.status().get("phase") == "paused", "it is still paused")
    assert receiver.requests[0].json["type"] == "webhook.test"
    standardwebhooks.Webhook(SECRET).verify(receiver.requests[0].body, receiver.requests[0].headers)


def test_a_missing_secret_fails_until_resumed(
    shop: Shop, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WEBHOOK_SECRET")
    shop.define(receiver.url)
    shop.send({"number": 1})
    shop.start()
    shop.wait(lambda: shop.status().get("phase") == "failed", "it fails")
    assert "WEBHOOK_SECRET" in shop.status()["error"]
    monkeypatch.setenv("WEBHOOK_SECRET", SECRET)
    shop.order("pause", paused=False)
    shop.wait(lambda: numbers(receiver) == [1], "it is delivered")


def test_a_topic_that_does_not_exist_yet_loses_nothing(shop: Shop, receiver: Receiver) -> None:
    shop.define(receiver.url, topic=f"later-{shop.name}", start_at="end")
    shop.topic = f"later-{shop.name}"
    shop.start()
    shop.wait(lambda: shop.status().get("phase") == "waiting", "it waits for the topic")
    assert "does not exist" in shop.status()["error"]
    shop.kafka.create_topics("tests", {shop.topic: (1, {})})
    shop.send({"number": 1})
    shop.wait(lambda: numbers(receiver) == [1], "it is delivered")


def test_both_secrets_sign_while_one_is_replaced(
    shop: Shop, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    private, public = new_key_pair()
    old = new_secret()
    monkeypatch.setenv("NEW_SECRET", private.reveal())
    monkeypatch.setenv("OLD_SECRET", old.reveal())
    shop.define(receiver.url, secrets=["${env:NEW_SECRET}", "${env:OLD_SECRET}"])
    shop.start()
    shop.send({"number": 1})
    shop.wait(lambda: receiver.requests, "it arrives")
    (request,) = receiver.requests
    for key in (public, old):
        Verifier([key]).verify(request.headers, request.body, time.time())
    standardwebhooks.Webhook(old.reveal()).verify(request.body, request.headers)


def test_tls_is_verified_with_the_authorities_that_are_set(shop: Shop, tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with Receiver(ssl=context) as receiver:
        shop.define(receiver.url)
        shop.start()
        shop.send({"number": 1})
        shop.wait(lambda: shop.attempts(outcome="retry"), "the certificate is refused")
        assert "certificate" in shop.attempts()[0]["error"].lower()
        assert receiver.requests == []
        shop.define(receiver.url, ca_file=str(certificate))
        shop.wait(lambda: numbers(receiver) == [1], "it is delivered")


def test_an_attempt_says_why_a_receiver_can_not_be_reached(shop: Shop) -> None:
    port = reserve_port()
    shop.define(f"http://127.0.0.1:{port}/", retries_s=[0.01])
    shop.start()
    shop.send({"number": 1})
    shop.wait(lambda: shop.attempts(outcome="dead"), "it is a dead letter")
    assert shop.attempts()[0]["error"] == f"can't connect to 127.0.0.1:{port}: Connection refused"


def test_a_private_address_is_refused_and_retried(shop: Shop, receiver: Receiver) -> None:
    shop.define(receiver.url, allow_private=False, retries_s=[0.01])
    shop.start()
    shop.send({"number": 1})
    shop.wait(lambda: shop.attempts(outcome="dead"), "it is a dead letter")
    assert "refused to connect to 127.0.0.1" in shop.attempts()[0]["error"]
    assert receiver.requests == []


def test_a_topic_that_is_created_again_is_delivered_from_its_beginning(
    shop: Shop, receiver: Receiver
) -> None:
    shop.define(receiver.url)
    shop.start()
    shop.send_all([("k", {"number": n}) for n in range(5)])
    shop.wait(lambda: len(receiver.requests) == 5, "all arrive")
    shop.stop()
    shop.kafka.delete_topics("tests", [shop.topic])
    shop.kafka.create_topics("tests", {shop.topic: (2, {})})
    shop.send_all([("k", {"number": n}) for n in range(10, 18)])
    shop.start()
    shop.wait(lambda: len(receiver.requests) == 13, "all of the new ones arrive")
    assert numbers(receiver)[5:] == list(range(10, 18))
    assert len({each.id for each in receiver.requests}) == 13


def test_a_redelivery_leaves_out_dead_letters_of_an_earlier_topic_of_the_same_name(
    shop: Shop,
) -> None:
    works = False

    def redeliver(job: str) -> None:
        shop.order(f"redeliver/{job}", failed=True)
        shop.wait(lambda: not shop.commands(), f"{job} ends")

    with Receiver(lambda request: 200 if works else 500) as receiver:
        shop.define(receiver.url, retries_s=[0.01])
        shop.start()
        for number in range(3):
            shop.send({"number": number}, "k", partition=0)
        shop.wait(lambda: len(shop.attempts(outcome="dead")) == 3, "they are dead")
        shop.stop()
        shop.kafka.delete_topics("tests", [shop.topic])
        shop.kafka.create_topics("tests", {shop.topic: (2, {})})
        works = True
        shop.start()
        shop.send({"number": 10}, "k", partition=0)
        shop.wait(lambda: len(shop.attempts(outcome="delivered")) == 1, "it is delivered")
        redeliver("none")  # offsets 1 and 2 were dead in the earlier topic, and are not here yet
        works = False
        shop.send({"number": 11}, "k", partition=0)
        shop.wait(lambda: len(shop.attempts(outcome="dead")) == 4, "the second is dead")
        works = True
        redeliver("one")
        (again,) = [each for each in shop.attempts() if "job" in each]
        assert (again["job"], again["records"]) == ("one", [[0, 1]])


def test_records_that_retention_has_deleted_are_counted(shop: Shop, receiver: Receiver) -> None:
    shop.define(receiver.url)
    shop.start()
    shop.send({"number": 0}, partition=0)
    shop.wait(lambda: len(receiver.requests) == 1, "it arrives")
    shop.stop()
    for number in range(1, 6):
        shop.send({"number": number}, partition=0)
    remove_before(shop.kafka.servers, shop.topic, 4)
    with structlog.testing.capture_logs() as logs:
        shop.start()
        shop.wait(lambda: len(receiver.requests) == 3, "the rest arrives")
    (lost,) = [each for each in logs if each["event"] == "webhook.records_lost"]
    assert (lost["from_offset"], lost["to_offset"]) == (1, 4)
    assert sorted(numbers(receiver)) == [0, 4, 5]  # without keys, they are sent side by side


def test_a_second_worker_takes_over_and_the_first_one_stops(shop: Shop, receiver: Receiver) -> None:
    shop.define(receiver.url)
    shop.start()
    shop.send({"number": 0}, "k")
    shop.wait(lambda: len(receiver.requests) == 1, "it arrives")
    with structlog.testing.capture_logs() as logs:
        second = shop.worker()
        second.start()
        shop.wait(
            lambda: [each for each in logs if each["event"] == "webhook.failed"], "the first stops"
        )
        shop.send_all([("k", {"number": n}) for n in range(1, 20)])
        shop.wait(lambda: len({each.id for each in receiver.requests}) == 20, "all arrive")
        second.stop()
    (fenced,) = [each for each in logs if each["event"] == "webhook.failed"]
    assert "another worker delivers webhook" in fenced["error"]
    assert f"tidemill webhook resume {shop.name}" in fenced["hint"]
    assert numbers(receiver) == list(range(20))


def test_a_large_record_is_delivered_or_becomes_a_dead_letter(shop: Shop) -> None:
    large = os.urandom(6 << 20)
    with Receiver(lambda request: 200 if len(request.body) < 100 else 413) as receiver:
        name = f"large-{shop.name}"
        shop.kafka.create_topics("tests", {name: (1, {"max.message.bytes": str(8 << 20)})})
        shop.topic = name
        shop.define(receiver.url, topic=name, retries_s=[0.01])
        shop.start()
        producer = Producer({"bootstrap.servers": shop.kafka.servers, "message.max.bytes": 8 << 20})
        producer.produce(name, large, "k")
        producer.produce(name, b"small", "k")
        assert producer.flush(60) == 0
        shop.wait(lambda: shop.attempts(outcome="delivered"), "the small one is delivered")
        ((_, value),) = read_to_end(shop.kafka, "tests", dead_letters_topic(shop.name))
        assert value == large
        assert receiver.requests[0].body == large


def test_a_request_continues_the_trace_of_its_record(shop: Shop, receiver: Receiver) -> None:
    shop.define(receiver.url)
    with recorded() as spans:
        shop.start()
        shop.send({"number": 1}, "k", headers=[("traceparent", PARENT.encode())])
        shop.wait(lambda: receiver.requests, "it arrives")
        shop.wait(lambda: f"webhook {shop.name}" in spans(), "the span has ended")
        made = spans()[f"webhook {shop.name}"]
    shop.stop()
    assert trace_of(made) == TRACE_ID
    assert made.attributes["http.response.status_code"] == 200
    assert receiver.requests[0].headers["traceparent"][36:52] == f"{made.context.span_id:016x}"
    shop.start()  # without OpenTelemetry, what the record has is passed on
    headers = [("traceparent", PARENT.encode()), ("tracestate", b"a=b")]
    shop.send({"number": 2}, "k", headers=headers)
    shop.send({"number": 3}, "k", headers=[("traceparent", b"nonsense")])
    shop.wait(lambda: len(receiver.requests) == 3, "they arrive")
    assert receiver.requests[1].headers["traceparent"] == PARENT
    assert receiver.requests[1].headers["tracestate"] == "a=b"
    assert "traceparent" not in receiver.requests[2].headers
