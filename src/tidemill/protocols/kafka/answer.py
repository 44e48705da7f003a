"""Answers one request: decodes it, calls its handler, and encodes the response.

The sizes of both are limited here, and what takes long is done in slices (``net.turns``). Knows no
connection and no order of requests: that is ``session``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine, Mapping
from typing import Any

from tidemill.errors import ProtocolError
from tidemill.kafka_codec.declared import API_VERSIONS
from tidemill.kafka_codec.headers import frame_response
from tidemill.kafka_codec.messages import (
    decode_request,
    decode_request_in_steps,
    encode_response,
    encode_response_in_steps,
    has_elements,
)
from tidemill.kafka_codec.primitives import Buffer
from tidemill.net.errors import RequestTooLargeError
from tidemill.parts import Part
from tidemill.protocols.kafka.apis import Api, Later, Reply, RequestContext
from tidemill.protocols.kafka.handlers.versions import unsupported_version_body

SMALL_BYTES = 2048
"""A request up to this size is decoded in one step: it has few elements."""
REQUEST_BYTES = 16_777_216
"""Largest request without records. The largest of real clients have the assignments of a group."""
RESPONSE_BYTES = 100_000_000
"""Largest response without records, also in librdkafka (receive.message.max.bytes)."""
WAITING_BYTES = 65_536
"""A response up to this size never waits for memory, so that slow readers delay no heartbeat."""
LEAST_ELEMENTS = 20_000
"""Elements that a request can have in any case: array elements and tagged fields."""
ELEMENTS_PER_PARTITION = 3
"""Elements that a request can have for each partition that the broker can have: its topic, itself,
and one to spare."""


Answer = list[Part] | Later | Coroutine[Any, Any, list[Part]]
"""A framed response, empty where there is none; or what returns it later. ``finish`` frames the
reply of a ``Later``."""


def answer(api: Api, ctx: RequestContext, view: memoryview, body: int) -> Answer | None:
    """Handle one request, whose body is at position ``body`` of ``view``.

    ``view`` can be reused when this returns and, if that is a coroutine, has run to its first wait.

    Returns:
        The response; None if the request has so many elements that it must be handled by
        ``answer_wide``.

    Raises:
        ProtocolError: the request can't be decoded.
        TidemillError: the handler refuses in a way that the API has no code for.
    """
    if api.decode is not None:
        request = api.decode(view, body, ctx.api_version)
        return None if api.is_wide(request) else _answered(ctx, api.handler(ctx, request))
    if len(view) <= SMALL_BYTES:
        request = decode_request(ctx.api_key, ctx.api_version, view, body)
        return _answered(ctx, api.handler(ctx, request))
    if len(view) > REQUEST_BYTES:
        raise RequestTooLargeError(
            f"a request of {len(view)} bytes without records is too large: at most "
            f"{REQUEST_BYTES} are allowed",
            hint="Send several requests with fewer elements each.",
        )
    return _answer_large(api, ctx, view, body)


def finish(ctx: RequestContext, later: Later, result: Any) -> list[Part]:
    """Return the response for the result that a reply has waited for."""
    answered = _answered(ctx, later.reply(result))
    assert isinstance(answered, list)
    return answered


async def answer_wide(api: Api, ctx: RequestContext, view: memoryview, body: int) -> list[Part]:
    """Handle one request that ``answer`` did not, in slices.

    ``view`` must not be reused until this returns.
    """
    assert api.decode is not None
    ctx.exclusive = True
    # What a client has produced is appended, although it may be gone.
    request = api.decode(view, body, ctx.api_version)
    return await _complete(ctx, _answered(ctx, api.handler(ctx, request)))


def refuse_version(
    apis: Mapping[int, Api], key: int, version: int, correlation_id: int
) -> list[Part]:
    """Answer ApiVersions with the versions that there are (KIP-511).

    Raises:
        ProtocolError: it is another API, as in Apache Kafka.
    """
    api = apis.get(key)
    if api is None or key != API_VERSIONS:
        what = f"API key {key}" if api is None else api.name
        raise ProtocolError(
            f"{what} version {version} is not supported",
            hint="Use a client that asks for the supported versions first (ApiVersions).",
        )
    return frame_response(API_VERSIONS, 0, correlation_id, [unsupported_version_body(apis)])


async def _answer_large(api: Api, ctx: RequestContext, view: memoryview, body: int) -> list[Part]:
    limit = max(LEAST_ELEMENTS, ELEMENTS_PER_PARTITION * ctx.door.settings.limits.partitions)
    request = await ctx.turns.run(
        decode_request_in_steps(ctx.api_key, ctx.api_version, view, body, limit)
    )
    return await _complete(ctx, _answered(ctx, api.handler(ctx, request)))


async def _complete(ctx: RequestContext, answered: Answer) -> list[Part]:
    """Wait for a response, in a task."""
    if isinstance(answered, list):
        return answered
    if not isinstance(answered, Later):
        return await answered
    result: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    answered.subscribe(lambda each: None if result.done() else result.set_result(each))
    return finish(ctx, answered, await result)


def _answered(ctx: RequestContext, reply: Reply | Later | Awaitable[Reply]) -> Answer:
    if isinstance(reply, bytes):
        return _framed(ctx, reply)
    if isinstance(reply, dict) and not has_elements(ctx.api_key, ctx.api_version):
        return _framed(ctx, encode_response(ctx.api_key, ctx.api_version, reply))
    if isinstance(reply, list):
        return frame_response(ctx.api_key, ctx.api_version, ctx.correlation_id, reply)
    if isinstance(reply, Later):
        return reply
    return [] if reply is None else _encoded(ctx, reply)


async def _encoded(ctx: RequestContext, reply: Reply | Awaitable[Reply]) -> list[Part]:
    """Encode a response in slices, when the handler has returned it."""
    if not isinstance(reply, dict):
        assert isinstance(reply, Awaitable)
        return await _complete(ctx, _answered(ctx, await reply))
    out = bytearray()
    steps = encode_response_in_steps(ctx.api_key, ctx.api_version, reply, out)
    for _ in steps:
        if ctx.turns.is_due:
            await _reserve(ctx, len(out))
            await ctx.turns.pause()
    await _reserve(ctx, len(out))
    return _framed(ctx, out)


async def _reserve(ctx: RequestContext, size: int) -> None:
    """Count a response in the making, unless it is small. A large one waits for memory."""
    ctx.turns.check()
    if size <= SMALL_BYTES:
        return
    if size > RESPONSE_BYTES:
        raise ProtocolError(
            f"the response has more than {RESPONSE_BYTES} bytes",
            hint="Ask for fewer topics, partitions or groups at a time.",
        )
    budget = ctx.connection.budget
    if size > WAITING_BYTES > budget.held and budget.share(size) is None:
        budget.hold(0)
        await budget.turn(size)
    budget.hold(size)


def _framed(ctx: RequestContext, body: Buffer) -> list[Part]:
    return frame_response(ctx.api_key, ctx.api_version, ctx.correlation_id, [body])
