"""What rules measure of series and of records, and pages of metrics as they are read."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tidemill.connect.alerts.conditions import MOST_SERIES, MetricCondition, TopicCondition
from tidemill.connect.alerts.definition import AlertEntry
from tidemill.connect.alerts.exposition import Series, names_in, series_in
from tidemill.connect.alerts.machine import Reading
from tidemill.connect.alerts.model import Silence, labels_of
from tidemill.connect.alerts.store import decode
from tidemill.connect.webhooks.lanes import Event
from tidemill.metrics import text
from tidemill.metrics.definition import Metric

START_MS = 1_700_000_000_000


def metric(**more: Any) -> MetricCondition:
    limits = {} if more.get("measure") == "absent" else {"above": 10}
    return MetricCondition(AlertEntry(**{"name": "x", "metric": "m", **limits, **more}))


def topic(**more: Any) -> TopicCondition:
    limits = {} if more.get("measure") in ("absent", "events") else {"above": 2}
    given = {"name": "x", "topic": "t", "window_s": 60, **limits, **more}
    return TopicCondition(AlertEntry(**given))


def read(condition: MetricCondition, at_s: float, *values: tuple[str, float]) -> Any:
    """Return the measured values by group, those that are active with a mark."""
    series = [Series("m", {"group": group}, value) for group, value in values]
    now_ms = START_MS + int(1000 * at_s)
    readings, _ = condition.read(series, now_ms, is_complete=True)
    return shown(readings)


def shown(readings: list[Reading]) -> dict[str, Any]:
    return {
        " ".join(text for _, text in each.labels): f"{each.value:g}{'!' * each.is_active}"
        for each in readings
    }


def record(at_s: float, value: Any, key: bytes | None = None) -> Event:
    data = value if isinstance(value, bytes) or value is None else json.dumps(value).encode()
    return Event(0, 0, START_MS + int(1000 * at_s), key, data)


# --- metrics -------------------------------------------------------------------------------------


def test_a_value_is_active_beyond_its_limits_and_not_at_them() -> None:
    condition = metric(above=10, below=1)
    values = [("a", 10), ("b", 10.1), ("c", 1), ("d", 0.9), ("e", float("nan"))]
    found = read(condition, 0, *values, ("f", float("inf")))
    assert found == {"a": "10", "b": "10.1!", "c": "1", "d": "0.9!", "e": "nan", "f": "inf!"}


def test_a_rate_is_the_growth_of_a_window_also_over_a_reset() -> None:
    condition = metric(measure="rate", window_s=60)
    assert read(condition, 0, ("a", 1000)) == {}  # nothing is known yet
    assert read(condition, 10, ("a", 1200)) == {"a": "20!"}
    assert read(condition, 20, ("a", 100)) == {"a": "15!"}  # it began again at 0
    for at_s in range(30, 100, 10):
        found = read(condition, at_s, ("a", 100))
    assert found == {"a": "0"}


def test_an_increase_is_over_the_window_and_bounded_in_memory() -> None:
    condition = metric(measure="increase", window_s=600, above=1e9)
    for at_s in range(0, 3600, 2):
        found = read(condition, at_s, ("a", at_s))
    assert 590 <= float(found["a"]) <= 620
    (past,) = condition._past.values()
    assert len(past) < 130


def test_a_rate_that_is_not_known_yet_leaves_alerts_as_they_are() -> None:
    condition = metric(measure="rate")
    series = [Series("m", {"group": "a"}, 1)]
    assert condition.read(series, START_MS, is_complete=True) == ([], False)
    assert condition.read(series, START_MS + 1000, is_complete=True)[1]
    assert not condition.read(series, START_MS + 2000, is_complete=False)[1]


def test_series_that_are_gone_are_forgotten() -> None:
    condition = metric(measure="rate", window_s=60)
    read(condition, 0, ("a", 1), ("b", 1))
    read(condition, 100, ("b", 1))
    assert len(condition._past) == 1


def test_series_are_added_up_by_labels() -> None:
    condition = metric(by=["group"])
    series = [Series("m", {"group": g, "topic": t}, 6) for g in "ab" for t in "xy"]
    series.append(Series("m", {"topic": "z"}, 1))
    readings, _ = condition.read(series, START_MS, is_complete=True)
    assert shown(readings) == {"a": "12!", "b": "12!", "": "1"}
    assert {each.labels for each in readings} == {(("group", "a"),), (("group", "b"),), ()}


def test_a_part_of_a_sum_says_only_that_it_is_above_a_limit() -> None:
    condition = metric(by=["group"], above=10, below=5)
    values = {"a": 12, "b": 7, "c": 1}
    series = [Series("m", {"group": group, "topic": "t"}, v) for group, v in values.items()]
    readings, is_complete = condition.read(series, START_MS, is_complete=False)
    assert shown(readings) == {"a": "12!"}
    assert not is_complete


def test_more_series_than_a_rule_follows_are_reported_and_end_no_alert() -> None:
    condition = metric()
    series = [Series("m", {"group": str(n)}, 1) for n in range(MOST_SERIES + 10)]
    assert not condition.read(series, START_MS, is_complete=True)[1]
    assert condition.is_full
    assert condition.read(series[:5], START_MS, is_complete=True)[1]
    assert not condition.is_full


def test_absence_is_active_only_if_all_could_be_read() -> None:
    condition = metric(measure="absent", filter='group == "a"')
    other = [Series("m", {"group": "b"}, 1)]
    assert condition.read(other, 0, is_complete=True)[0] == [Reading((), 0.0, True)]
    assert condition.read(other, 0, is_complete=False)[0] == []
    there = [Series("m", {"group": "a"}, 0)]
    assert condition.read(there, 0, is_complete=False)[0] == [Reading((), 0.0, False)]


# --- topics --------------------------------------------------------------------------------------


def test_records_count_by_their_time_within_the_window() -> None:
    condition = topic(by=["shop"])
    for at_s, shop in ((0, "a"), (10, "a"), (50, "a"), (50, "b")):
        condition.add(record(at_s, {"shop": shop}), START_MS + 60_000)
    assert shown(condition.read(START_MS + 55_000)[0]) == {"a": "3!", "b": "1"}
    assert shown(condition.read(START_MS + 62_000)[0]) == {"a": "2", "b": "1"}
    assert shown(condition.read(START_MS + 200_000)[0]) == {"a": "0", "b": "0"}


def test_records_count_by_their_time_also_if_they_come_in_another_order() -> None:
    condition = topic()
    for at_s in (100, 70, 10, -86_400, 100):  # as the partitions of a topic are read, or a backfill
        condition.add(record(at_s, {}), START_MS + 100_000)
    assert shown(condition.read(START_MS + 100_000)[0]) == {"": "3!"}
    assert shown(condition.read(START_MS + 135_000)[0]) == {"": "2"}
    assert shown(condition.read(START_MS + 170_000)[0]) == {"": "0"}


def test_a_record_from_the_future_counts_as_one_of_now() -> None:
    condition = topic()
    condition.add(record(1e9, {}), START_MS)
    assert shown(condition.read(START_MS)[0]) == {"": "1"}
    assert shown(condition.read(START_MS + 62_000)[0]) == {"": "0"}


def test_without_by_no_record_is_zero_records() -> None:
    condition = topic(above=None, below=1)
    assert shown(condition.read(START_MS)[0]) == {"": "0!"}


def test_the_alerts_of_an_earlier_process_are_followed() -> None:
    condition = topic(by=["customer.id"])
    condition.know([{"alertname": "x", "customer_id": "7", "severity": "page"}])
    assert condition.read(START_MS)[0] == [Reading((("customer_id", "7"),), 0.0, False)]


def test_the_last_value_counts_until_it_is_too_old() -> None:
    condition = topic(measure="last", field="celsius", by=["room"])
    for at_s, celsius in ((10, 3), (5, 1)):  # out of order
        condition.add(record(at_s, {"room": "a", "celsius": celsius}), START_MS + 60_000)
    condition.add(record(10, {"room": "b", "celsius": "warm"}), START_MS)
    condition.add(record(10, {"room": "b", "celsius": True}), START_MS)
    assert shown(condition.read(START_MS + 20_000)[0]) == {"a": "3!"}
    assert condition.invalid == 2
    assert condition.read(START_MS + 80_000)[0] == []


def test_absence_of_records_is_by_time() -> None:
    condition = topic(measure="absent", filter="ok == true")
    condition.add(record(0, {"ok": True}), START_MS)
    condition.add(record(50, {"ok": False}), START_MS + 50_000)
    assert not condition.read(START_MS + 59_000)[0][0].is_active
    assert condition.read(START_MS + 60_000)[0][0].is_active


@pytest.mark.parametrize(
    "value",
    [
        *(b"\xff", b"", None, [], b"[" * 100_000, {"state": "firing"}),
        *({"labels": [], "state": "firing"}, {"labels": {}, "state": "on"}),
        {"labels": {}, "state": "firing", "value": "x"},
    ],
)
def test_a_record_that_is_not_an_alert_is_left_out(value: Any) -> None:
    condition = topic(measure="events")
    condition.add(record(0, value), START_MS)
    assert condition.read(START_MS) == ([], False)
    assert condition.invalid == 1


def test_the_labels_of_a_record_that_is_an_alert_get_names_that_receivers_take() -> None:
    condition = topic(measure="events")
    labels = {"_air port": "a", "1st": "b", "ok_1": "c", "x" * 5000: "d", "\u2028": "e", "__n": "f"}
    condition.add(record(0, {"labels": labels, "state": "firing"}), START_MS)
    ((found, *_),) = condition.read(START_MS)[0]
    expected = {"air_port": "a", "_1st": "b", "ok_1": "c", "x" * 99: "d", "field": "e", "__n": "f"}
    assert dict(found) == expected


def test_the_sets_of_fields_of_a_rule_are_bounded() -> None:
    condition = topic(by=["user"])
    for number in range(MOST_SERIES + 10):
        condition.add(record(0, {"user": str(number)}), START_MS)
    assert len(condition.read(START_MS)[0]) == MOST_SERIES
    assert condition.is_full


def test_sets_of_fields_without_records_make_room_for_others() -> None:
    condition = topic(by=["user"])
    for number in range(MOST_SERIES):
        condition.add(record(0, {"user": str(number)}), START_MS)
    condition.read(START_MS + 100_000)  # they count as 0, and are forgotten
    for _ in range(3):
        condition.add(record(100, {"user": "new"}), START_MS + 100_000)
    assert shown(condition.read(START_MS + 100_000)[0]) == {"new": "3!"}
    assert not condition.is_full


def test_a_set_of_fields_that_is_active_without_records_is_kept() -> None:
    condition = topic(by=["shop"], above=None, below=1)
    condition.add(record(0, {"shop": "a"}), START_MS)
    for at_s in (100, 200):
        assert shown(condition.read(START_MS + 1000 * at_s)[0]) == {"a": "0!"}


def test_labels_are_cut_and_bounded() -> None:
    labels = labels_of({"a": "x" * 10_000, "b": "", **{f"l{n}": "y" for n in range(200)}})
    assert len(labels) == 64
    assert len(dict(labels)["a"]) == 256
    assert "b" not in dict(labels)


# --- pages of metrics ----------------------------------------------------------------------------


def test_series_are_read_as_the_broker_writes_them() -> None:
    declared = Metric("m", "gauge", "Help.", ("a", "b"))
    nasty = 'quote " back \\ line \n brace } comma , end'
    rows = [((nasty, ""), 1.5), (("x", "{"), float("-inf")), (("é", "="), 7)]
    for content in (text.PROMETHEUS, text.OPENMETRICS):
        page = "".join(text.write([(declared, rows)], content))
        found = list(series_in(page, {"m"}))
        assert [(each.labels["a"], each.labels["b"], each.value) for each in found] == [
            (*labels, value) for labels, value in rows
        ]


@pytest.mark.parametrize(
    "line",
    [
        *("m", "m ", "m x", 'm{a="b" 1', 'm{a="b"}', "m{a=b} 1", 'm{a="\\" 1', "{} 1", "m{"),
        *("\x00 1", "m{" + 'a="b",' * 1000, "m " + "9" * 5000 + "x", 'm{a="' + "\\" * 100_001),
    ],
)
def test_a_malformed_line_hides_no_other(line: str) -> None:
    page = f"# HELP m x\nm 1\n{line}\nm 2 1700000000000\nmm 3\n"
    assert [each.value for each in series_in(page, {"m"})] == [1.0, 2.0]


@pytest.mark.parametrize("end", ["\x0b", "\x1c", "\x85", "\u2028", "\r"])
def test_a_label_can_not_make_a_series_of_its_own(end: str) -> None:
    declared = Metric("group_lag", "gauge", "Help.", ("group",))
    page = "".join(text.write([(declared, [((f"x{end}m 0 ",), 1)])], text.PROMETHEUS))
    assert list(series_in(page, {"m"})) == []
    assert names_in(page) == {"group_lag"}
    (found,) = series_in(page, {"group_lag"})
    assert found.labels == {"group": f"x{end}m 0 "}


def test_lines_can_end_as_in_windows() -> None:
    assert [each.value for each in series_in("m 1\r\nm 2\r\n", {"m"})] == [1.0, 2.0]


def test_names_are_those_of_series() -> None:
    assert names_in('# TYPE a gauge\na 1\nb_bucket{le="1"} 2\n\n{x} 1\n') == {"a", "b_bucket"}


# --- the topic of alerts -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"alert/x", b"not JSON"),
        (b"alert/x", b"[]"),
        (b"alert/x", b'{"rule": "r"}'),
        (b"alert/x", b'{"rule":"r","state":"on","labels":{},"value":1,"active_ms":1}'),
        (b"alert/x", b'{"rule":"r","state":"firing","labels":{"a":1},"value":1,"active_ms":1}'),
        (b"alert/x", b'{"rule":"r","state":"firing","labels":{},"value":1,"active_ms":"1"}'),
        (b"silence/x", b'{"matchers":[],"starts_ms":1,"ends_ms":2}'),
        (b"silence/x", b'{"matchers":["a=~b"],"starts_ms":1,"ends_ms":2}'),
        (b"silence/x", b'{"matchers":"a=b","starts_ms":1,"ends_ms":2}'),
        (b"silence/x", b'{"matchers":["a=b"],"starts_ms":1.5,"ends_ms":2}'),
        (b"ack/x", b'{"active_ms":true,"at_ms":1}'),
        (b"group/x", b'{"receiver":"r","labels":{},"told":{"a":"b"}}'),
        (b"position/x", b'{"offsets":{"0":-1}}'),
        (b"worker/state", b'{"updated_ms":1,"worker":"w","interval_ms":1,"rules":{"a":1}}'),
        (b"worker/state", b"[" * 100_000),
        (b"other/x", b"{}"),
        (b"alert", b"{}"),
        (b"\xff", None),
    ],
)
def test_a_record_of_another_program_is_left_out(key: bytes, value: bytes | None) -> None:
    assert decode(key, value) is None


@pytest.mark.parametrize(
    ("matchers", "labels", "expected"),
    [
        (["a=b"], {"a": "b"}, True),
        (["a=b"], {"a": "bb"}, False),
        (["a=b*"], {"a": "bb"}, True),
        (["a=*b*c"], {"a": "xxbyyc"}, True),
        (["a=*b*c"], {"a": "xxcyyb"}, False),
        (["a=**"], {"a": "x\ny"}, True),
        (["a=[bc].+"], {"a": "b1"}, False),
        (["a!=b"], {"a": "c"}, True),
        (["a!=b"], {}, True),
        (["a="], {}, True),
        (["a=x=y"], {"a": "x=y"}, True),
        (["a=b", "c=d"], {"a": "b"}, False),
    ],
)
def test_a_silence_matches(matchers: list[str], labels: dict[str, str], expected: bool) -> None:
    assert Silence(matchers, 0, 1).matches(labels) is expected


def test_a_pattern_with_many_stars_takes_no_time() -> None:
    silence = Silence(["a=" + "*a" * 250 + "*b"], 0, 1)
    assert not silence.matches({"a": "a" * 256})
