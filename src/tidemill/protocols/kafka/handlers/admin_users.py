"""Users that log in by SCRAM: DescribeUserScramCredentials and AlterUserScramCredentials (KIP-554).

The client hashes a password; the broker derives the keys from the salted password and forgets it.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from tidemill.engine.authorize import CLUSTER, Operation
from tidemill.errors import TidemillError
from tidemill.protocols.kafka.apis import Each, RequestContext, Tree, handles
from tidemill.protocols.kafka.error_codes import error_fields
from tidemill.state.errors import PolicyViolationError
from tidemill.state.security.errors import (
    DuplicateUserError,
    UnknownUserError,
    UnsupportedMechanismError,
)
from tidemill.state.security.scram import credential_of
from tidemill.state.security.types import ScramCredential, ScramMechanism

MECHANISMS = {1: ScramMechanism.SHA_256, 2: ScramMechanism.SHA_512}
"""Kafka's numbers of the mechanisms."""
_NUMBERS = {mechanism: number for number, mechanism in MECHANISMS.items()}
MOST_CHANGES = 250
"""Most changes in a request. They are made in one step."""

Described = dict[str, list[tuple[ScramMechanism, int]]]


@handles(50, refused=error_fields)
def handle_describe_user_scram_credentials(ctx: RequestContext, request: Any) -> Tree:
    """Answer DescribeUserScramCredentials: mechanisms and iterations, and never keys."""
    known = ctx.door.security.users()
    asked = Counter([each.name for each in request.users or ()])
    return {"results": Each(lambda user: _described(user, asked, known), list(asked or known))}


def _described(user: str, asked: Counter[str], known: Described) -> Tree:
    error: TidemillError | None = None
    if asked[user] > 1:
        error = DuplicateUserError(
            "Cannot describe SCRAM credentials for the same user twice in a single request: " + user
        )
    elif user not in known:
        error = UnknownUserError(
            "Attempt to describe a user credential that does not exist: " + user
        )
    infos = [
        {"mechanism": _NUMBERS[mechanism], "iterations": iterations}
        for mechanism, iterations in (() if error else known[user])
    ]
    return {"user": user, **error_fields(error), "credential_infos": infos}


@handles(51)
async def handle_alter_user_scram_credentials(ctx: RequestContext, request: Any) -> Tree:
    """Answer AlterUserScramCredentials. Of a user with an error, nothing changes."""
    names = dict.fromkeys(each.name for each in (*request.deletions, *request.upsertions))
    try:
        outcomes = await _altered(ctx, request)
    except TidemillError as error:
        outcomes = dict.fromkeys(names, error)
    return {
        "results": Each(
            lambda user: {"user": user, **error_fields(outcomes.get(user))}, list(names)
        )
    }


async def _altered(ctx: RequestContext, request: Any) -> dict[str, TidemillError | None]:
    ctx.door.access.check(Operation.ALTER, CLUSTER)  # before anything is computed
    count = len(request.deletions) + len(request.upsertions)
    if count > MOST_CHANGES:
        raise PolicyViolationError(
            f"the request has {count} changes of users", hint=f"Send at most {MOST_CHANGES}."
        )
    known: dict[str, TidemillError] = {}
    changes: list[tuple[str, ScramMechanism, ScramCredential | None]] = []
    for each in (*request.deletions, *request.upsertions):
        mechanism = MECHANISMS.get(each.mechanism)
        if mechanism is None:
            known[each.name] = UnsupportedMechanismError(f"unknown mechanism {each.mechanism}")
        elif hasattr(each, "salted_password"):
            keys = credential_of(mechanism, each.salted_password, each.salt, each.iterations)
            changes.append((each.name, mechanism, keys))
        else:
            changes.append((each.name, mechanism, None))
        await ctx.turns.pause_if_due()
    return await ctx.door.security.alter_users(changes, known)
