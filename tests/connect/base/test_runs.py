"""The pauses between runs that fail, of webhooks and of bridges."""

from __future__ import annotations

import pytest

from tidemill.connect.base.runs import STEADY_S, Runs
from tidemill.connect.webhooks.errors import FencedError, PermanentWebhookError, WebhookError
from tidemill.errors import SettingsError


def test_pauses_grow_although_each_run_works_for_a_moment() -> None:
    runs, pauses = Runs(PermanentWebhookError, WebhookError), []
    for _ in range(10):
        runs.begin()
        runs.work()
        pauses.append(runs.fail(ValueError("x")))
    assert pauses == [0.5, 1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert runs.status()["phase"] == "waiting"
    assert runs.said() == {"error": "unexpected ValueError: x", "hint": "", "failures": 10}
    runs.begin()
    runs.work()
    assert runs.status()["error"] == ""
    runs._began -= STEADY_S
    assert runs.fail(WebhookError("x")) == 0.5


@pytest.mark.parametrize("error", [FencedError("x"), SettingsError("x")])
def test_a_permanent_error_waits_for_the_user(error: Exception) -> None:
    runs = Runs(PermanentWebhookError, WebhookError)
    runs.begin()
    assert runs.fail(error) is None
    assert runs.phase == "failed"
    runs.rest("paused")
    assert (runs.phase, runs.failures) == ("paused", 0)
