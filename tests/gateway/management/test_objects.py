"""RabbitMQ's objects: the names and types of RabbitMQ 3.10.8, recorded in a file, and lists."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.management.views import CHANNEL, CONNECTION, queue, view
from tidemill.gateway.management.app import _get, _MissingError
from tidemill.gateway.management.lists import BadListError

RECORDED: dict[str, Any] = json.loads((Path(__file__).parent / "rabbitmq-3.10.8.json").read_text())
NOT_OFFERED = {
    "overview": "contexts release_series_support_status churn_rates.queue_ message_stats. "
    "sample_retention_policies.",
    "queues": "idle_since message_bytes_paged_out message_bytes_ram message_bytes_ready "
    "message_bytes_unacknowledged messages_paged_out messages_ready_ram "
    "messages_unacknowledged_ram message_stats. head_message_timestamp",
    "exchanges": "message_stats",
    "connections": "client_properties. recv_cnt send_cnt send_oct send_oct_details",
    "channels": "idle_since message_stats pending_raft_commands",
    "vhosts": "message_stats. recv_oct send_oct cluster_state.",
    "nodes": "auth_mechanisms context_switches db_dir gc_ io_ mem_calculation_strategy "
    "mnesia_ msg_store_ net_ticktime queue_ run_queue channel_ connection_ proc_used_details "
    "mem_used_details",
}
"""Beginnings of the fields that RabbitMQ has and tidemill does not, in each kind of object."""


def get(path: str, **asked: str) -> Any:
    segments = [each.replace("%2F", "/") for each in path.split("/")]
    return _get(segments, view(), asked)


def shape(value: Any) -> Any:
    match value:
        case dict():
            return {name: shape(each) for name, each in value.items()}
        case list() | tuple():
            return [shape(value[0])] if value else []
        case None:
            return "null"
        case bool():
            return "boolean"
        case int() | float():
            return "number"
    return "string"


def differences(theirs: Any, ours: Any, path: str = "") -> list[str]:
    """Return the fields that we lack, and those of another type."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        found: list[str] = []
        for name, value in theirs.items():
            where = f"{path}.{name}".lstrip(".")
            found += differences(value, ours[name], where) if name in ours else [where]
        return found
    if isinstance(theirs, list) and isinstance(ours, list):
        return differences(theirs[0], ours[0], path) if theirs and ours else []
    return [] if theirs == ours else [f"{path}: {theirs} <> {ours}"]


@pytest.mark.parametrize(
    ("recorded", "path"),
    [
        *((each, each) for each in ("overview", "bindings", "connections", "channels", "vhosts")),
        *((each, each) for each in ("consumers", "nodes", "cluster-name")),
        ("queues/%2F/orders", "queues/%2F/orders"),
        ("exchanges/%2F/ex", "exchanges/%2F/ex"),
    ],
)
def test_fields_have_the_names_and_types_of_rabbitmq(recorded: str, path: str) -> None:
    left_out = tuple(NOT_OFFERED.get(path.split("/")[0], "").split())
    found = differences(RECORDED[recorded], shape(get(path)))
    assert [each for each in found if not each.startswith(left_out or ("-",))] == []


def test_a_queue_has_its_numbers_rates_and_consumers() -> None:
    found = get("queues/%2F/orders")
    assert (found["messages"], found["messages_ready"], found["consumers"]) == (5, 3, 1)
    assert found["message_stats"]["publish"] == 5
    assert found["message_stats"]["publish_details"] == {"rate": 2.5}
    (consumer,) = found["consumer_details"]
    assert consumer["channel_details"]["name"] == CHANNEL
    assert consumer["prefetch_count"] == 5


def test_the_overview_adds_queues_up() -> None:
    found = get("overview")
    assert found["queue_totals"]["messages"] == 10
    assert found["message_stats"]["publish_details"]["rate"] == 5.0
    assert found["object_totals"] == {
        "channels": 1,
        "connections": 1,
        "consumers": 1,
        "exchanges": 2,
        "queues": 2,
    }


def test_bindings_begin_with_the_implicit_ones_and_have_keys() -> None:
    keys = [(each["source"], each["properties_key"]) for each in get("bindings")]
    assert keys[:3] == [("", "a%2Fb"), ("", "orders"), ("ex", "a.%23")]
    assert keys[3][1].startswith("a.%23~")
    assert len(get("bindings/%2F/e/ex/q/orders")) == 2
    assert get("bindings/%2F/e/ex/q/orders/a.#")["routing_key"] == "a.#"
    assert get("bindings/%2F/e/ex/q/orders/a.%23")["routing_key"] == "a.#"
    assert get("bindings/%2F/e/amq.default/q/orders")[0]["routing_key"] == "orders"
    assert len(get("queues/%2F/orders/bindings")) == 3
    assert len(get("exchanges/%2F/ex/bindings/source")) == 2
    assert get("exchanges/%2F/ex/bindings/destination") == []


@pytest.mark.parametrize(
    "path",
    [
        *("", "nonsense", "queues/%2F/none", "queues/other", "queues/other/orders", "queues//"),
        *("exchanges/%2F/none", "connections/none", "connections/none/channels", "channels/none"),
        *("bindings/%2F/e/ex/x/orders", "bindings/%2F/e/ex/q/orders/none", "bindings/%2F/e"),
        *("nodes/none", "vhosts/none", "health/checks/none", "health/checks/port-listener/x"),
        *("queues/%2F/none/bindings", "exchanges/%2F/none/bindings/source", "overview/more"),
    ],
)
def test_an_unknown_object_is_missing(path: str) -> None:
    with pytest.raises(_MissingError):
        get(path)


def test_connections_of_a_user_and_channels_of_a_connection() -> None:
    assert get("connections/username/guest") == [
        {"name": CONNECTION, "vhost": "/", "user": "guest", "node": "tidemill@here"}
    ]
    assert get("connections/username/other") == []
    assert names(_get(["connections", CONNECTION, "channels"], view(), {})) == [CHANNEL]


def test_health_checks_look_at_listeners() -> None:
    assert get("health/checks/protocol-listener/amqp")["status"] == "ok"
    assert get("health/checks/port-listener/5672")["status"] == "ok"
    failed = get("health/checks/port-listener/5")
    assert (failed["status"], failed["missing"], failed["ports"]) == ("failed", 5, [5672])


# --- lists ---------------------------------------------------------------------------------------


def names(found: Any) -> list[str]:
    return [each["name"] for each in (found["items"] if isinstance(found, dict) else found)]


def test_columns_are_paths() -> None:
    (one, _) = get("queues", columns="name,message_stats.publish_details.rate,x.y,arguments.z")
    assert one == {"name": "a/b", "message_stats": {"publish_details": {"rate": 2.5}}}
    assert get("queues/%2F/orders", columns="name") == {"name": "orders"}


def test_lists_are_sorted() -> None:
    assert names(get("queues", sort="name", sort_reverse="true")) == ["orders", "a/b"]
    assert names(get("queues", sort_reverse="true")) == ["orders", "a/b"]
    assert names(get("queues", sort="consumers", sort_reverse="true")) == ["orders", "a/b"]
    assert names(get("queues", sort="message_stats.none")) == ["a/b", "orders"]
    assert names(get("queues", sort="arguments")) == ["a/b", "orders"]


def test_a_page_says_how_much_there_is() -> None:
    found = get("queues", page="2", page_size="1", columns="name")
    assert found == {
        "total_count": 2,
        "filtered_count": 2,
        "item_count": 1,
        "page": 2,
        "page_size": 1,
        "page_count": 2,
        "items": [{"name": "orders"}],
    }
    assert names(get("queues", page="1", name="ORD")) == ["orders"]
    assert names(get("queues", page="1", name="^o.*s$", use_regex="true")) == ["orders"]
    assert get("queues", page="1", name="zzz")["page_count"] == 0
    assert len(get("queues", name="ord")) == 2  # without a page, nothing is filtered: as RabbitMQ


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        ({"page": "a"}, "bad_request"),
        ({"page": ""}, "bad_request"),
        ({"page": "-1"}, "bad_request"),
        ({"page": "9" * 50}, "bad_request"),
        ({"page": "0"}, "invalid_pagination_parameters"),
        ({"page": "1", "page_size": "501"}, "invalid_pagination_parameters"),
        ({"page": "1", "page_size": "0"}, "invalid_pagination_parameters"),
        ({"page": "9"}, "page_out_of_range"),
        ({"page": "1", "name": "[", "use_regex": "true"}, "bad_request"),
        ({"page": "1", "name": "(a{1000}){1000}", "use_regex": "true"}, "bad_request"),
    ],
)
def test_invalid_pages_are_refused(asked: dict[str, str], code: str) -> None:
    with pytest.raises(BadListError) as error:
        get("queues", **asked)
    assert error.value.code == code


def test_a_page_makes_only_its_own_objects() -> None:
    many = view(**{f"q{number:05}": queue() for number in range(20_000)})
    found = _get(["queues"], many, {"page": "3", "page_size": "2"})
    assert names(found) == ["q00004", "q00005"]
