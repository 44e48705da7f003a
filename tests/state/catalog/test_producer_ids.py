"""Producer ids are never given twice, whatever is lost between a claim and its use."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidemill.state.catalog.catalog import Catalog
from tidemill.state.catalog.producer_ids import ProducerIds
from tidemill.state.outcome import Outcome, StateRecord


def test_one_record_claims_a_block() -> None:
    ids = ProducerIds(block_size=3)
    outcome = ids.allocate()
    assert (outcome.result, len(outcome.records)) == (0, 1)
    for record in outcome.records:
        assert ids.replay(record.key, record.value)
    assert [(o.result, len(o.records)) for o in (ids.allocate() for _ in range(3))] == [
        (1, 0),
        (2, 0),
        (3, 1),
    ]
    assert ids.claimed == 3


def test_catalog_and_producer_ids_leave_each_other_s_records_alone() -> None:
    (claim,) = ProducerIds().allocate().records
    catalog = Catalog()
    assert not catalog.replay(claim.key, claim.value)


@given(st.lists(st.sampled_from(["allocate", "written", "failed", "restart"]), max_size=60))
def test_no_id_is_given_twice(steps: list[str]) -> None:
    ids = ProducerIds(block_size=3)
    log: list[StateRecord] = []
    in_flight: list[Outcome[int]] = []
    given_out: list[int] = []
    for step in steps:
        if step == "allocate":
            outcome = ids.allocate()
            if outcome.records:
                in_flight.append(outcome)
            else:
                given_out.append(outcome.result)
        elif step == "restart":
            in_flight = []
            ids = ProducerIds(block_size=3)
            for record in log:
                ids.replay(record.key, record.value)
        elif in_flight and step == "written":
            outcome = in_flight.pop(0)
            log += outcome.records
            for record in outcome.records:
                ids.replay(record.key, record.value)
            given_out.append(outcome.result)
        elif in_flight:
            ids.write_failed(in_flight.pop(0))
    assert len(set(given_out)) == len(given_out)
