"""Quotas of clients: DescribeClientQuotas and AlterClientQuotas (KIP-546)."""

from __future__ import annotations

from typing import Any

from tidemill.engine.authorize import CLUSTER, Operation
from tidemill.errors import TidemillError
from tidemill.protocols.kafka.apis import Each, RequestContext, Tree, handles
from tidemill.protocols.kafka.error_codes import error_fields
from tidemill.state.errors import InvalidRequestError
from tidemill.state.security.machine import LONGEST_NAME
from tidemill.state.security.types import DEFAULT, QuotaEntity, QuotaValues

FIELDS = {"user": "user", "client-id": "client_id", "ip": "ip"}
"""Kafka's types of entities -> fields of ``QuotaEntity``."""
_EXACT, _DEFAULT, _ANY = 0, 1, 2
MOST_COMPONENTS = 10

_Component = tuple[str, int, str | None]


@handles(48, refused=lambda error: {**error_fields(error), "entries": None})
async def handle_describe_client_quotas(ctx: RequestContext, request: Any) -> Tree:
    """Answer DescribeClientQuotas with the entities that a filter selects."""
    quotas = ctx.door.security.quotas()
    wanted = _filter(request.components)
    found = await ctx.turns.select(
        quotas.items(), lambda each: _selects(wanted, each[0], strict=request.strict)
    )
    return {"entries": Each(_entry, found)}


def _filter(components: Any) -> list[_Component]:
    if len(components) > MOST_COMPONENTS:
        raise InvalidRequestError(f"a filter of {len(components)} components is too long")
    found: list[_Component] = []
    for each in components:
        if each.entity_type not in FIELDS:
            raise InvalidRequestError(f"invalid entity type {each.entity_type!r}")
        if FIELDS[each.entity_type] in {field for field, _, _ in found}:
            raise InvalidRequestError(f"entity type {each.entity_type!r} is named twice")
        if each.match_type not in (_EXACT, _DEFAULT, _ANY) or (
            (each.match is not None) is not (each.match_type == _EXACT)
        ):
            raise InvalidRequestError(f"invalid match of entity type {each.entity_type!r}")
        found.append((FIELDS[each.entity_type], each.match_type, each.match))
    return found


def _selects(wanted: list[_Component], entity: QuotaEntity, *, strict: bool) -> bool:
    named = {field for field in FIELDS.values() if getattr(entity, field) is not None}
    for field, match_type, match in wanted:
        name = getattr(entity, field)
        if name is None or (match_type != _ANY and name != (match or DEFAULT)):
            return False
    return not strict or named == {field for field, _, _ in wanted}


def _entry(item: tuple[QuotaEntity, QuotaValues]) -> Tree:
    entity, values = item
    return {
        "entity": [
            {"entity_type": kind, "entity_name": getattr(entity, field) or None}
            for kind, field in FIELDS.items()
            if getattr(entity, field) is not None
        ],
        "values": [{"key": name, "value": value} for name, value in values.items()],
    }


@handles(49)
async def handle_alter_client_quotas(ctx: RequestContext, request: Any) -> Tree:
    """Answer AlterClientQuotas: each entity has its own result."""
    entries = []
    refusal = ctx.door.access.refusal(Operation.ALTER_CONFIGS, CLUSTER)  # before what is invalid
    for entry in request.entries:
        try:
            if refusal is not None:
                raise refusal
            changes = {op.key: None if op.remove else op.value for op in entry.ops}
            await ctx.door.security.alter_quota(_entity(entry), changes, request.validate_only)
            outcome = error_fields(None)
        except TidemillError as error:
            outcome = error_fields(error)
        entity = [
            {"entity_type": each.entity_type, "entity_name": each.entity_name}
            for each in entry.entity
        ]
        entries.append({**outcome, "entity": entity})
        await ctx.turns.pause_if_due()
    return {"entries": entries}


def _entity(entry: Any) -> QuotaEntity:
    fields: dict[str, str] = {}
    for each in entry.entity:
        field = FIELDS.get(each.entity_type)
        if field is None or field in fields:
            raise InvalidRequestError(f"invalid entity type {each.entity_type!r}, or named twice")
        if each.entity_name == DEFAULT or len(each.entity_name or "") > LONGEST_NAME:
            raise InvalidRequestError(f"the name of entity type {each.entity_type!r} is invalid")
        fields[field] = each.entity_name or DEFAULT
    return QuotaEntity(**fields)
