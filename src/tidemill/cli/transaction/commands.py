"""``tidemill transaction``: the tree of its subcommands."""

from __future__ import annotations

import typer

from tidemill.cli.transaction.abort import abort
from tidemill.cli.transaction.describe import describe, list_
from tidemill.cli.transaction.find import find

app = typer.Typer(
    help="List, describe and abort transactions; find what holds readers back.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.command("list", short_help="List transactional ids, with their states.")(list_)
app.command(short_help="Show a transactional id and its open transaction.")(describe)
app.command()(find)
app.command()(abort)
