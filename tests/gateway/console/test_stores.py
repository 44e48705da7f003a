"""Event stores in the console: streams and events as timelines."""

from __future__ import annotations

import asyncio
import json
import threading
import uuid
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.gateway.console.views import view_of
from tidemill.confluent.clients import Kafka
from tidemill.eventstore.events import NewEvent, StoredEvent
from tidemill.eventstore.store import Store
from tidemill.gateway.cluster import stores
from tidemill.gateway.cluster.stores import Stores
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


@pytest.mark.parametrize("name", ["\0", "a\0b", "no topic", "x" * 5000])
def test_a_name_that_no_topic_can_have_is_not_found(http: httpx.Client, name: str) -> None:
    assert http.get("/console/event-store", params={"name": name}).status_code == 404


class Opened:
    """What is opened instead of a store, and when it is closed."""

    def __init__(self) -> None:
        self.is_ready, self.is_closed = threading.Event(), False

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch, kafka: Kafka) -> Any:
    """Stores, and what they have opened, in the order of the first looks."""
    made: dict[str, list[Opened]] = defaultdict(list)

    def open_(self: Stores, name: str) -> Opened:
        made[name].append(Opened())
        if name.startswith("slow"):
            made[name][-1].is_ready.wait(60)
        if name.startswith("bad"):
            raise LookupError(name)
        return made[name][-1]

    monkeypatch.setattr(Stores, "_open", open_)
    monkeypatch.setattr(stores, "WAIT_S", 0.05)
    return Stores(kafka), made


async def test_two_looks_at_the_same_time_open_a_store_once(opened: Any) -> None:
    kept, made = opened
    for number in range(stores.MOST):
        await kept.get(f"s{number}")
    found = await asyncio.gather(*(kept.get(name) for name in ("new", "new", "other")))
    assert found[0] is found[1]
    assert [len(made[name]) for name in ("new", "other")] == [1, 1]
    await kept.close()
    assert all(each.is_closed for several in made.values() for each in several)


async def test_a_store_that_fails_in_an_odd_way_is_tried_again_and_harms_no_other(
    opened: Any,
) -> None:
    kept, made = opened
    for _ in range(2):
        with pytest.raises(LookupError):
            await kept.get("bad")
    assert len(made["bad"]) == 2
    for number in range(2 * stores.MOST):
        assert await kept.get(f"s{number}") is made[f"s{number}"][0]
    await kept.close()


async def test_stores_that_are_built_for_long_keep_no_look_at_others_waiting(opened: Any) -> None:
    kept, made = opened
    assert await kept.get("slow0") is None
    async with asyncio.timeout(30):
        for number in range(stores.MOST):
            assert await kept.get(f"s{number}") is not None
        for number in range(stores.MOST + 1):
            assert await kept.get(f"slow{number}") is None
    assert f"slow{stores.MOST}" not in made  # so many are built at the same time, and no more
    for each in made.values():
        each[0].is_ready.set()
    await kept.close()
    assert all(each[0].is_closed for each in made.values())


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
