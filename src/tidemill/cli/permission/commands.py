"""``tidemill permission``: sets, lists and deletes permissions of AMQP users.

Kafka's protocol has no request for them, so these commands ask over AMQP.
"""

from __future__ import annotations

from typing import Annotated

import typer

from tidemill.cli import output
from tidemill.cli.options import Json, Yes, command_group
from tidemill.cli.queue.options import URL_DEFAULT, Url, connect

app = command_group("Set, list and delete what AMQP users may do with queues and exchanges.")

UserName = Annotated[str, typer.Argument(metavar="USER", help="Name of the user.")]
Exchange = Annotated[
    str | None,
    typer.Option(
        "--exchange",
        metavar="NAME",
        help="Instead: which routing keys of this topic exchange.",
        show_default=False,
    ),
]
Configure = Annotated[
    str | None,
    typer.Option("--configure", metavar="REGEX", help="What the user may declare and delete."),
]
Write = Annotated[
    str | None, typer.Option("--write", metavar="REGEX", help="What it may publish to.")
]
Read = Annotated[
    str | None, typer.Option("--read", metavar="REGEX", help="What it may consume from.")
]


@app.command("set")
def set_(
    user: UserName,
    configure: Configure = None,
    write: Write = None,
    read: Read = None,
    exchange: Exchange = None,
    url: Url = URL_DEFAULT,
) -> None:
    """Set the permission of a user: expressions that are searched in names of queues and exchanges.

    An expression that is left out allows nothing. The default exchange is amq.default.
    """
    change = {"set": "permission", "user": user, "write": write or "", "read": read or ""}
    if exchange is None:
        change["configure"] = configure or ""
    elif configure is not None:
        raise output.UsageError("--exchange goes without --configure")
    else:
        change["exchange"] = exchange
    with connect(url) as client:
        client.ask(change)
    print(f"set the permission of {user}")


@app.command("list")
def list_(as_json: Json = False, url: Url = URL_DEFAULT) -> None:
    """List permissions."""
    with connect(url) as client:
        found = client.ask({"list": "permissions"})
    columns = output.titled("user", "exchange", "configure", "write", "read")
    output.emit_columns(columns, found, as_json=as_json)


@app.command()
def delete(
    user: UserName,
    exchange: Exchange = None,
    yes: Yes = False,
    url: Url = URL_DEFAULT,
) -> None:
    """Delete the permission of a user: it may do nothing any more over AMQP."""
    output.confirm(f"Delete the permission of {user}?", yes=yes)
    change = {"set": "permission", "user": user}
    if exchange is not None:
        change["exchange"] = exchange
    with connect(url) as client:
        client.ask(change)
    print(f"deleted the permission of {user}")
