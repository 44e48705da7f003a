"""``tidemill acl``: creates, lists, deletes and explains rules of access."""

from __future__ import annotations

from typing import Annotated

import typer

from tidemill.cli import output
from tidemill.cli.acl.presets import (
    GroupNames,
    NameOfPurpose,
    Purpose,
    Read,
    Write,
    rules_for,
)
from tidemill.cli.acl.text import (
    operation_text,
    parse_host,
    parse_operations,
    parse_principal,
    parse_resource,
    resource_text,
    rule_dict,
    rule_text,
)
from tidemill.cli.broker_requests import requests_to
from tidemill.cli.client import Cluster
from tidemill.cli.options import LOCAL, Brokers, DryRun, Json, Yes, command_group
from tidemill.state.security.rules import Reason, Rules
from tidemill.state.security.types import WILDCARD, Rule

app = command_group("Create, list, delete and explain rules of access (ACLs).")

PrincipalName = Annotated[
    str, typer.Argument(metavar="USER", help="The user, e.g. alice; * for everyone.")
]
Operations = Annotated[
    str, typer.Argument(metavar="OPERATIONS", help="read, write, create, all …, with commas.")
]
ResourceName = Annotated[
    str,
    typer.Argument(
        metavar="RESOURCE", help="topic:NAME, topic:PREFIX*, topic:*, group:NAME, cluster …"
    ),
]
Deny = Annotated[bool, typer.Option("--deny", help="Deny it. That goes before what is allowed.")]
Host = Annotated[
    str, typer.Option("--from", metavar="ADDRESS", help="Only clients at this address.")
]
Literal = Annotated[
    bool, typer.Option("--literal", help="A * at the end is a part of the name, not a prefix.")
]
OnlyPrincipal = Annotated[
    str | None, typer.Option("--user", metavar="USER", help="Only rules that name this user.")
]
OnlyResource = Annotated[
    str | None, typer.Option("--resource", metavar="RESOURCE", help="Only rules that name this.")
]


@app.command()
def create(
    user: PrincipalName,
    operations: Operations,
    resource: ResourceName,
    deny: Deny = False,
    host: Host = WILDCARD,
    literal: Literal = False,
    brokers: Brokers = LOCAL,
) -> None:
    """Allow a user operations on a resource, or deny them."""
    from tidemill.cli.acl.requests import create_rules

    rules = _rules(user, operations, resource, host, deny=deny, literal=literal)
    with requests_to(Cluster.at(brokers)) as requests:
        create_rules(requests, rules)
    for rule in rules:
        print(f"created: {rule_text(rule)}")


@app.command()
def grant(
    user: PrincipalName,
    purpose: Purpose = None,
    of: NameOfPurpose = None,
    read: Read = None,
    write: Write = None,
    groups: GroupNames = None,
    brokers: Brokers = LOCAL,
) -> None:
    """Create the least rules of a pipeline, source, gateway, bridge, webhook, alerts, or of topics.

    The user can be one that tidemill makes itself, such as worker/gateway.
    """
    from tidemill.cli.acl.requests import create_rules

    rules = rules_for(user, purpose, of, read or [], write or [], groups or [])
    if not rules:
        raise output.UsageError("say what: --for, --read, --write or --group")
    with requests_to(Cluster.at(brokers)) as requests:
        create_rules(requests, rules)
    for rule in rules:
        print(f"created: {rule_text(rule)}")


@app.command("list")
def list_(
    user: OnlyPrincipal = None,
    resource: OnlyResource = None,
    as_json: Json = False,
    brokers: Brokers = LOCAL,
) -> None:
    """List rules."""
    from tidemill.cli.acl.requests import list_rules

    with requests_to(Cluster.at(brokers)) as requests:
        rules = [each for each in list_rules(requests) if _is_wanted(each, user, resource)]
    if as_json:
        output.emit_json([rule_dict(rule) for rule in rules])
        return
    output.emit_table(
        ["PRINCIPAL", "EFFECT", "OPERATION", "RESOURCE", "FROM"],
        [
            (
                rule.principal,
                "allow" if rule.allows else "deny",
                operation_text(rule.operation),
                resource_text(rule),
                rule.host,
            )
            for rule in sorted(rules, key=rule_text)
        ],
    )


@app.command()
def delete(
    user: OnlyPrincipal = None,
    resource: OnlyResource = None,
    operations: Annotated[
        str | None,
        typer.Option("--operation", metavar="OPERATIONS", help="Only rules with these operations."),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Delete all rules.")] = False,
    yes: Yes = False,
    dry_run: DryRun = False,
    brokers: Brokers = LOCAL,
) -> None:
    """Delete the rules that name a user or a resource."""
    from tidemill.cli.acl.requests import delete_rules, list_rules

    if user is None and resource is None and not everything:
        raise output.UsageError(
            "say which rules: --user, --resource, or --all",
            hint="Show them with: tidemill acl list",
        )
    wanted = None if operations is None else parse_operations(operations)
    with requests_to(Cluster.at(brokers)) as requests:
        rules = [
            each
            for each in list_rules(requests)
            if _is_wanted(each, user, resource) and (wanted is None or each.operation in wanted)
        ]
        if not rules:
            raise output.NotFoundError("no rule matches", hint="See: tidemill acl list")
        if not dry_run:
            output.confirm(f"Delete {output.plural(len(rules), 'rule')}?", yes=yes)
            delete_rules(requests, rules)
    for rule in rules:
        print(f"{'would delete' if dry_run else 'deleted'}: {rule_text(rule)}")


@app.command()
def explain(
    user: PrincipalName,
    operation: Annotated[str, typer.Argument(metavar="OPERATION", help="For example read.")],
    resource: ResourceName,
    host: Annotated[
        str, typer.Option("--from", metavar="ADDRESS", help="The address of the client.")
    ] = "127.0.0.1",
    as_json: Json = False,
    brokers: Brokers = LOCAL,
) -> None:
    """Say whether a user may do something, and which rule decides.

    The rules are the broker's, and they are judged here as the broker does.
    """
    from tidemill.cli.acl.requests import list_rules

    principal = parse_principal(user)
    kind, _, name = parse_resource(resource, literal=True)
    (asked,) = parse_operations(operation)[:1]
    with requests_to(Cluster.at(brokers)) as requests:
        rules = Rules(list_rules(requests))
        configs = requests.broker_configs(["super.users", "allow.everyone.if.no.acl.found"])
    found = rules.decide(
        principal,
        parse_host(host),
        asked,
        kind,
        name,
        super_users=frozenset((configs.get("super.users") or "").split(";")),
        allow_if_no_rules=configs.get("allow.everyone.if.no.acl.found") == "true",
    )
    why = rule_text(found.rule) if found.rule is not None else _REASONS[found.reason]
    if as_json:
        output.emit_json(
            {
                "allowed": found.allowed,
                "reason": found.reason.value,
                "rule": None if found.rule is None else rule_dict(found.rule),
            }
        )
        return
    print(f"{'allowed' if found.allowed else 'denied'}: {why}")


_REASONS = {
    Reason.SUPER_USER: "a super user may do everything",
    Reason.NO_RULES: "no rule is for this resource (allow.everyone.if.no.acl.found decides)",
    Reason.NOT_ALLOWED: "there are rules for this resource, and none allows it",
}


def _rules(
    user: str, operations: str, resource: str, host: str, *, deny: bool, literal: bool
) -> list[Rule]:
    kind, pattern, name = parse_resource(resource, literal=literal)
    principal, address = parse_principal(user), parse_host(host)
    return [
        Rule(kind, pattern, name, principal, address, operation, not deny)
        for operation in parse_operations(operations)
    ]


def _is_wanted(rule: Rule, user: str | None, resource: str | None) -> bool:
    # Other programs can have made rules for principals of another type.
    if user is not None and rule.principal not in (parse_principal(user), user):
        return False
    if resource is None:
        return True
    return (rule.kind, rule.pattern, rule.name) == parse_resource(resource)
