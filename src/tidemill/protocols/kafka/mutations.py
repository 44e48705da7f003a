"""The quota of clients that create and delete partitions (KIP-599).

Newer versions of the requests refuse what is above it, and older ones are only slowed.
"""

from __future__ import annotations

from tidemill.protocols.kafka.apis import RequestContext
from tidemill.protocols.kafka.errors import ThrottlingQuotaExceededError

STRICT_SINCE = {19: 6, 20: 5, 37: 3}
"""API key -> the first version that refuses."""


def count_mutation(ctx: RequestContext, count: int) -> None:
    """Count partitions that a client creates or deletes.

    It holds the connection while the client has used more than its quota.

    Raises:
        ThrottlingQuotaExceededError: the client must not do it yet.
    """
    quotas = ctx.door.quotas
    if not quotas.quotas.with_mutations:
        return
    wait_ms = quotas.mutation_wait(ctx.client_id)
    is_refused = wait_ms > 0 and ctx.api_version >= STRICT_SINCE[ctx.api_key]
    if not is_refused:
        wait_ms = quotas.mutated(ctx.client_id, count)
    if wait_ms:
        ctx.throttle_ms = max(ctx.throttle_ms, wait_ms)
        ctx.connection.throttle(wait_ms)
    if is_refused:
        raise ThrottlingQuotaExceededError("The throttling quota has been exceeded.")
