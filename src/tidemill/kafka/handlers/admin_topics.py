"""Administration of topics: create, delete, add partitions, leaders and replicas.

Translates only. A refusal is always one topic's or one partition's, never the whole request's;
what Kafka defines about the shape of a request (nothing named twice, a name or an id but not
both) is checked here, everything else by the broker.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, TypeAlias
from uuid import UUID

from tidemill.broker.api import NewTopic, TopicInfo
from tidemill.errors import InvalidRequestError, TidemillError
from tidemill.kafka.apis import RequestContext, Tree, handles
from tidemill.kafka.errors import error_code, error_message
from tidemill.kafka.handlers.admin_configs import config_source

_NameOrId: TypeAlias = tuple[str | None, UUID | None]


@handles(19)
async def handle_create_topics(ctx: RequestContext, request: Any) -> Tree:
    """CreateTopics. From v5 on the answer tells the topic as it is now (KIP-525), v7 its id."""
    twice = _twice(topic.name for topic in request.topics)
    wanted = {topic.name: _new_topic(topic) for topic in request.topics if topic.name not in twice}
    outcomes: dict[str, TopicInfo | TidemillError] = {
        name: InvalidRequestError("Duplicate topic name.") for name in twice
    }
    created = await ctx.broker.create_topics(list(wanted.values()), request.validate_only)
    outcomes.update(zip(wanted, created, strict=True))
    return {
        "topics": [
            _refused_topic(name, outcome)
            if isinstance(outcome, TidemillError)
            else _created_topic(ctx, outcome, wanted[name])
            for name, outcome in ((n, outcomes[n]) for n in _distinct(request.topics))
        ]
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
        "error_code": 0,
        "error_message": None,
        "num_partitions": topic.partitions,
        "replication_factor": 1,
        "configs": [
            {
                "name": entry.name,
                "value": None if entry.sensitive else entry.value,
                "read_only": entry.read_only,
                "config_source": config_source(entry.source),
                "is_sensitive": entry.sensitive,
            }
            for entry in ctx.broker.new_topic_configs(wanted.configs)
        ]
        if ctx.api_version >= 5
        else [],
    }


def _refused_topic(name: str, error: TidemillError) -> dict[str, Any]:
    return {
        "name": name,
        "topic_id": None,
        "error_code": error_code(error),
        "error_message": error_message(error),
        "num_partitions": -1,
        "replication_factor": -1,
        "configs": [],
    }


@handles(20)
async def handle_delete_topics(ctx: RequestContext, request: Any) -> Tree:
    """DeleteTopics, by name or (v6, KIP-516) by id."""
    if ctx.api_version < 6:
        asked = [(name, None) for name in request.topic_names]
    else:
        asked = [(topic.name, topic.topic_id) for topic in request.topics]
    twice = _twice(asked)
    names: dict[_NameOrId, str] = {}
    ids: dict[_NameOrId, UUID | None] = {}
    outcomes: dict[_NameOrId, TidemillError | None] = {}
    for key in dict.fromkeys(asked):
        try:
            if key in twice:
                raise InvalidRequestError("Duplicate topic name or id.")
            name = _name_of(ctx, *key)
            if name in names.values():
                raise InvalidRequestError("The topic is named twice, by its name and by its id.")
            names[key] = name
            ids[key] = key[1] or _id_of(ctx, name)
        except TidemillError as error:
            outcomes[key] = error
    deleted = await ctx.broker.delete_topics(list(names.values()))
    outcomes.update(zip(names, deleted, strict=True))
    return {
        "responses": [
            {
                "name": names.get(key, key[0]),
                "topic_id": ids.get(key, key[1]),
                "error_code": error_code(outcomes[key]),
                "error_message": error_message(outcomes[key]),
            }
            for key in dict.fromkeys(asked)
        ]
    }


def _name_of(ctx: RequestContext, name: str | None, topic_id: UUID | None) -> str:
    if name is not None and topic_id is not None:
        raise InvalidRequestError("You may not specify both topic name and topic id.")
    if name is not None:
        return name
    if topic_id is None:
        raise InvalidRequestError("Neither topic name nor id were specified.")
    return ctx.broker.topic_by_id(topic_id).name


def _id_of(ctx: RequestContext, name: str) -> UUID | None:
    try:
        return ctx.broker.topic(name).topic_id
    except TidemillError:
        return None


@handles(37)
async def handle_create_partitions(ctx: RequestContext, request: Any) -> Tree:
    """CreatePartitions (KIP-195): the count named is the new total."""
    twice = _twice(topic.name for topic in request.topics)
    results = []
    for topic in {topic.name: topic for topic in request.topics}.values():
        refusal: TidemillError | None = None
        try:
            if topic.name in twice:
                raise InvalidRequestError("Duplicate topic in request.")
            await ctx.broker.create_partitions(
                topic.name,
                topic.count,
                None
                if topic.assignments is None
                else [list(assignment.broker_ids) for assignment in topic.assignments],
                request.validate_only,
            )
        except TidemillError as error:
            refusal = error
        results.append(
            {
                "name": topic.name,
                "error_code": error_code(refusal),
                "error_message": error_message(refusal),
            }
        )
    return {"results": results}


@handles(43)
def handle_elect_leaders(ctx: RequestContext, request: Any) -> Tree:
    """ElectLeaders (KIP-183, KIP-460). Asked for all partitions, those already led are left out."""
    if request.topic_partitions is None:
        return {"error_code": 0, "replica_election_results": []}
    results = []
    for topic in request.topic_partitions:
        outcomes = ctx.broker.elect_leaders([(topic.topic, p) for p in topic.partitions])
        results.append(
            {
                "topic": topic.topic,
                "partition_result": [
                    {
                        "partition_id": partition,
                        "error_code": error_code(outcome),
                        "error_message": error_message(outcome),
                    }
                    for partition, outcome in zip(topic.partitions, outcomes, strict=True)
                ],
            }
        )
    return {"error_code": 0, "replica_election_results": results}


@handles(45)
def handle_alter_partition_reassignments(ctx: RequestContext, request: Any) -> Tree:
    """AlterPartitionReassignments (KIP-455). Replicas None cancels a running reassignment."""
    responses = []
    for topic in request.topics:
        outcomes = ctx.broker.alter_reassignments(
            [
                (topic.name, p.partition_index, None if p.replicas is None else list(p.replicas))
                for p in topic.partitions
            ]
        )
        responses.append(
            {
                "name": topic.name,
                "partitions": [
                    {
                        "partition_index": partition.partition_index,
                        "error_code": error_code(outcome),
                        "error_message": error_message(outcome),
                    }
                    for partition, outcome in zip(topic.partitions, outcomes, strict=True)
                ],
            }
        )
    return {
        "allow_replication_factor_change": getattr(
            request, "allow_replication_factor_change", True
        ),
        "error_code": 0,
        "error_message": None,
        "responses": responses,
    }


@handles(46)
def handle_list_partition_reassignments(ctx: RequestContext, request: Any) -> Tree:
    """ListPartitionReassignments (KIP-455): with one broker none is ever running."""
    return {"error_code": 0, "error_message": None, "topics": []}


def _distinct(topics: Iterable[Any]) -> list[str]:
    return list(dict.fromkeys(topic.name for topic in topics))


def _twice(items: Iterable[Any]) -> set[Any]:
    return {item for item, count in Counter(items).items() if count > 1}
