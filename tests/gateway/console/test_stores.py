"""Event stores in the console: streams and events as timelines."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.gateway.console.views import view_of
from tidemill.confluent.clients import Kafka
from tidemill.eventstore.events import NewEvent, StoredEvent
from tidemill.eventstore.store import Store
from tidemill.gateway.console.messages.masking import MASK, Mask
from tidemill.gateway.console.settings import ConsoleSettings
from tidemill.gateway.console.workers.stores import PAGES, shown
from tidemill.gateway.errors import HttpError

HOSTILE = "<script>alert(1)</script>"


@pytest.fixture
def store(kafka: Kafka, topic: str, tmp_path: Path) -> Iterator[str]:
    """A store with 40 events of one stream, and some that a page must survive."""
    name = f"store-{topic}"
    with Store(kafka, name, folder=tmp_path) as opened:
        for number in range(40):
            event = NewEvent("deposited", json.dumps({"n": number}).encode(), metadata=b"m")
            opened.append("account-1", [event])
        hostile = [
            NewEvent(HOSTILE, HOSTILE.encode(), tags=frozenset({HOSTILE})),
            NewEvent("bytes", b"\xff\x00"),
            NewEvent("deep", b"[" * 5000 + b"]" * 5000),
            NewEvent("large", b'"' + b"x" * 100_000 + b'"'),
        ]
        opened.append(f"{HOSTILE}-1", hostile)
        yield name


def test_a_store_shows_its_newest_events_and_its_streams(http: httpx.Client, store: str) -> None:
    twin = http.get("/console/event-store.json", params={"name": store}).json()
    assert (twin["position"], twin["is_building"]) == (44, False)
    assert {each["name"]: each["events"] for each in twin["streams"]} == {
        "account-1": 40,
        f"{HOSTILE}-1": 4,
    }
    events = {each["type"]: each for each in twin["events"]}
    assert ("ff 00" in events["bytes"]["data"], events["large"]["is_cut"]) == (True, True)
    assert events["deep"]["data"].startswith("[[[")
    page = http.get("/console/event-store", params={"name": store})
    assert page.status_code == 200
    assert HOSTILE not in page.text
    found = http.get("/console/event-store.json", params={"name": store, "q": "acc"}).json()
    assert [each["name"] for each in found["streams"]] == ["account-1"]
    listed = http.get("/console/event-stores.json").json()["list"]["rows"]
    assert all({"name", "records", "topics"} <= each.keys() for each in listed)


def test_a_stream_is_a_timeline_in_parts(http: httpx.Client, store: str) -> None:
    about = {"name": store, "stream": "account-1"}
    first = http.get("/console/event-store.json", params=about).json()
    assert [each["version"] for each in first["events"]] == list(range(40, 15, -1))
    assert json.loads(first["events"][0]["data"]) == {"n": 39}
    second = http.get(
        "/console/event-store.json", params={**about, "before": first["older"]}
    ).json()
    assert [each["version"] for each in second["events"]] == list(range(15, 0, -1))
    assert second["older"] is None
    page = http.get("/console/event-store", params=about).text
    assert "version 40" in page
    assert "Older events" in page


@pytest.mark.parametrize(
    ("more", "status"),
    [({"stream": "none"}, 404), ({"before": "-1"}, 400), ({"before": "9" * 40}, 400), ({}, 404)],
)
def test_what_is_not_there_is_an_error(
    http: httpx.Client, store: str, topic: str, more: dict[str, str], status: int
) -> None:
    name = store if more else topic  # a topic that is not a store
    answer = http.get("/console/event-store", params={"name": name, **more})
    assert answer.status_code == status


def test_masked_fields_of_events_are_hidden() -> None:
    data = json.dumps({"amount": 7, "card": {"number": "4711"}}).encode()
    event = StoredEvent(
        *("paid", data, uuid.uuid4(), b"card 4711", frozenset(), 1), *("account-1", 1, 1, 0)
    )
    shown_plainly = shown(event, Mask("accounts", [("other", "card.number")]))
    assert "4711" in shown_plainly["data"]
    masked = shown(event, Mask("accounts", [("acc*", "card.number")]))
    assert json.loads(masked["data"]) == {"amount": 7, "card": {"number": MASK}}
    assert (masked["metadata"], masked["position"]) == (MASK, 1)


def test_numbers_of_events_keep_their_digits_and_what_is_invisible_is_shown() -> None:
    data = b'{ "cents": 1.10, "name": "a\xe2\x80\xaeb" }'
    event = StoredEvent("paid", data, uuid.uuid4(), b"", frozenset(), 1, "account-1", 1, 1, 0)
    assert shown(event, Mask("accounts", []))["data"] == '{"cents":1.10,"name":"a\\u202eb"}'


async def test_a_store_whose_values_are_hidden_shows_no_names_of_streams() -> None:
    page = next(each for each in PAGES if each.address == "event-store")
    settings = ConsoleSettings(mask="acc*:$value")
    with pytest.raises(HttpError, match="hidden here") as caught:
        await page.data(view_of(page, "name=accounts", settings=settings))
    assert caught.value.status == 403
