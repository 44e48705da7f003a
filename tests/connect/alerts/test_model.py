"""The machine of alerts against a model of a few lines, with restarts at any point."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.connect.alerts.driving import Driver
from tests.connect.alerts.driving import receiver as make_receiver
from tests.connect.alerts.driving import rule as make_rule
from tests.support.effort import rounds
from tidemill.connect.alerts.model import Alert

GROUPS = st.sampled_from(["a", "b", "c"])
INTERVAL_S, REPEAT_S = 20, 300


class Alerts(RuleBasedStateMachine):
    """The model: since when each group is over the limit, and what the receiver believes."""

    @initialize(
        by=st.sampled_from([[], ["..."], ["group"]]),
        wait=st.sampled_from([0, 10]),
        for_s=st.sampled_from([0, 30]),
    )
    def begin(self, by: list[str], wait: int, for_s: int) -> None:
        options: dict[str, Any] = {
            "group_by": by,
            "group_wait_s": wait,
            "group_interval_s": INTERVAL_S,
        }
        receiver = make_receiver(**options, repeat_interval_s=REPEAT_S)
        self.driver = Driver([make_rule(for_s=for_s)], [receiver])
        self.for_s = for_s
        self.over: dict[str, int] = {}
        self.fires: dict[str, int] = {}
        self.silences: dict[str, tuple[str, int]] = {}
        self.believed: dict[str, int] = {}
        self.bodies: dict[str, list[Alert]] = {}
        self.seen = 0
        self.number = 0

    # --- what happens -------------------------------------------------------------------------

    @rule(values=st.dictionaries(GROUPS, st.sampled_from([9, 11])))
    def measure(self, values: dict[str, float]) -> None:
        now_ms = self.driver.now_ms
        self.driver.measure(values)
        for group in "abc":
            if values.get(group, 0) <= 10:
                self.over.pop(group, None)
                self.fires.pop(group, None)
            else:
                since = self.over.setdefault(group, now_ms)
                if now_ms - since >= 1000 * self.for_s:
                    self.fires.setdefault(group, now_ms)

    @rule(seconds=st.sampled_from([1, 5, 10, 30, 100, 400]))
    def wait(self, seconds: int) -> None:
        self.driver.wait(seconds)

    @rule(group=GROUPS, seconds=st.sampled_from([10, 50, 1000]))
    def silence(self, group: str, seconds: int) -> None:
        self.number += 1
        name = f"s{self.number}"
        self.silences[name] = group, self.driver.now_ms + 1000 * seconds
        self.driver.silence(name, f"group={group}", seconds=seconds)

    @rule(data=st.data())
    def unsilence(self, data: st.DataObject) -> None:
        if self.silences:
            name = data.draw(st.sampled_from(sorted(self.silences)))
            del self.silences[name]
            self.driver.store({f"silence/{name}": None})

    @rule(group=GROUPS)
    def acknowledge(self, group: str) -> None:
        if self.driver.states().get(group) == "firing":
            self.driver.ack(group)

    @rule(answers=st.booleans())
    def turn(self, answers: bool) -> None:
        for due in self.driver.turn(answers=answers):
            alerts = due.notice.alerts
            assert self.bodies.setdefault(due.notice.id, alerts) == alerts

    @rule()
    def crash(self) -> None:
        before = self.driver.machine
        self.driver.crash()
        after = self.driver.machine
        assert (after.alerts, after.groups) == (before.alerts, before.groups)
        assert (after.silences, after.acks) == (before.silences, before.acks)

    @rule()
    def settle(self) -> None:
        """Let all intervals end, with a receiver that answers: it knows all then."""
        for _ in range(6):
            self.driver.wait(INTERVAL_S)
            self.turn(True)
            self._believe()
        now_ms = self.driver.now_ms
        muted = {group for group, ends_ms in self.silences.values() if ends_ms > now_ms}
        loud = {group: at for group, at in self.fires.items() if group not in muted}
        assert loud.items() <= self.believed.items()
        # A silenced one is known if it was sent before, and nothing else is.
        assert self.believed.items() <= self.fires.items()

    # --- what holds ---------------------------------------------------------------------------

    def _believe(self) -> None:
        """Let the receiver take over what it was sent."""
        for due in self.driver.sent[self.seen :]:
            for alert in due.notice.alerts:
                group = alert.labels["group"]
                if alert.is_firing:
                    self.believed[group] = alert.fired_ms
                else:
                    # No end of what it does not know.
                    assert self.believed.pop(group) == alert.fired_ms
        self.seen = len(self.driver.sent)

    @invariant()
    def states_are_those_of_the_model(self) -> None:
        if not hasattr(self, "driver"):
            return
        self._believe()
        states = self.driver.states()
        firing = {group for group, state in states.items() if state == "firing"}
        pending = {group for group, state in states.items() if state == "pending"}
        assert firing == self.fires.keys()
        assert pending == self.over.keys() - self.fires.keys()


TestAlerts = Alerts.TestCase
TestAlerts.settings = settings(
    max_examples=rounds("ALERT_EXAMPLES", 15, 2000), stateful_step_count=30, deadline=None
)
