"""Transactions that are open, what they hold back, and their end. Must not know: HTML."""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.gateway.cluster.state import Snapshot
from tidemill.gateway.console.contract import (
    Attention,
    Data,
    Done,
    Form,
    Page,
    View,
    address,
    command_line,
)
from tidemill.gateway.console.lists import listed

SHOWN_PARTITIONS = 20
_LONG_MS = 900_000
"""A transaction that is open for longer needs attention."""


async def data(view: View) -> Data:
    """Return the open transactions, and writes that hang."""
    look = await view.parts.transactions.look()
    found = listed(
        view,
        look.open,
        {
            "id": lambda each: each.transactional_id,
            "state": lambda each: each.state,
            "held": lambda each: look.waiting.get(each.transactional_id, 0),
            "open": lambda each: each.open_ms,
            "partitions": lambda each: len(each.partitions),
        },
        search=lambda each: (
            f"{each.transactional_id} {' '.join({topic for topic, _ in each.partitions})}"
        ),
        sort="-open",
    )
    rows = [
        {
            "id": each.transactional_id,
            "state": each.state,
            "producer_id": each.producer_id,
            "producer_epoch": each.producer_epoch,
            "open_s": None if each.open_ms is None else each.open_ms / 1000,
            "timeout_s": each.timeout_ms / 1000,
            "partitions": [f"{topic}-{number}" for topic, number in each.partitions],
            "held": look.waiting.get(each.transactional_id, 0),
        }
        for each in found.rows
    ]
    return {
        "list": found.showing(rows),
        "shown": SHOWN_PARTITIONS,
        "hanging": look.hanging,
        "held": sum(look.held.values()),
        "held_partitions": len(look.held),
        "problems": look.problems,
    }


async def abort(view: View, form: Form) -> Done:
    """Abort a transaction."""
    name = form.needed("id")
    await view.parts.transactions.abort(name, form.number("producer_id"))
    return Done(address("transactions"), f"Aborted {name}; its producer is fenced.")


async def abort_hanging(view: View, form: Form) -> Done:
    """End a write that hangs."""
    topic, partition = form.needed("topic"), form.number("partition")
    producer = form.number("producer_id")
    await view.parts.transactions.abort_hanging(topic, partition, producer)
    text = f"Ended the write of producer {producer} in {topic} partition {partition}."
    return Done(address("transactions"), text)


async def check(view: View, snapshot: Snapshot) -> Sequence[Attention]:
    """Find transactions that hold readers back for long."""
    found = await view.parts.transactions.open()
    open_ms = {each.transactional_id: each.open_ms or 0 for each in found}
    return [
        Attention(
            "warning",
            f"Transaction {id_} is open for {open_for // 60_000} min; readers of what is "
            f"committed wait behind it.",
            command_line("transaction", "abort", name=id_),
            address("transactions"),
        )
        for id_, open_for in open_ms.items()
        if open_for > _LONG_MS
    ][:5]


PAGE = Page(
    address="transactions",
    about="Transactions that are open and hold readers back, and writes that hang; end them.",
    data=data,
    actions={"abort": abort, "abort-hanging": abort_hanging},
    section="Readers",
    live_s=5.0,
)
