"""Which rules each API needs, with the broker's own authorizer.

A user with exactly these rules is served; with one of them missing it is refused; without rules it
is refused everywhere; a super user needs none.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from tests.engine.test_authorize import commit
from tests.engine.transactions.support import Producer
from tests.protocols.kafka.handlers.test_authorization import (
    CODES,
    FILTERED,
    NEEDED,
    codes,
    request,
)
from tests.protocols.kafka.trees import Tree
from tests.protocols.kafka.wire import Client, serving
from tidemill.engine.api import ProducerIdentity, TopicInfo
from tidemill.engine.authorize import ANONYMOUS
from tidemill.engine.engine import Engine
from tidemill.protocols.kafka.apis import VERSIONS
from tidemill.state.security.types import Operation, Pattern, ResourceKind, Rule


def rules_of(text: str) -> list[Rule]:
    def rule(operation: str, kind: str, name: str) -> Rule:
        of = ResourceKind[kind], Pattern.LITERAL, name
        return Rule(*of, str(ANONYMOUS), "127.0.0.1", Operation[operation], True)

    return [rule(*each.split()) for each in filter(None, text.split(", "))]


@contextlib.asynccontextmanager
async def broker(super_users: str) -> AsyncIterator[tuple[Engine, Client]]:
    """Run a broker with rules, and connect an anonymous client."""
    async with serving(super_users=super_users) as s:
        # Setups do everything as the broker itself.
        engine, inner = s.engine, s.engine.inner_door()
        engine.records, engine.topics = inner.records, inner.topics
        engine.transactions, engine.groups = inner.transactions, inner.groups
        yield engine, await s.client()


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
    names: Tree = {
        "group_ids": ["g"],
        "subscribed_topic_names": ["t"],
        "producer_id": producer.producer_id,
        "producer_epoch": producer.epoch,
        "member_id": "",
        "generation_id": -1,
        "group_instance_id": None,
    }
    return {name: names.get(name, known(value, producer)) for name, value in tree.items()}


def asked(key: int, version: int, topic: TopicInfo, producer: ProducerIdentity) -> Tree:
    """Return a request about what exists. A list asks for everything."""
    tree: Tree = known(request(key, version, topic), producer)
    if key in FILTERED:
        tree = {name: [] if isinstance(value, list) else None for name, value in tree.items()}
        tree |= {name: -1 for name in ("duration_filter",) if name in tree}
    return tree


def is_refused(key: int, answer: Tree) -> bool:
    if key in FILTERED:
        return not answer[FILTERED[key]]
    found = set(codes(answer))
    return bool(found & set(CODES.values())) or (key == 3 and 100 in found)


async def refuses(engine: Engine, client: Client, key: int) -> bool:
    """Send a request of an API in its newest version; return whether it is refused."""
    topic, producer = await prepare(engine)
    newest = VERSIONS[key][2]
    return is_refused(key, await client.call(key, newest, asked(key, newest, topic, producer)))


async def set_rules(engine: Engine, rules: list[Rule]) -> None:
    security = engine.inner_door().security
    await security.delete_rules(security.rules())
    assert await security.create_rules(rules) == [None] * len(rules)


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
