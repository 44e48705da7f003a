"""Administration of topics: create, delete, add partitions, leaders and replicas.

Translates only. An error belongs to one topic or one partition, never to the whole request. Kafka's
rules for the shape of a request (no name twice, a name or an id but not both) are checked here, and
everything else by the engine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, TypeAlias
from uuid import UUID

from tidemill.engine.api import NewTopic, TopicInfo
from tidemill.engine.errors import AuthorizationError
from tidemill.errors import TidemillError
from tidemill.protocols.kafka.apis import Each, RequestContext, Tree, each_partition, field, handles
from tidemill.protocols.kafka.error_codes import error_fields
from tidemill.protocols.kafka.errors import ThrottlingQuotaExceededError
from tidemill.protocols.kafka.handlers.admin_configs import config_fields
from tidemill.protocols.kafka.mutations import count_mutation
from tidemill.protocols.kafka.replicas import alter_reassignment, elect_leader
from tidemill.state.errors import InvalidRequestError

_NameOrId: TypeAlias = tuple[str | None, UUID | None]


@handles(19)
async def handle_create_topics(ctx: RequestContext, request: Any) -> Tree:
    """Answer CreateTopics. From v5 on with the created topic (KIP-525), from v7 on with its id."""
    twice = _twice(topic.name for topic in request.topics)
    new = await ctx.turns.collect(
        _new_topic(topic) for topic in request.topics if topic.name not in twice
    )
    wanted = {topic.name: topic for topic in new}
    outcomes: dict[str, TopicInfo | TidemillError] = {
        name: InvalidRequestError("Duplicate topic name.") for name in twice
    }
    if not request.validate_only:
        for name in list(wanted):
            try:
                count_mutation(ctx, max(wanted[name].partitions, 1))
            except ThrottlingQuotaExceededError as error:
                outcomes[name] = error
                del wanted[name]
    created = await ctx.turns.in_parts(
        lambda part: ctx.door.topics.create(part, request.validate_only), list(wanted.values())
    )
    outcomes.update(zip(wanted, created, strict=True))

    def answer(name: str) -> Tree:
        outcome = outcomes[name]
        if isinstance(outcome, TidemillError):
            return {"name": name, **error_fields(outcome)}
        return _created_topic(ctx, outcome, wanted[name])

    return {
        "throttle_time": ctx.throttle_ms,
        "topics": Each(answer, dict.fromkeys(topic.name for topic in request.topics)),
    }


def _new_topic(topic: Any) -> NewTopic:
    return NewTopic(
        name=topic.name,
        partitions=topic.num_partitions,
        replication_factor=topic.replication_factor,
        assignments={a.partition_index: list(a.broker_ids) for a in topic.assignments},
        configs={config.name: config.value for config in topic.configs},
    )


def _created_topic(ctx: RequestContext, topic: TopicInfo, wanted: NewTopic) -> dict[str, Any]:
    return {
        "name": topic.name,
        "topic_id": topic.topic_id,
        "num_partitions": topic.partitions,
        "replication_factor": 1,
        "configs": _configs(ctx, wanted) if ctx.api_version >= 5 else [],
    }


def _configs(ctx: RequestContext, topic: NewTopic) -> list[dict[str, Any]]:
    try:
        entries = ctx.door.configs.of_new_topic(topic.name, topic.configs)
    except AuthorizationError:  # the topic was created; only its configs are not shown
        return []
    return [config_fields(entry) for entry in entries]


@handles(20)
async def handle_delete_topics(ctx: RequestContext, request: Any) -> Tree:
    """Answer DeleteTopics, by name or (from v6 on, KIP-516) by id."""
    if ctx.api_version < 6:
        asked = [(name, None) for name in request.topic_names]
    else:
        asked = [(topic.name, topic.topic_id) for topic in request.topics]
    twice = _twice(asked)
    names: dict[_NameOrId, str] = {}
    named: set[str] = set()
    ids: dict[_NameOrId, UUID | None] = {}
    outcomes: dict[_NameOrId, TidemillError | None] = {}
    for key in dict.fromkeys(asked):
        try:
            if key in twice:
                raise InvalidRequestError("Duplicate topic name or id.")
            name = _name_of(ctx, *key)
            if name in named:
                raise InvalidRequestError("The topic is named twice, by its name and by its id.")
            named.add(name)
            topic = _known(ctx, name)
            ids[key] = key[1] or (None if topic is None else topic.topic_id)
            count_mutation(ctx, 1 if topic is None else topic.partitions)
            names[key] = name
        except TidemillError as error:
            outcomes[key] = error
        await ctx.turns.pause_if_due()
    deleted = await ctx.turns.in_parts(ctx.door.topics.delete, list(names.values()))
    outcomes.update(zip(names, deleted, strict=True))
    return {
        "throttle_time": ctx.throttle_ms,
        "responses": Each(
            lambda key: {
                "name": names.get(key, key[0]),
                "topic_id": ids.get(key, key[1]),
                **error_fields(outcomes[key]),
            },
            dict.fromkeys(asked),
        ),
    }


def _name_of(ctx: RequestContext, name: str | None, topic_id: UUID | None) -> str:
    if name is not None and topic_id is not None:
        raise InvalidRequestError("You must not specify both topic name and topic id.")
    if name is not None:
        return name
    if topic_id is None:
        raise InvalidRequestError("Neither topic name nor id were specified.")
    return ctx.door.topics.by_id(topic_id).name


def _known(ctx: RequestContext, name: str) -> TopicInfo | None:
    """Return a topic; None if it does not exist, or the client must not know about it."""
    try:
        return ctx.door.topics.get(name)
    except TidemillError:
        return None


@handles(37)
async def handle_create_partitions(ctx: RequestContext, request: Any) -> Tree:
    """Answer CreatePartitions (KIP-195). The count is the new total."""
    twice = _twice(topic.name for topic in request.topics)

    async def grow(topic: Any) -> Tree:
        refusal: TidemillError | None = None
        try:
            if topic.name in twice:
                raise InvalidRequestError("Duplicate topic in request.")
            if not request.validate_only:
                known = _known(ctx, topic.name)
                added = topic.count - (1 if known is None else known.partitions)
                count_mutation(ctx, max(added, 1))
            await ctx.door.topics.add_partitions(
                topic.name,
                topic.count,
                None
                if topic.assignments is None
                else [list(assignment.broker_ids) for assignment in topic.assignments],
                request.validate_only,
            )
        except TidemillError as error:
            refusal = error
        return {
            "name": topic.name,
            **error_fields(refusal),
        }

    distinct = {topic.name: topic for topic in request.topics}
    results = await ctx.turns.each(grow, distinct.values())
    return {"throttle_time": ctx.throttle_ms, "results": results}


@handles(43)
def handle_elect_leaders(ctx: RequestContext, request: Any) -> Tree:
    """Answer ElectLeaders (KIP-183, KIP-460).

    A request for all partitions leaves out those that have a leader, so here it leaves out all.
    """
    if request.topic_partitions is None:
        return {}

    def elect(topic: str, partition: int) -> Tree:
        outcome = elect_leader(ctx.door, topic, partition)
        return {"partition_id": partition, **error_fields(outcome)}

    asked = request.topic_partitions
    results = each_partition(asked, elect, key="topic", answers="partition_result")
    return {"replica_election_results": results}


@handles(45)
def handle_alter_partition_reassignments(ctx: RequestContext, request: Any) -> Tree:
    """Answer AlterPartitionReassignments (KIP-455). Replicas None cancels a reassignment."""

    def alter(topic: str, partition: Any) -> Tree:
        index = partition.partition_index
        node_id = ctx.node.node_id
        outcome = alter_reassignment(ctx.door, node_id, topic, index, partition.replicas)
        return {"partition_index": index, **error_fields(outcome)}

    return {
        "allow_replication_factor_change": field(request, "allow_replication_factor_change", True),
        "responses": each_partition(request.topics, alter),
    }


@handles(46)
def handle_list_partition_reassignments(ctx: RequestContext, request: Any) -> Tree:
    """Answer ListPartitionReassignments (KIP-455): with one broker there is never one."""
    return {}


def _twice(items: Iterable[Any]) -> set[Any]:
    return {item for item, count in Counter(items).items() if count > 1}
