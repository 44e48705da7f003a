"""Users, rules, permissions and quotas as one pure state machine.

Commands return records; ``replay`` applies them, live and at start. Knows no door, no protocol and
no clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from tidemill.errors import TidemillError
from tidemill.state.errors import InvalidRequestError, PolicyViolationError
from tidemill.state.outcome import Outcome
from tidemill.state.security import format as stored
from tidemill.state.security.errors import (
    DuplicateUserError,
    InvalidCredentialError,
    UnknownUserError,
)
from tidemill.state.security.rules import Rules
from tidemill.state.security.scram import (
    DEFAULT_ITERATIONS,
    LEAST_ITERATIONS,
    MOST_ITERATIONS,
    decoy,
)
from tidemill.state.security.types import (
    CLUSTER_NAME,
    Permission,
    QuotaEntity,
    QuotaValues,
    ResourceKind,
    Rule,
    ScramCredential,
    ScramMechanism,
    TopicPermission,
)

K = TypeVar("K")
V = TypeVar("V")

MOST_ENTRIES = 100_000
"""Most users, most rules, most permissions and most quotas."""
LONGEST_NAME = 1024
"""Longest name of a user, a resource or a client in a record, in characters."""

Credentials = Mapping[ScramMechanism, ScramCredential]


class Security:
    """All that is known about who may do what.

    Args:
        secret: random bytes, from which the salts of unknown users are derived until the first
            user is created. They are stored with that user.

    Attributes:
        users: the keys of each user.
        admins: users who are super users. No client can change them.
        rules: the rules of access.
        permissions, topic_permissions: those of AMQP, by user, and by user and exchange.
        quotas: the values of each entity.
        version: a number that grows with each change.
    """

    def __init__(self, secret: bytes) -> None:
        self.users: dict[str, dict[ScramMechanism, ScramCredential]] = {}
        self.admins: set[str] = set()
        self.rules = Rules()
        self.permissions: dict[str, Permission] = {}
        self.topic_permissions: dict[tuple[str, str], TopicPermission] = {}
        self.quotas: dict[QuotaEntity, QuotaValues] = {}
        self.version = 0
        self._secret = secret
        self._is_secret_stored = False
        self._iterations: Counter[tuple[ScramMechanism, int]] = Counter()

    # --- state that survives a restart -----------------------------------------------------------

    def replay(self, key: bytes, value: bytes | None) -> bool:
        """Apply one record.

        Returns:
            False if the kind of the record is not supported. Then nothing changes.
        """
        found = stored.decode_key(key)
        kind, names = found[0], found[1:]
        if kind == stored.SCRAM:
            self._replay_scram(names, value)
        elif kind == stored.ADMIN:
            (self.admins.discard if value is None else self.admins.add)(names[0])
        elif kind == stored.RULE:
            rule = stored.decode_rule(found)
            (self.rules.remove if value is None else self.rules.add)(rule)
        elif kind == stored.PERMISSION:
            _put(self.permissions, names[0], stored.decode_permission, value)
        elif kind == stored.TOPIC_PERMISSION:
            at = (names[0], names[1])
            _put(self.topic_permissions, at, stored.decode_topic_permission, value)
        elif kind == stored.QUOTA:
            _put(self.quotas, stored.decode_entity(found), stored.decode_quota, value)
        elif kind == stored.SECRET and value is not None:
            self._secret, self._is_secret_stored = stored.decode_secret(value), True
        else:
            return False
        self.version += 1
        return True

    def _replay_scram(self, names: Sequence[str], value: bytes | None) -> None:
        user, mechanism = names[0], stored.decode_mechanism(names[1])
        keys = self.users.setdefault(user, {})
        before = keys.pop(mechanism, None)
        if before is not None:
            self._iterations[mechanism, before.iterations] -= 1
        if value is not None:
            keys[mechanism] = credential = stored.decode_scram(value)
            self._iterations[mechanism, credential.iterations] += 1
        if not keys:
            del self.users[user]

    # --- users -----------------------------------------------------------------------------------

    def credential(self, user: str, mechanism: ScramMechanism) -> ScramCredential | None:
        """Return the keys of a user; None if the user has none for the mechanism."""
        return self.users.get(user, {}).get(mechanism)

    def decoy(self, user: str, mechanism: ScramMechanism) -> ScramCredential:
        """Return keys that fit no password, for a user without any.

        Salt and iterations are those of an ordinary user, and the same each time.
        """
        counts = [
            (count, iterations)
            for (each, iterations), count in self._iterations.items()
            if each is mechanism and count
        ]
        iterations = max(counts)[1] if counts else DEFAULT_ITERATIONS
        return decoy(mechanism, user, self._secret, iterations)

    def alter_users(
        self,
        changes: Sequence[tuple[str, ScramMechanism, ScramCredential | None]],
        known: Mapping[str, TidemillError] | None = None,
    ) -> Outcome[dict[str, TidemillError | None]]:
        """Set keys of users, or delete them (None). Of a user with an error, nothing changes.

        Args:
            known: users whose part of the request is already known to be invalid.

        Returns:
            The error or None for each user.
        """
        errors: dict[str, TidemillError | None] = dict(known or {})
        seen: set[tuple[str, ScramMechanism]] = set()
        added = 0
        for user, mechanism, credential in changes:
            if errors.setdefault(user, None) is not None:
                continue
            if (user, mechanism) in seen:
                errors[user] = DuplicateUserError(
                    "A user credential cannot be altered twice in the same request"
                )
                continue
            seen.add((user, mechanism))
            errors[user] = self._check_change(user, mechanism, credential)
            if errors[user] is None and user not in self.users:
                added += 1
                errors[user] = _check_count(len(self.users) + added, "users")
        records = [
            stored.scram_record(user, mechanism, credential)
            for user, mechanism, credential in changes
            if errors[user] is None
        ]
        if records and not self._is_secret_stored:
            records.insert(0, stored.secret_record(self._secret))
        return Outcome(errors, records)

    def _check_change(
        self, user: str, mechanism: ScramMechanism, credential: ScramCredential | None
    ) -> TidemillError | None:
        if credential is None:
            if self.credential(user, mechanism) is None:
                return UnknownUserError(
                    f"Attempt to delete a user credential that does not exist: {user}"
                )
            return None
        if not user:
            return InvalidCredentialError("Username must not be empty")
        if len(user) > LONGEST_NAME:
            return InvalidCredentialError(
                f"the name of the user has {len(user)} characters: at most {LONGEST_NAME} are "
                "allowed"
            )
        if not LEAST_ITERATIONS <= credential.iterations <= MOST_ITERATIONS:
            return InvalidCredentialError(
                f"{credential.iterations} iterations are out of bounds",
                hint=f"Use {LEAST_ITERATIONS} to {MOST_ITERATIONS}.",
            )
        if not credential.salt:
            return InvalidCredentialError("the salt is empty")
        return None

    def set_admin(self, user: str, *, is_admin: bool) -> Outcome[None]:
        """Make a user a super user, or an ordinary one."""
        if (user in self.admins) is is_admin:
            return Outcome(None)
        return Outcome(None, [stored.admin_record(user, is_admin=is_admin)])

    # --- rules -----------------------------------------------------------------------------------

    def create_rules(self, rules: Sequence[Rule]) -> Outcome[list[TidemillError | None]]:
        """Add rules. One that exists already counts as added.

        Returns:
            The error or None for each.
        """
        errors: list[TidemillError | None] = []
        new: dict[Rule, None] = {}
        for rule in rules:
            error = check_rule(rule)
            if error is None and rule not in self.rules and rule not in new:
                error = _check_count(len(self.rules) + len(new) + 1, "rules")
                if error is None:
                    new[rule] = None
            errors.append(error)
        return Outcome(errors, [stored.rule_record(rule, exists=True) for rule in new])

    def delete_rules(self, rules: Iterable[Rule]) -> Outcome[None]:
        """Delete the rules that exist."""
        found = [rule for rule in dict.fromkeys(rules) if rule in self.rules]
        return Outcome(None, [stored.rule_record(rule, exists=False) for rule in found])

    # --- permissions -----------------------------------------------------------------------------

    def set_permission(self, user: str, permission: Permission | None) -> Outcome[None]:
        """Set the permissions of an AMQP user, or delete them.

        Raises:
            PolicyViolationError: there are too many.
        """
        if user not in self.permissions:
            if permission is None:
                return Outcome(None)
            _raise(_check_count(len(self.permissions) + 1, "permissions"))
        return Outcome(None, [stored.permission_record(user, permission)])

    def set_topic_permission(
        self, user: str, exchange: str, permission: TopicPermission | None
    ) -> Outcome[None]:
        """Set the topic permissions of an AMQP user on an exchange, or delete them.

        Raises:
            PolicyViolationError: there are too many.
        """
        at = (user, exchange)
        if at not in self.topic_permissions:
            if permission is None:
                return Outcome(None)
            _raise(_check_count(len(self.topic_permissions) + 1, "topic permissions"))
        return Outcome(None, [stored.topic_permission_record(user, exchange, permission)])

    # --- quotas ----------------------------------------------------------------------------------

    def alter_quota(
        self, entity: QuotaEntity, changes: Mapping[str, float | None]
    ) -> Outcome[None]:
        """Set quotas of an entity, or remove them (None).

        Raises:
            PolicyViolationError: there are too many.
        """
        before = self.quotas.get(entity, {})
        values = {**before, **changes}
        after = {name: value for name, value in values.items() if value is not None}
        if after == before:
            return Outcome(None)
        if entity not in self.quotas:
            _raise(_check_count(len(self.quotas) + 1, "quotas"))
        return Outcome(None, [stored.quota_record(entity, after)])


def check_rule(rule: Rule) -> TidemillError | None:
    """Return the reason why a rule is invalid, or None."""
    user, colon, name = rule.principal.partition(":")
    if not user or not colon or not name:
        return InvalidRequestError(
            f"invalid principal {rule.principal!r}: use a type, a colon and a name",
            hint="For example User:alice, or User:* for everyone.",
        )
    if not rule.name:
        return InvalidRequestError("the name of the resource is empty")
    if not rule.host:
        return InvalidRequestError("the host is empty", hint="Use * for every host.")
    if max(len(rule.name), len(rule.principal), len(rule.host)) > LONGEST_NAME:
        return InvalidRequestError(f"a name of the rule has more than {LONGEST_NAME} characters")
    if rule.kind is ResourceKind.EXCHANGE:
        return InvalidRequestError("a rule can't name an exchange")
    if rule.kind is ResourceKind.CLUSTER and rule.name != CLUSTER_NAME:
        return InvalidRequestError(f"the only name of the cluster is {CLUSTER_NAME!r}")
    return None


def _check_count(count: int, what: str) -> TidemillError | None:
    if count <= MOST_ENTRIES:
        return None
    return PolicyViolationError(f"there are {MOST_ENTRIES} {what} already: no more are allowed")


def _raise(error: TidemillError | None) -> None:
    if error is not None:
        raise error


def _put(table: dict[K, V], key: K, decode: Callable[[bytes], V], value: bytes | None) -> None:
    """Set the value of a record, or delete it where there is none."""
    if value is None:
        table.pop(key, None)
    else:
        table[key] = decode(value)
