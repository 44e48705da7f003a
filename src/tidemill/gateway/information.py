"""``GET`` of topics, groups and their lag: what exists. It changes nothing."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from tidemill.gateway.answers import json_answer
from tidemill.gateway.parameters import Parameters
from tidemill.gateway.parts import Parts
from tidemill.gateway.server_sent import EVENT_STREAM
from tidemill.gateway.streaming import follow


async def get_topics(request: Request) -> Response:
    """Return all topics with their number of partitions, and internal ones if it is asked for."""
    parameters = Parameters(request)
    with_internal = parameters.word("internal", ("true", "false"), "false") == "true"
    parameters.end()
    found = await _parts(request).catalog.names()
    return json_answer(
        {
            "topics": [
                {"topic": name, "partitions": count}
                for name, count in found.items()
                if with_internal or not name.startswith("__")
            ]
        }
    )


async def get_topic(request: Request) -> Response:
    """Return a topic with the offsets of its partitions, or follow it."""
    if EVENT_STREAM in request.headers.get("accept", ""):
        return await follow(request)
    Parameters(request).end()
    catalog = _parts(request).catalog
    topic = await catalog.topic(request.path_params["topic"])
    ranges = await catalog.ranges(topic)
    return json_answer(
        {
            "topic": topic.name,
            "id": topic.id,
            "partitions": [
                {
                    "partition": number,
                    "start": start,
                    "end": end,
                    "link": f"/topics/{topic.name}/partitions/{number}",
                }
                for number, (start, end) in enumerate(ranges)
            ],
        }
    )


async def get_groups(request: Request) -> Response:
    """Return all consumer groups with their state."""
    Parameters(request).end()
    return json_answer({"groups": await _parts(request).catalog.groups()})


async def get_group(request: Request) -> Response:
    """Return a group with its lag on each partition."""
    Parameters(request).end()
    return json_answer(await _parts(request).catalog.group(request.path_params["group"]))


def _parts(request: Request) -> Parts:
    parts: Parts = request.app.parts
    return parts
