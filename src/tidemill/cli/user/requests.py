"""Requests about users (KIP-554), over the Kafka protocol. This module must not print.

The password stays here: the broker gets the salted password, and stores keys.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from tidemill.cli.output import NotFoundError
from tidemill.kafka_client.admin.requests import BrokerRequests, check_error_code
from tidemill.kafka_client.errors import RefusedError
from tidemill.state.security.scram import DEFAULT_ITERATIONS, SALT_BYTES, salted
from tidemill.state.security.types import ScramMechanism

DESCRIBE_USERS, ALTER_USERS = 50, 51
_VERSIONS = (0, 0)
_NUMBERS = {ScramMechanism.SHA_256: 1, ScramMechanism.SHA_512: 2}
_MECHANISMS = {number: mechanism for mechanism, number in _NUMBERS.items()}


def list_users(requests: BrokerRequests) -> Mapping[str, list[tuple[ScramMechanism, int]]]:
    """Return the mechanisms and iterations of each user."""
    response = requests.ask(None, DESCRIBE_USERS, _VERSIONS, {"users": None})
    check_error_code(response.error_code, "the users", response.error_message)
    return {
        each.user: [
            (_MECHANISMS[info.mechanism], info.iterations) for info in each.credential_infos
        ]
        for each in response.results
    }


def set_password(
    requests: BrokerRequests,
    user: str,
    password: str,
    mechanisms: Sequence[ScramMechanism],
    iterations: int = DEFAULT_ITERATIONS,
) -> None:
    """Create a user, or change its password."""
    upsertions = []
    for mechanism in mechanisms:
        salt = secrets.token_bytes(SALT_BYTES)
        upsertions.append(
            {
                "name": user,
                "mechanism": _NUMBERS[mechanism],
                "iterations": iterations,
                "salt": salt,
                "salted_password": salted(mechanism, password, salt, iterations),
            }
        )
    _alter(requests, {"deletions": [], "upsertions": upsertions})


def delete_user(requests: BrokerRequests, user: str) -> None:
    """Delete all keys of a user.

    Raises:
        NotFoundError: there is no such user.
    """
    found = list_users(requests).get(user)
    if found is None:
        raise NotFoundError(f"there is no user {user!r}", hint="See: tidemill user list")
    deletions = [{"name": user, "mechanism": _NUMBERS[mechanism]} for mechanism, _ in found]
    _alter(requests, {"deletions": deletions, "upsertions": []})


def is_last_super_user(requests: BrokerRequests, user: str) -> bool:
    """Return whether a user is a super user, and no other one has a password.

    A broker that does not tell the user of this command who they are has none, as far as is known.
    """
    try:
        known = requests.broker_configs(["super.users"]).get("super.users") or ""
    except RefusedError:
        return False
    admins = set(known.split(";"))
    others = list_users(requests).keys() - {user}
    return f"User:{user}" in admins and not any(f"User:{each}" in admins for each in others)


def _alter(requests: BrokerRequests, tree: dict[str, Any]) -> None:
    response = requests.ask(None, ALTER_USERS, _VERSIONS, tree)
    for each in response.results:
        check_error_code(each.error_code, f"user {each.user!r}", each.error_message)
