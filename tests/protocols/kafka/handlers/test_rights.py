"""Which rules each API needs, with the broker's own authorizer.

A user with exactly these rules is served; with one of them missing it is refused; without rules it
is refused everywhere; a super user needs none.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from tests.engine.test_authorize import commit
from tests.engine.transactions.support import Producer
from tests.protocols.kafka.broker import DATA
from tests.protocols.kafka.handlers.test_authorization import codes, request
from tests.protocols.kafka.wire import Client
from tests.support.faultyfs import FaultyFileSystem
from tidemill.engine.api import ProducerIdentity, TopicInfo
from tidemill.engine.authorize import ANONYMOUS
from tidemill.engine.engine import Engine
from tidemill.protocols.kafka.apis import VERSIONS
from tidemill.protocols.kafka.server import KafkaServer
from tidemill.protocols.kafka.settings import KafkaListener
from tidemill.settings import Settings
from tidemill.state.security.types import Operation, Pattern, ResourceKind, Rule

REFUSALS = {29, 30, 31, 53}

NEEDED = {
    0: "WRITE TOPIC t, WRITE TRANSACTIONAL_ID x",
    1: "READ TOPIC t",
    2: "DESCRIBE TOPIC t",
    3: "DESCRIBE TOPIC t",
    8: "READ GROUP g, READ TOPIC t",
    9: "DESCRIBE GROUP g, DESCRIBE TOPIC t",
    10: "DESCRIBE GROUP g",
    11: "READ GROUP g",
    12: "READ GROUP g",
    13: "READ GROUP g",
    14: "READ GROUP g",
    15: "DESCRIBE GROUP g",
    16: "DESCRIBE GROUP g",
    17: "",
    18: "",
    19: "CREATE TOPIC t",
    20: "DELETE TOPIC t",
    21: "DELETE TOPIC t",
    22: "WRITE TRANSACTIONAL_ID x",
    23: "DESCRIBE TOPIC t",
    24: "WRITE TRANSACTIONAL_ID x, WRITE TOPIC t",
    25: "WRITE TRANSACTIONAL_ID x, READ GROUP g",
    26: "WRITE TRANSACTIONAL_ID x",
    27: "CLUSTER_ACTION CLUSTER kafka-cluster",
    28: "WRITE TRANSACTIONAL_ID x, READ GROUP g, READ TOPIC t",
    29: "DESCRIBE CLUSTER kafka-cluster",
    30: "ALTER CLUSTER kafka-cluster",
    31: "ALTER CLUSTER kafka-cluster",
    32: "DESCRIBE_CONFIGS TOPIC t",
    33: "ALTER_CONFIGS TOPIC t",
    34: "ALTER CLUSTER kafka-cluster",
    35: "DESCRIBE CLUSTER kafka-cluster",
    36: "",
    37: "ALTER TOPIC t",
    42: "DELETE GROUP g",
    43: "ALTER CLUSTER kafka-cluster",
    44: "ALTER_CONFIGS TOPIC t",
    45: "ALTER CLUSTER kafka-cluster",
    46: "",
    47: "DELETE GROUP g, READ TOPIC t",
    48: "DESCRIBE_CONFIGS CLUSTER kafka-cluster",
    49: "ALTER_CONFIGS CLUSTER kafka-cluster",
    50: "DESCRIBE CLUSTER kafka-cluster",
    51: "ALTER CLUSTER kafka-cluster",
    55: "DESCRIBE CLUSTER kafka-cluster",
    57: "ALTER CLUSTER kafka-cluster",
    60: "",
    61: "READ TOPIC t",
    65: "DESCRIBE TRANSACTIONAL_ID x",
    66: "DESCRIBE TRANSACTIONAL_ID x",
    68: "READ GROUP g, DESCRIBE TOPIC t",
    69: "DESCRIBE GROUP g",
    74: "",
    75: "DESCRIBE TOPIC t",
    76: "READ GROUP g, DESCRIBE TOPIC t",
    77: "DESCRIBE GROUP g",
    78: "READ GROUP g",
    79: "READ GROUP g",
    90: "DESCRIBE GROUP g, DESCRIBE TOPIC t",
    91: "READ GROUP g, READ TOPIC t",
    92: "DELETE GROUP g",
}
"""API key -> the rules that a request needs in the newest version. Requests of share groups, of
which there is none here, are refused for their topics later: see the tests of the door."""

FILTERED = {16: "groups", 66: "transaction_states"}
"""API key -> the list in its answer that shows nothing without rights."""


def rules_of(text: str) -> list[Rule]:
    found = []
    for each in filter(None, text.split(", ")):
        operation, kind, name = each.split()
        found.append(
            Rule(
                ResourceKind[kind],
                Pattern.LITERAL,
                name,
                str(ANONYMOUS),
                "127.0.0.1",
                Operation[operation],
                True,
            )
        )
    return found


@contextlib.asynccontextmanager
async def broker(super_users: str) -> AsyncIterator[tuple[Engine, Client]]:
    """Run a broker with rules, and connect an anonymous client."""
    settings = Settings.model_validate(
        {
            "data_dir": DATA,
            "sections": (KafkaListener(port=0),),
            "groups": {"initial_rebalance_delay_ms": 0},
            "security": {"super_users": super_users},
        }
    )
    engine = Engine(settings, fs=FaultyFileSystem())
    await engine.start()
    # Setups do everything as the broker itself.
    inner = engine.inner_door()
    engine.records, engine.topics = inner.records, inner.topics
    engine.transactions, engine.groups = inner.transactions, inner.groups
    server = KafkaServer(engine, settings)
    client = await Client.connect(await server.start())
    try:
        yield engine, client
    finally:
        client.close()
        await server.stop(grace_seconds=0)
        await engine.stop()


async def prepare(engine: Engine) -> tuple[TopicInfo, ProducerIdentity]:
    """Create what requests ask about, as far as it is missing. Return the topic and a producer."""
    topic = await engine.topics.ensure("t")
    await engine.groups.commit(commit("t"))
    producer = await Producer(engine).init()
    await producer.send("t", b"first")
    return topic, producer.identity


def known(tree: Any, producer: ProducerIdentity) -> Any:
    """Replace names of groups and topics by those that exist."""
    if isinstance(tree, list):
        return [known(each, producer) for each in tree]
    if not isinstance(tree, dict):
        return tree
    names: dict[str, Any] = {
        "group_ids": ["g"],
        "subscribed_topic_names": ["t"],
        "producer_id": producer.producer_id,
        "producer_epoch": producer.epoch,
        "member_id": "",
        "generation_id": -1,
        "group_instance_id": None,
    }
    return {name: names.get(name, known(value, producer)) for name, value in tree.items()}


def asked(key: int, version: int, topic: TopicInfo, producer: ProducerIdentity) -> dict[str, Any]:
    """Return a request about what exists. A list asks for everything."""
    tree: dict[str, Any] = known(request(key, version, topic), producer)
    if key in FILTERED:
        tree = {name: [] if isinstance(value, list) else None for name, value in tree.items()}
        tree |= {name: -1 for name in ("duration_filter",) if name in tree}
    return tree


def is_refused(key: int, answer: dict[str, Any]) -> bool:
    if key in FILTERED:
        return not answer[FILTERED[key]]
    return bool(REFUSALS & set(codes(answer))) or (key == 3 and 100 in set(codes(answer)))


async def refuses(engine: Engine, client: Client, key: int) -> bool:
    """Send a request of an API in its newest version; return whether it is refused."""
    topic, producer = await prepare(engine)
    newest = VERSIONS[key][2]
    async with asyncio.timeout(60):
        return is_refused(key, await client.call(key, newest, asked(key, newest, topic, producer)))


async def set_rules(engine: Engine, rules: list[Rule]) -> None:
    security = engine.inner_door().security
    await security.delete_rules(security.rules())
    assert await security.create_rules(rules) == [None] * len(rules)


def test_the_rights_of_each_api_are_known() -> None:
    assert set(NEEDED) == set(VERSIONS)


async def test_each_api_is_served_with_its_rights_and_refused_without_one_of_them() -> None:
    found = {}
    async with broker("User:root") as (engine, client):
        for key, text in NEEDED.items():
            needed = rules_of(text)
            sets = [[each for each in needed if each is not missing] for missing in needed]
            sets += [[each._replace(host="10.0.0.1") for each in needed]] if needed else []
            refused = []
            for rules in (*sets, needed):
                await set_rules(engine, rules)
                refused.append(await refuses(engine, client, key))
            if refused != [True] * len(sets) + [False]:
                found[VERSIONS[key][0]] = refused
    assert found == {}


async def test_a_super_user_needs_no_rules() -> None:
    async with broker(f"User:root;{ANONYMOUS}") as (engine, client):
        refused = [VERSIONS[key][0] for key in NEEDED if await refuses(engine, client, key)]
    assert refused == []
