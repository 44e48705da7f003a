"""``tidemill source check``: says before anything starts what a database lacks."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidemill.cli import output
from tidemill.cli.options import LOCAL, Brokers, Json
from tidemill.cli.source.run import BOARDS
from tidemill.errors import TidemillError

if TYPE_CHECKING:
    from tidemill.connect.cdc.definition import Definition


class NotReadyError(TidemillError):
    """The database lacks something that capture needs."""


def check(
    what: Annotated[
        str, typer.Argument(metavar="FILE|NAME", help="A definition's file, or a source's name.")
    ],
    as_json: Json = False,
    brokers: Brokers = LOCAL,
) -> None:
    """Say what the database of a source lacks, and the statement that gives it.

    It connects from here, so secrets must be available here. Nothing is changed. A file needs no
    broker. The exit code is 1 if something prevents capture.
    """
    from tidemill.connect.cdc.contract import Finding
    from tidemill.connect.cdc.registry import source_class
    from tidemill.connect.cdc.routing import UNUSED_RULES, unused_rules

    definition = _definition(what, brokers)
    source = source_class(definition.kind)(definition.capture())
    try:
        found = source.check()
        tables = source.tables()
    finally:
        source.close()
    found += [
        Finding(
            "warning",
            f"what the definition says about table {name} has no effect: {UNUSED_RULES}",
            "Correct the name.",
        )
        for name in unused_rules(definition, tables)
    ]
    errors = [each for each in found if each.severity == "error"]
    if as_json:
        tables_shown = [{"table": each.id, "key": list(each.key)} for each in tables]
        output.emit_json({"findings": [asdict(each) for each in found], "tables": tables_shown})
    else:
        for each in found:
            print(f"{each.severity}: {each.text}")
            if each.fix:
                print(f"  {each.fix}")
        rows = [(each.id, ", ".join(each.key) or None, len(each.columns)) for each in tables]
        output.emit_table(("TABLE", "KEY", "COLUMNS"), rows)
    if errors:
        raise NotReadyError(
            f"source {definition.name} can't start: {output.plural(len(errors), 'problem')}",
            hint=errors[0].fix
            if len(errors) == 1
            else "Each error above has the statement that mends it.",
        )


def _definition(what: str, brokers: Brokers) -> Definition:
    from tidemill.connect.cdc.definition import Definition, read_file

    if Path(what).is_file() or what.endswith(".toml"):
        return read_file(Path(what))
    _, board = BOARDS.find(what, brokers)
    return Definition.decode(board.definitions[what])
