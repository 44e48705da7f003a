"""Values of metrics: what is counted, what is bounded, and what other ways out get."""

from __future__ import annotations

import pytest

from tidemill.metrics import definition
from tidemill.metrics.definition import Metric
from tidemill.metrics.registry import MOST_CHILDREN, OTHER, Collector, Family, Registry

SEEN = Metric("test_seen_total", "counter", "Seen.", ("who",))
DEPTH = Metric("test_depth", "gauge", "Depth.")
TOOK = Metric("test_took_seconds", "histogram", "Took.", ("what",), (0.1, 1.0))


def test_the_same_labels_have_the_same_counter() -> None:
    registry = Registry()
    registry.counter(SEEN, "a").value += 2
    registry.counter(SEEN, "a").value += 1
    registry.gauge(DEPTH).value = 7
    assert [tuple(each) for each in registry.samples()] == [
        ("test_seen_total", (("who", "a"),), "counter", 3),
        ("test_depth", (), "gauge", 7),
    ]


def test_a_histogram_is_cumulative_and_its_bounds_belong_to_the_range_below() -> None:
    registry = Registry()
    took = registry.histogram(TOOK, "x")
    for value in (0.05, 0.1, 0.5):
        took.observe(value)
    took.observe(3.0, 2)
    what = ("what", "x")
    assert [(each.name, each.labels, each.value) for each in registry.samples()] == [
        ("test_took_seconds_bucket", (what, ("le", "0.1")), 2),
        ("test_took_seconds_bucket", (what, ("le", "1.0")), 3),
        ("test_took_seconds_bucket", (what, ("le", "+Inf")), 5),
        ("test_took_seconds_sum", (what,), pytest.approx(6.65)),
        ("test_took_seconds_count", (what,), 5),
    ]


def test_a_million_label_values_are_bounded() -> None:
    registry = Registry()
    for number in range(MOST_CHILDREN + 500):
        registry.counter(SEEN, f"client {number}").value += 1
    samples = {each.labels[0][1]: each.value for each in registry.samples()}
    assert len(samples) == MOST_CHILDREN + 1
    assert samples[OTHER] == 500


def test_a_collector_is_asked_at_each_scrape_and_a_detailed_one_on_its_page_only() -> None:
    registry = Registry()
    calls: list[str] = []

    def collector(name: str, value: float) -> Collector:
        def collect() -> list[Family]:
            calls.append(name)
            return [(DEPTH, [((), value)])]

        return collect

    registry.collect(collector("all", 1))
    registry.collect(collector("detailed", 2), detailed=True)
    assert [rows for _, rows in registry.families()] == [[((), 1)]]
    assert [rows for _, rows in registry.families(detailed=True)] == [[((), 2)]]
    assert calls == ["all", "detailed"]


def test_labels_that_do_not_match_the_declaration_are_refused() -> None:
    with pytest.raises(ValueError, match="has the labels"):
        Registry().counter(SEEN)


@pytest.mark.parametrize(
    ("kind", "name", "labels"),
    [
        ("counter", "tidemill_things", ()),
        ("gauge", "tidemill_things_total", ()),
        ("gauge", "tidemill_Things", ()),
        ("gauge", "tidemill__things", ()),
        ("gauge", "9things", ()),
        ("gauge", "tidemill_things", ("le",)),
        ("gauge", "tidemill_things", ("instance",)),
        ("gauge", "tidemill_things", ("a-b",)),
        ("gauge", "tidemill_topics", ()),
    ],
)
def test_a_name_against_the_rules_or_declared_twice_is_refused(
    kind: str, name: str, labels: tuple[str, ...]
) -> None:
    import tidemill.engine.metrics.logs  # noqa: F401 - declares tidemill_topics

    with pytest.raises(ValueError, match=r"invalid|declared twice"):
        getattr(definition, kind)(name, "Things.", *labels)
