"""What fires, what is resolved, and which notices follow: by steps, without I/O."""

from __future__ import annotations

from typing import Any

from tests.connect.alerts.driving import Driver, receiver, rule
from tidemill.connect.alerts import machine
from tidemill.connect.alerts.machine import GIVE_UP_MS, KEPT_MS, Reading


def test_an_alert_is_pending_for_its_time_and_fires_then() -> None:
    driver = Driver([rule(for_s=30)], [receiver()])
    driver.measure({"a": 11, "b": 10})
    assert driver.states() == {"a": "pending"}
    assert driver.said() == []
    driver.wait(29)
    driver.measure({"a": 11})
    assert driver.states() == {"a": "pending"}
    driver.wait(1)
    driver.measure({"a": 12})
    assert driver.said() == [["a firing"]]
    assert driver.sent[0].notice.alerts[0].value == 12


def test_many_labels_do_not_push_the_name_of_the_rule_out() -> None:
    rules = [rule(labels={"severity": "page"}), rule("other")]
    driver = Driver(rules, [receiver(kind="alertmanager", url="http://localhost:9093")])
    labels = tuple((f"a{number:02}", "x") for number in range(64))
    for each in rules:
        changes = driver.machine.evaluate(
            each, [Reading(labels, 11, True)], driver.now_ms, is_complete=True
        )
        driver.store(changes)
    made = driver.machine.alerts.values()
    assert [each.labels["alertname"] for each in made] == ["lag", "other"]
    assert [each.labels.get("severity") for each in made] == ["page", None]
    assert {len(each.labels) for each in made} == {64}
    assert len(driver.turn()) == 2


def test_an_alert_that_was_only_pending_is_forgotten() -> None:
    driver = Driver([rule(for_s=30)], [receiver()])
    driver.measure({"a": 11})
    driver.measure({"a": 9})
    assert driver.states() == {}
    assert driver.topic == {}


def test_a_resolved_alert_is_sent_after_the_group_interval() -> None:
    driver = Driver([rule()], [receiver()])
    driver.measure({"a": 11, "b": 11})
    assert [sorted(each) for each in driver.said()] == [["a firing", "b firing"]]
    driver.measure({"b": 11})
    assert driver.said() == []
    driver.wait(60)
    assert driver.said() == [["b firing", "a resolved"]]
    driver.wait(60)
    assert driver.said() == []


def test_a_receiver_that_wants_no_resolved_alerts_gets_none() -> None:
    driver = Driver([rule()], [receiver(send_resolved=False)])
    driver.measure({"a": 11})
    driver.turn()
    driver.measure({})
    driver.wait(3600)
    assert driver.said() == []
    assert not driver.machine.groups
    driver.measure({"a": 11})
    assert driver.said() == [["a firing"]]


def test_a_group_waits_for_more_before_its_first_notice() -> None:
    driver = Driver([rule()], [receiver(group_wait_s=10)])
    driver.measure({"a": 11})
    driver.wait(9)
    driver.measure({"a": 11, "b": 11})
    assert driver.said() == []
    driver.wait(1)
    assert driver.said() == [["a firing", "b firing"]]


def test_alerts_are_grouped_by_labels_or_not() -> None:
    alone = Driver([rule()], [receiver(group_by=["..."])])
    alone.measure({"a": 11, "b": 11})
    assert sorted(alone.said()) == [["a firing"], ["b firing"]]
    rules = [rule("lag"), rule("lag2", above=5)]
    together = Driver(rules, [receiver(group_by=[])])
    together.measure({"a": 11})
    together.measure({"a": 11}, "lag2")
    assert len(together.turn()) == 1
    assert len(together.sent[0].notice.alerts) == 2


def test_what_still_fires_is_repeated() -> None:
    driver = Driver([rule()], [receiver()])
    driver.measure({"a": 11})
    driver.turn()
    driver.wait(3599)
    assert driver.said() == []
    driver.wait(1)
    assert driver.said() == [["a firing"]]
    assert len({each.notice.id for each in driver.sent}) == 2


def test_an_acknowledged_alert_is_not_repeated_until_it_fires_again() -> None:
    driver = Driver([rule()], [receiver()])
    driver.measure({"a": 11})
    driver.turn()
    driver.ack("a")
    driver.wait(7200)
    assert driver.said() == []
    driver.measure({})
    assert driver.said() == [["a resolved"]]
    driver.wait(60)
    driver.measure({"a": 11})
    assert driver.said() == [["a firing"]]
    driver.wait(3600)
    assert driver.said() == [["a firing"]]
    assert not driver.machine.acks


def test_an_acknowledgement_of_an_alert_that_has_just_ended_is_deleted() -> None:
    driver = Driver([rule()], [receiver()])
    driver.measure({"a": 11})
    driver.measure({"a": 9})
    driver.ack("a")
    driver.store(driver.machine.clean(driver.now_ms))
    assert not driver.machine.acks


def test_a_silence_holds_notices_back_and_what_fires_is_sent_when_it_ends() -> None:
    driver = Driver([rule()], [receiver()])
    driver.silence("s", "group=a*", "alertname=lag", seconds=600)
    driver.measure({"aa": 11, "b": 11})
    assert driver.said() == [["b firing"]]
    driver.wait(599)
    assert driver.said() == []
    driver.wait(1)
    assert [sorted(each) for each in driver.said()] == [["aa firing", "b firing"]]


def test_a_silence_that_is_deleted_ends_now() -> None:
    driver = Driver([rule()], [receiver()])
    driver.measure({"a": 11})
    driver.turn()
    driver.silence("s", "group=a")
    driver.wait(7200 - 1)
    assert driver.said() == [["a firing"]]  # it has ended by itself
    driver.silence("t", "group=a", seconds=1e6)
    driver.wait(7200)
    assert driver.said() == []
    driver.store({"silence/t": None})
    assert driver.said() == [["a firing"]]
    driver.wait(60)
    assert driver.said() == []


def test_the_end_of_an_alert_is_sent_even_if_it_is_silenced_meanwhile() -> None:
    driver = Driver([rule()], [receiver()])
    driver.measure({"a": 11})
    driver.turn()
    driver.silence("s", "group=a")
    driver.wait(60)
    assert driver.said() == []
    driver.measure({})
    assert driver.said() == [["a resolved"]]


def test_an_alert_that_was_always_silenced_is_never_sent() -> None:
    driver = Driver([rule()], [receiver()])
    driver.silence("s", "alertname=lag")
    driver.measure({"a": 11})
    driver.wait(100)
    driver.measure({})
    driver.wait(3600)
    assert driver.said() == []


def test_a_notice_keeps_its_id_over_failures_and_restarts() -> None:
    driver = Driver([rule()], [receiver()])
    driver.measure({"a": 11})
    (first,) = driver.turn(answers=False)
    assert driver.turn(answers=False) == []  # it waits for the next attempt
    driver.wait(1)
    driver.crash()
    (second,) = driver.turn(answers=False)
    assert second.notice.id == first.notice.id
    assert second.notice.alerts == first.notice.alerts
    assert second.notice.attempts == 1
    driver.measure({})  # it ends before the receiver knows that it fires
    driver.wait(300)
    assert driver.said() == [["a firing"]]
    driver.wait(60)
    assert driver.said() == [["a resolved"]]
    assert len({each.notice.id for each in driver.sent}) == 2


def test_the_end_names_the_occurrence_that_the_receiver_knows() -> None:
    driver = Driver([rule()], [receiver()])
    driver.measure({"a": 11})
    (first,) = driver.turn(answers=False)
    for value in (9, 11, 9):  # it ends, and fires and ends again, before the first notice arrives
        driver.wait(10)
        driver.measure({"a": value})
    assert driver.said() == [["a firing"]]
    driver.wait(60)
    assert driver.said() == [["a resolved"]]
    (ended,) = driver.sent[-1].notice.alerts
    assert ended.fired_ms == first.notice.alerts[0].fired_ms
    assert ended.resolved_ms == driver.now_ms - 60_000


def test_a_notice_that_can_not_be_delivered_is_replaced_by_the_present_state() -> None:
    driver = Driver([rule()], [receiver()])
    driver.measure({"a": 11})
    (first,) = driver.turn(answers=False)
    driver.measure({"b": 11})
    driver.wait(GIVE_UP_MS / 1000)
    driver.turn(answers=False)
    assert driver.said() == [["b firing"]]
    assert driver.machine.given_up == 1
    assert driver.sent[0].notice.id != first.notice.id


def test_the_end_is_sent_even_if_the_alert_is_pending_again() -> None:
    driver = Driver([rule(for_s=30)], [receiver()])
    driver.measure({"a": 11})
    driver.wait(30)
    driver.measure({"a": 11})
    assert driver.said() == [["a firing"]]
    driver.wait(10)
    driver.measure({"a": 9})
    driver.wait(10)
    driver.measure({"a": 11})
    assert driver.states() == {"a": "pending"}
    driver.wait(40)
    assert driver.said() == [["a resolved"]]
    driver.measure({"a": 9})
    assert driver.states() == {}


def test_a_pending_alert_whose_end_is_not_sent_yet_becomes_resolved() -> None:
    driver = Driver([rule(for_s=30)], [receiver()])
    driver.measure({"a": 11})
    driver.wait(30)
    driver.measure({"a": 11})
    driver.turn()
    driver.measure({"a": 9})
    driver.measure({"a": 11})
    driver.measure({"a": 9})
    assert driver.states() == {"a": "resolved"}
    driver.wait(60)
    assert driver.said() == [["a resolved"]]


def test_what_is_unknown_stays_as_it_is() -> None:
    driver = Driver([rule()], [receiver()])
    driver.measure({"a": 11})
    driver.measure({}, complete=False)
    assert driver.states() == {"a": "firing"}
    driver.measure({"a": 9}, complete=False)
    assert driver.states() == {"a": "resolved"}


def test_alerts_of_a_rule_that_is_gone_are_resolved_and_sent() -> None:
    driver = Driver([rule()], [receiver()])
    driver.measure({"a": 11})
    driver.turn()
    driver._given = ([rule("other")], [receiver()])
    driver.crash()
    driver.wait(60)
    assert driver.said() == [["a resolved"]]


def test_groups_of_a_receiver_that_is_gone_are_deleted() -> None:
    driver = Driver([rule()], [receiver(), receiver("more")])
    driver.measure({"a": 11})
    assert len(driver.turn()) == 2
    driver._given = ([rule()], [receiver("more")])
    driver.crash()
    assert [each.receiver for each in driver.machine.groups.values()] == ["more"]


def test_alertmanager_gets_all_again_each_minute_and_changes_immediately() -> None:
    driver = Driver([rule()], [receiver("am", kind="alertmanager", repeat_interval_s=60)])
    driver.measure({"a": 11})
    assert driver.said() == [["a firing"]]
    driver.ack("a")
    driver.measure({"a": 11, "b": 11})
    assert [sorted(each) for each in driver.said()] == [["a firing", "b firing"]]
    driver.wait(60)
    assert [sorted(each) for each in driver.said()] == [["a firing", "b firing"]]
    driver.measure({"b": 11})
    assert driver.said() == [["b firing", "a resolved"]]


def test_the_alerts_of_a_rule_and_of_a_notice_are_bounded() -> None:
    driver = Driver([rule()], [receiver()])
    driver.measure({f"g{number}": 11 for number in range(1200)})
    assert len(driver.machine.alerts) == machine.MOST_ALERTS
    assert driver.machine.limited == {"lag": 200}
    (due,) = driver.turn()
    assert len(due.notice.alerts) == machine.MOST_IN_NOTICE
    assert due.notice.more == machine.MOST_ALERTS - machine.MOST_IN_NOTICE
    driver.measure({})
    driver.wait(60)
    (due,) = driver.turn()
    assert {each.state for each in due.notice.alerts} == {"resolved"}
    driver.measure({f"h{number}": 11 for number in range(1000)})
    assert driver.machine.limited == {"lag": 0}
    driver.store(driver.machine.clean(driver.now_ms))
    assert len(driver.machine.alerts) == 2000


def test_long_texts_do_not_make_a_notice_too_large() -> None:
    long = rule(annotations={f"a{n}": "x" * 2000 for n in range(20)})
    driver = Driver([long], [receiver()])
    driver.measure({f"g{number}": 11 for number in range(200)})
    (due,) = driver.turn()
    assert due.notice.more > 0
    assert len(due.notice.alerts) + due.notice.more == 200
    assert len(due.notice.encode()) < 4 << 20


def test_what_has_ended_is_deleted_after_a_day() -> None:
    driver = Driver([rule()], [receiver()])
    driver.silence("s", "group=x", seconds=1)
    driver.measure({"a": 11})
    driver.turn()
    driver.measure({})
    driver.wait(60)
    driver.turn()
    driver.wait(KEPT_MS / 1000 - 61)
    driver.store(driver.machine.clean(driver.now_ms))
    assert driver.states() == {"a": "resolved"}
    driver.wait(100)
    driver.store(driver.machine.clean(driver.now_ms))
    assert driver.topic == {}


def test_texts_have_the_value_and_the_labels() -> None:
    texts: dict[str, Any] = {
        "summary": "${group} is ${value} s behind; ${missing}.",
        "annotations": {"a": "$${x}"},
    }
    driver = Driver([rule(labels={"severity": "page"}, **texts)], [receiver()])
    driver.measure({"billing": 12.5})
    (alert,) = driver.machine.alerts.values()
    assert alert.annotations == {"a": "${x}", "summary": "billing is 12.5 s behind; ."}
    assert alert.labels == {"alertname": "lag", "group": "billing", "severity": "page"}


def test_the_value_of_an_alert_is_not_stored_each_time() -> None:
    driver = Driver([rule()], [receiver()])
    driver.measure({"a": 11})
    before = dict(driver.topic)
    driver.wait(15)
    driver.measure({"a": 12})
    assert driver.topic == before
    driver.wait(60)
    driver.measure({"a": 13})
    assert next(iter(driver.machine.alerts.values())).value == 13


def test_an_infinite_value_is_stored_as_json_has_it() -> None:
    driver = Driver([rule()], [receiver()])
    driver.measure({"a": float("inf")})
    (data,) = (value for key, value in driver.topic.items() if key.startswith("alert/"))
    assert b"Infinity" not in data
    assert next(iter(driver.machine.alerts.values())).is_firing


def test_nothing_is_looked_at_while_nothing_changes() -> None:
    driver = Driver([rule()], [receiver()])
    driver.measure({"a": 11})
    driver.turn()
    driver.turn()
    driver.machine._groups_of = None  # type: ignore[method-assign,assignment]
    driver.wait(30)
    assert driver.turn() == []
