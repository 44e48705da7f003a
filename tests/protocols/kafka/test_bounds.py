"""No request holds the event loop for long, however many elements it has.

Every array of every advertised API is filled up to the broker's limit, in turn. What is measured is
the processor time of each callback of the event loop, which other programs don't change.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.protocols.kafka.in_memory import Connection, running
from tests.protocols.kafka.wire import request_bytes
from tests.support import effort
from tests.support.effort import IS_NIGHTLY
from tidemill.engine.api import NewTopic
from tidemill.kafka_codec.fields import Structure
from tidemill.kafka_codec.messages import encode_request
from tidemill.kafka_codec.schema import request_type, structure_of
from tidemill.protocols.kafka.answer import LEAST_ELEMENTS
from tidemill.protocols.kafka.apis import VERSIONS, load_handlers
from tidemill.protocols.kafka.server import KafkaServer
from tidemill.settings import Limits

PARTITIONS = 500
"""Of the topic that the requests name. With other topics, the elements differ in their names."""
ELEMENTS = LEAST_ELEMENTS - 10 if IS_NIGHTLY else 4000
"""Nightly, the limit of the settings below, less what surrounds the large array. Otherwise so many
that each of them may take 5 microseconds, which is less than any does."""
HOLD_MS = effort.bound(20, normal=500)
Path_ = tuple[str, ...]


def arrays(structure: Structure, path: Path_ = ()) -> Iterator[Path_]:
    """Yield the path of every array in a structure."""
    for field in structure.fields:
        here = (*path, field.name)
        if field.is_array:
            yield here
        if field.structure is not None:
            yield from arrays(field.structure, here)


def filled(structure: Structure, target: Path_, known: bool, index: int = 0) -> dict[str, Any]:
    """Return a tree whose array at ``target`` has ``ELEMENTS`` elements, and others one each.

    Args:
        known: the elements name what exists, over and over; else names that don't exist.
        index: of the element of the large array that this is a part of.
    """
    tree: dict[str, Any] = {}
    for field in structure.fields:
        if field.tag is not None:
            continue
        rest = target[1:] if target and target[0] == field.name else ("",)
        if field.is_array:
            count = ELEMENTS // (1 + _inner(field.structure)) if not rest else 1
            tree[field.name] = [
                _value(field, rest, known, number if not rest else index) for number in range(count)
            ]
        elif (
            field.structure is not None
            or not field.nullable
            or (field.kafka_type == "string" and field.name in ("name", "topic", "topic_name"))
        ):
            tree[field.name] = _value(field, rest, known, index)
    return tree


def _inner(structure: Structure | None) -> int:
    """Return how many elements the arrays inside an element have."""
    fields = () if structure is None else structure.fields
    return sum(int(field.is_array) + _inner(field.structure) for field in fields)


def _value(field: Any, rest: Path_, known: bool, index: int) -> Any:
    if field.structure is not None:
        return filled(field.structure, rest or ("",), known, index)
    kind: str = field.kafka_type
    if kind == "string":
        if not known:
            return f"{field.name}-{index}"
        return {"group_id": "g", "groups": "g", "groups_names": "g"}.get(field.name, "wide")
    if kind in ("bytes", "records"):
        return b""
    if kind == "uuid":
        return None
    if kind == "bool":
        return False
    if kind == "float64":
        return 0.0
    if "partition" in field.name and field.name != "num_partitions":
        return index % PARTITIONS if known else index
    return SPECIAL.get(field.name, 1 if kind in ("int8", "uint8") else 0)


SPECIAL: dict[str, int] = {
    **dict.fromkeys(("generation_id_or_member_epoch", "generation_id", "timestamp"), -1),
    **dict.fromkeys(("session_epoch", "epoch", "current_leader_epoch"), -1),
    **dict.fromkeys(("num_partitions", "replication_factor"), -1),
    **dict.fromkeys(("session_timeout", "rebalance_timeout"), 10_000),
    **dict.fromkeys(("max_bytes", "partition_max_bytes"), 1_000_000),
    **dict.fromkeys(("producer_id", "acks"), 1),
    "resource_type": 2,
    "count": 501,
    "response_partition_limit": 2000,
}
"""Field -> a value with which a request is more than refused."""


def cases() -> Iterator[tuple[str, int, Path_, bool]]:
    """Yield a name, the API, the large array, and whether its elements name what exists."""
    for api in load_handlers().values():
        for path in arrays(structure_of(request_type(api.key, api.max_version))):
            for known in (True, False):
                kind = "known" if known else "unknown"
                yield f"{api.name} {'.'.join(path)} {kind}", api.key, path, known


async def hold_ms(server: KafkaServer, frame: bytes) -> float:
    """Return the most processor time that one callback of the loop takes for a request."""
    connection, run = Connection(server), asyncio.Handle._run
    held: list[float] = []

    def timed(handle: asyncio.Handle) -> None:
        before = time.thread_time()
        run(handle)
        held.append(time.thread_time() - before)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asyncio.Handle, "_run", timed)
        await connection.deliver(frame)
        await connection.answered()
        await asyncio.sleep(0)  # this step is measured when it ends
    connection.close()
    return max(held) * 1000


@pytest.mark.slow
@pytest.mark.timing
@pytest.mark.usefixtures("tuned_collections")
def test_no_array_of_any_request_holds_the_loop(tmp_path: Path) -> None:
    slow: dict[str, float] = {}
    limits = Limits(partitions=PARTITIONS + 100)

    async def run() -> None:
        async with running(tmp_path, NewTopic("wide", PARTITIONS), limits=limits) as server:
            for name, key, path, known in cases():
                version = VERSIONS[key][2]
                tree = filled(structure_of(request_type(key, version)), path, known)
                frame = request_bytes(key, version, bytes(encode_request(key, version, tree)))
                tries = 0
                # What is slow is slow every time. A page fault or an interrupt is not.
                while (hold := await hold_ms(server, frame)) > HOLD_MS:
                    tries += 1
                    if tries == 3:
                        slow[name] = round(hold, 1)
                        break

    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        runner.run(run())
    assert slow == {}
