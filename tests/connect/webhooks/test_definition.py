"""Which webhooks can be defined beside others."""

from __future__ import annotations

import pytest

from tidemill.connect.webhooks.definition import Webhook
from tidemill.connect.webhooks.errors import DefinitionError
from tidemill.connect.webhooks.topics import attempts_topic, dead_letters_topic


def webhook(name: str, topic: str, dead_letters: str = "") -> Webhook:
    return Webhook(
        name=name, topic=topic, dead_letters=dead_letters, url="https://example.org", signed=False
    )


@pytest.mark.parametrize("written", [attempts_topic, dead_letters_topic])
def test_webhooks_that_feed_each_other_are_refused(written: object) -> None:
    assert callable(written)
    a, b, c = (webhook(each, written(of)) for each, of in ("ab", "bc", "ca"))
    for last, others in ((a, [b, c]), (b, [c, a]), (c, [a, b])):
        last.check_no_circle(others[:1])
        last.check_no_circle([last, others[1]])
        with pytest.raises(DefinitionError, match="because of it"):
            last.check_no_circle(others)


def test_webhooks_of_what_others_write_are_not_refused() -> None:
    a = webhook("a", "orders", "letters")
    b = webhook("b", attempts_topic("a"), "letters")
    c = webhook("c", "letters")
    d = webhook("d", attempts_topic("c"))
    for last in (a, b, c, d):
        last.check_no_circle([a, b, c, d])


def test_a_circle_of_others_ends_the_search() -> None:
    a, b = webhook("a", attempts_topic("b")), webhook("b", attempts_topic("a"))
    webhook("c", attempts_topic("a")).check_no_circle([a, b])
