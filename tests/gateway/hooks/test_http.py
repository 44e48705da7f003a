"""Hooks over HTTP: what senders get as an answer, and what the topics contain."""

from __future__ import annotations

import hashlib
import hmac
import json
import socket
import subprocess
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlencode

import httpx
import pytest
import standardwebhooks
import stripe
from cloudevents.core.bindings import http as cloudevents_http
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent
from slack_sdk.signature import SignatureVerifier
from twilio.request_validator import RequestValidator

from tests.gateway.hooks.conftest import SECRET, STANDARD, write_settings
from tests.gateway.hooks.test_writer import stored
from tests.support.broker_process import BrokerProcess
from tests.support.gateway_process import GatewayProcess
from tests.support.logged import logged
from tests.support.ports import reserve_port
from tests.support.processes import poll_until
from tidemill.cli.server.settings_file import load
from tidemill.confluent.clients import Kafka
from tidemill.errors import SettingsError
from tidemill.gateway.hooks.app import HooksApp
from tidemill.gateway.hooks.settings import DeclaredHooks, HookEntry, HooksSection
from tidemill.gateway.server import PortInUseError, bind

BODY = b'{"repository": "tidemill/tidemill", "n": 1.10}'


AGAIN = """
[hooks]
port = {port}
[[hook]]
name = "again"
topic = "again-events"
verifier = "none"
delivery_id = "header:x-id"
"""


def github(body: bytes = BODY, delivery: str = "") -> dict[str, str]:
    digest = hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()
    return {
        "X-Hub-Signature-256": f"sha256={digest}",
        "X-GitHub-Event": "push",
        "X-GitHub-Delivery": delivery or str(uuid.uuid4()),
        "Content-Type": "application/json",
    }


def test_a_delivery_by_curl_is_stored_with_its_id_and_once(url: str, kafka: Kafka) -> None:
    headers = github(delivery="72d3162e-cc78-11e3-81ab-4c9367dc0958")
    given = [text for each in headers.items() for text in ("-H", ": ".join(each))]
    command = [
        "curl",
        "-sS",
        "-i",
        "--noproxy",
        "*",
        f"{url}/github",
        *given,
        "--data-binary",
        "@-",
    ]
    answers = [
        subprocess.run(command, input=BODY, capture_output=True, timeout=60, check=True).stdout
        for _ in range(2)
    ]
    assert [answer.split(b"\r\n")[0] for answer in answers] == [b"HTTP/1.1 200 OK"] * 2
    assert [b"webhook-duplicate: 1" in answer for answer in answers] == [False, True]
    (record,) = stored(kafka, "github-events")
    assert (record.key(), record.value()) == (b"tidemill/tidemill", BODY)
    assert record.headers() == [
        ("webhook-id", b"github:72d3162e-cc78-11e3-81ab-4c9367dc0958"),
        ("content-type", b"application/json"),
        ("event", b"push"),
    ]


def test_two_deliveries_with_one_id_at_the_same_time_are_stored_once(
    client: httpx.Client, kafka: Kafka
) -> None:
    headers = {"x-id": str(uuid.uuid4())}
    with ThreadPoolExecutor(8) as pool:
        calls = [pool.submit(client.post, "/open/eu/race", headers=headers) for _ in range(16)]
        answers = [call.result() for call in calls]
    assert {answer.status_code for answer in answers} == {200}
    assert sum("webhook-duplicate" not in answer.headers for answer in answers) == 1
    kinds = [dict(each.headers() or []).get("kind") for each in stored(kafka, "open-events")]
    assert kinds.count(b"race") == 1


def test_libraries_of_senders_sign_what_is_stored(client: httpx.Client, kafka: Kafka) -> None:
    now = int(time.time())
    body = json.dumps({"id": f"evt_{uuid.uuid4()}", "event_id": "Ev1"})
    header = stripe.WebhookSignature.generate_signature_header(body, SECRET, now)
    for duplicates in (None, "1"):
        answer = client.post("/stripe", content=body, headers={"Stripe-Signature": header})
        assert (answer.status_code, answer.headers.get("webhook-duplicate")) == (200, duplicates)
    signature = SignatureVerifier(SECRET).generate_signature(timestamp=str(now), body=body)
    assert signature is not None
    slack = {"X-Slack-Signature": signature, "X-Slack-Request-Timestamp": str(now)}
    assert client.post("/slack", content=body, headers=slack).status_code == 200
    moment = datetime.fromtimestamp(now, UTC)
    standard = {
        "webhook-id": "msg_1",
        "webhook-timestamp": str(now),
        "webhook-signature": standardwebhooks.Webhook(STANDARD).sign("msg_1", moment, body),
    }
    assert client.post("/standard", content=body, headers=standard).status_code == 200
    form = {"Body": "Grüße", "MessageSid": "SM1"}
    public = "https://hooks.example.com/in/hooks/twilio?a=1%2B2"
    twilio = {
        "X-Twilio-Signature": RequestValidator(SECRET).compute_signature(public, form),
        "Content-Type": "application/x-www-form-urlencoded",
    }
    encoded = urlencode(form)
    assert client.post("/twilio?a=1%2B2", content=encoded, headers=twilio).status_code == 200
    for topic, value in (
        ("stripe-events", body),
        ("slack-events", body),
        ("standard-events", body),
        ("twilio-events", encoded),
    ):
        assert [each.value() for each in stored(kafka, topic)] == [value.encode()]


def test_slack_gets_its_challenge_back_and_nothing_is_stored(
    client: httpx.Client, kafka: Kafka
) -> None:
    before = len(stored(kafka, "slack-events"))
    body = json.dumps({"type": "url_verification", "challenge": "3eZbrw1aB"})
    now = str(int(time.time()))
    signature = SignatureVerifier(SECRET).generate_signature(timestamp=now, body=body)
    assert signature is not None
    headers = {"X-Slack-Signature": signature, "X-Slack-Request-Timestamp": now}
    answer = client.post("/slack", content=body, headers=headers)
    assert (answer.status_code, answer.text) == (200, "3eZbrw1aB")
    assert client.post("/slack", content=body).status_code == 401
    assert len(stored(kafka, "slack-events")) == before


def test_method_path_and_query_become_key_and_headers(client: httpx.Client, kafka: Kafka) -> None:
    answer = client.put("/open/e%2Fu/or%20ders?page=7&x=1", content=b"\x00\xff")
    assert (answer.status_code, answer.content) == (200, b"")
    (record,) = [each for each in stored(kafka, "open-events") if each.key() == b"e/u"]
    assert record.value() == b"\x00\xff"
    assert record.headers() == [("kind", b"or ders"), ("method", b"PUT"), ("page", b"7")]


REFUSED = [
    ("POST", "/nothing", 404, "unknown_hook"),
    ("POST", "", 404, "unknown_hook"),
    ("POST", "/github/more", 404, "unknown_hook"),
    ("POST", "/open", 404, "unknown_hook"),
    ("POST", "/open/a/", 404, "unknown_hook"),
    ("POST", "/open/a/b/c", 404, "unknown_hook"),
    ("POST", "/../topics/open-events", 404, "unknown_hook"),
    ("GET", "/github", 405, "method_not_allowed"),
    ("OPTIONS", "/github", 405, "method_not_allowed"),
    ("POST", "/github", 401, "invalid_signature"),
    ("POST", "/standard", 401, "invalid_signature"),
    ("POST", "/stripe", 401, "invalid_signature"),
    ("POST", "/slack", 401, "invalid_signature"),
    ("POST", "/twilio", 401, "invalid_signature"),
    ("POST", "/events", 401, "invalid_signature"),
]


@pytest.mark.parametrize(("method", "path", "status", "code"), REFUSED)
def test_a_request_that_is_refused_says_why(
    client: httpx.Client, method: str, path: str, status: int, code: str
) -> None:
    answer = client.request(method, path, content=b"" if method != "POST" else BODY)
    assert (answer.status_code, answer.json()["error"]) == (status, code)
    assert answer.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize(
    "headers",
    [
        {"X-Hub-Signature-256": "sha256="},
        {"X-Hub-Signature-256": "sha256=zz"},
        {"X-Hub-Signature-256": b"sha256=\xff\xfe"},
        {"X-Hub-Signature-256": "sha1=757107ea"},
        {"X-Hub-Signature-256": "sha256=" + "a" * 5000},
        {"X-Hub-Signature-256": ",".join(["sha256=aa"] * 50)},
    ],
)
def test_a_malformed_signature_is_401_and_never_500(
    client: httpx.Client, headers: dict[str, str | bytes]
) -> None:
    given = [
        (name, value if isinstance(value, bytes) else value.encode())
        for name, value in headers.items()
    ]
    raw = [(name.encode(), value) for name, value in given]
    answer = client.post("/github", content=BODY, headers=raw)
    assert (answer.status_code, answer.json()["error"]) == (401, "invalid_signature")


@pytest.mark.parametrize("host", ["[", "[::1", "a b", "", "é", "x:y:z", "a" * 5000])
def test_a_malformed_host_is_not_an_error_of_the_gateway(client: httpx.Client, host: str) -> None:
    headers = {b"Host": host.encode(), b"X-Twilio-Signature": b"AAAA"}
    answer = client.post("/twilio?a=%", headers=headers)
    assert answer.status_code == 401


def test_bodies_and_ids_are_bounded(client: httpx.Client) -> None:
    large = b"x" * 100_001
    for content in (large, iter([large[:60_000], large[60_000:]])):
        answer = client.post("/open/a/b", content=content)
        assert (answer.status_code, answer.json()["error"]) == (413, "body_too_large")
        assert "hooks.body_bytes" in answer.json()["hint"]
    answer = client.post("/open/a/b", headers={"x-id": "1" * 600})
    assert (answer.status_code, answer.json()["error"]) == (400, "invalid_delivery_id")
    assert client.post("/open/a/b", content=large[:-1]).status_code == 200


def test_cloudevents_are_stored_once_in_each_mode(client: httpx.Client, kafka: Kafka) -> None:
    token = {"Authorization": f"Bearer {SECRET}"}
    attributes = {"source": "/shop", "type": "order.created"}
    events = [CloudEvent({**attributes, "id": str(n)}, {"n": n}) for n in range(4)]
    for write, event in (
        (cloudevents_http.to_binary, events[0]),
        (cloudevents_http.to_structured, events[1]),
        (cloudevents_http.to_structured, events[1]),
    ):
        message = write(event, JSONFormat())
        answer = client.post("/events", content=message.body, headers={**message.headers, **token})
        assert answer.status_code == 200
    assert answer.headers["webhook-duplicate"] == "1"
    batch = b"[" + b",".join(JSONFormat().write(each) for each in events[1:]) + b"]"
    kind = {"Content-Type": "application/cloudevents-batch+json"}
    answer = client.post("/events", content=batch, headers={**kind, **token})
    assert (answer.status_code, answer.headers["webhook-duplicate"]) == (200, "1")
    answer = client.post("/events", content=batch[:-1], headers={**kind, **token})
    assert (answer.status_code, answer.json()["error"]) == (400, "invalid_event")
    found = [json.loads(each.value() or b"") for each in stored(kafka, "cloud-events")]
    assert found == [{"n": n} for n in range(4)]


def test_a_sender_of_cloudevents_registers_by_options(client: httpx.Client) -> None:
    asked = {"WebHook-Request-Origin": "events.example.com", "WebHook-Request-Rate": "1000"}
    answer = client.options("/events", headers=asked)
    assert answer.status_code == 200
    assert answer.headers["webhook-allowed-origin"] == "events.example.com"
    assert answer.headers["webhook-allowed-rate"] == "120"
    assert answer.headers["allow"] == "POST, OPTIONS"
    other = client.options("/events", headers={"WebHook-Request-Origin": "evil.example.com"})
    assert "webhook-allowed-origin" not in other.headers


def test_topics_are_not_served_where_hooks_are(client: httpx.Client, url: str) -> None:
    root = url.removesuffix("/hooks")
    for path in ("/topics/open-events", "/topics", "/docs", "/openapi.json", "/"):
        assert client.post(root + path, json={"value": 1}).status_code == 404


def served(file: Path) -> HooksApp:
    loaded = load(file, environ={}).settings
    declared = DeclaredHooks(loaded.section(HooksSection), loaded.entries(HookEntry))
    return HooksApp(Kafka("127.0.0.1:1"), declared)


def test_settings_that_are_invalid_stop_the_start(tmp_path: Path) -> None:
    for hook, said in (
        ("verifier = 'github'\nsecrets = ['x']", "plain text"),
        ("verifer = 'github'", "unknown key verifer"),
    ):
        file = write_settings(tmp_path, 0, f"[[hook]]\nname='a'\ntopic='t'\n{hook}")
        with pytest.raises(SettingsError, match=said):
            served(file)
    file = write_settings(tmp_path, 0, "[hooks]\npublic_url = 'hooks.example.com'\n")
    with pytest.raises(SettingsError, match=r"hooks.public_url = .*without a query"):
        served(file)


@pytest.mark.parametrize(
    ("hook", "said"),
    [
        ("verifier = 'github'\nsecrets = ['${{env:NOT_SET}}']", "NOT_SET is not set"),
        ("verifier = 'twilio'\nsecrets = ['${{file:{folder}/secret}}']", "public_url"),
        ("verifier = 'standard'\nsecrets = ['${{file:{folder}/secret}}']", "invalid secret"),
    ],
)
async def test_a_hook_that_can_not_verify_answers_503_and_the_others_are_served(
    tmp_path: Path, hook: str, said: str
) -> None:
    other = "[[hook]]\nname='other'\ntopic='t'\nverifier='none'\nmethods=['PUT']\n"
    file = write_settings(tmp_path, 0, f"[[hook]]\nname='a'\ntopic='t'\n{hook}\n{other}")
    with logged() as events:
        app = served(file)
    assert [(each["event"], each["hook"]) for each in events] == [("hook.invalid", "a")]
    assert said in events[0]["error"]
    (listener,) = app.listeners()
    transport = httpx.ASGITransport(listener.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        answer = await client.post("/hooks/a", content=b"{{}}")
        assert (answer.status_code, answer.json()["error"]) == (503, "invalid_hook")
        assert int(answer.headers["retry-after"]) >= 1
        assert "secret" not in answer.text
        assert (await client.post("/hooks/other")).status_code == 405  # it is served


def test_a_port_of_hooks_that_is_in_use_is_named_with_its_setting() -> None:
    entry = HookEntry.model_validate({"name": "a", "topic": "t", "verifier": "none"})
    with socket.create_server(("127.0.0.1", 0)) as taken:
        section = HooksSection.model_validate({"port": taken.getsockname()[1]})
        hooks = HooksApp(Kafka("127.0.0.1:1"), DeclaredHooks(section, [entry]))
        with pytest.raises(PortInUseError) as raised:
            bind(*hooks.listeners())
    assert "--set hooks.port=0" in raised.value.hint


def test_a_restart_remembers_ids_and_another_gateway_takes_over(
    tmp_path: Path, broker: BrokerProcess, kafka: Kafka
) -> None:
    def post(at: GatewayProcess, id_: str) -> httpx.Response:
        url = f"{at.ready_event['hooks']}/hooks/again"
        return httpx.post(url, headers={"x-id": id_}, timeout=60, trust_env=False)

    (tmp_path / "a").mkdir()
    file = write_settings(tmp_path / "a", reserve_port(), AGAIN)
    with GatewayProcess(tmp_path / "a", broker.bootstrap, config=file) as gateway:
        assert post(gateway, "1").status_code == 200
        gateway.kill()
        gateway.start()
        answer = post(gateway, "1")
        assert (answer.status_code, answer.headers["webhook-duplicate"]) == (200, "1")
        (tmp_path / "b").mkdir()
        file = write_settings(tmp_path / "b", reserve_port(), AGAIN)
        with GatewayProcess(tmp_path / "b", broker.bootstrap, config=file) as other:
            assert post(other, "2").status_code == 200
            answer = post(gateway, "3")
            assert (answer.status_code, answer.json()["error"]) == (503, "fenced")
            assert int(answer.headers["retry-after"]) >= 1
            assert post(other, "3").status_code == 200
            assert post(other, "1").headers["webhook-duplicate"] == "1"
        assert "hook.fenced" in gateway.log()
    ids = [dict(each.headers() or [])["webhook-id"] for each in stored(kafka, "again-events")]
    assert ids == [b"again:1", b"again:2", b"again:3"]


def test_a_broker_that_does_not_answer_is_503_and_logged(tmp_path: Path) -> None:
    file = write_settings(tmp_path, reserve_port(), AGAIN + "timeout_s = 0.5\n")
    with (
        BrokerProcess(tmp_path / "broker") as broker,
        GatewayProcess(tmp_path, broker.bootstrap, config=file) as gateway,
    ):
        url = f"{gateway.ready_event['hooks']}/hooks/again"

        def post(id_: str) -> httpx.Response:
            return httpx.post(url, headers={"x-id": id_}, timeout=60, trust_env=False)

        poll_until(lambda: post("0").status_code == 200, 60, "the hook is ready")
        broker.kill()
        for id_ in ("1", "1", "2"):
            answer = post(id_)
            assert (answer.status_code, answer.json()["error"]) == (503, "unavailable")
            assert int(answer.headers["retry-after"]) >= 1
        assert gateway.log().count("hook.not_stored") >= 1
        broker.start()
        poll_until(lambda: post("1").status_code == 200, 60, "the broker is there again")
        ids = [
            dict(each.headers() or [])["webhook-id"]
            for each in stored(Kafka(broker.bootstrap), "again-events")
        ]
        assert ids.count(b"again:1") == 1


def test_serve_starts_the_listener_of_hooks_that_the_settings_file_declares(
    tmp_path: Path,
) -> None:
    port = reserve_port()
    write_settings(tmp_path, port, AGAIN)
    on = {"gateway.enabled": "true", "gateway.port": "0"}
    with BrokerProcess(tmp_path, settings=on) as broker:
        deadline, status = time.monotonic() + 60, 0
        while status != 200:
            assert time.monotonic() < deadline, broker.log()
            try:
                status = httpx.post(f"http://127.0.0.1:{port}/hooks/again").status_code
            except httpx.TransportError:
                time.sleep(0.02)  # the worker starts
        assert len(stored(Kafka(broker.bootstrap), "again-events")) == 1
        broker.terminate()
