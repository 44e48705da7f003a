"""``tidemill source run``: runs sources in this process."""

from __future__ import annotations

import gc

from tidemill.cli.boards import Boards, Declared, Every, Names
from tidemill.cli.options import LOCAL, Brokers
from tidemill.cli.stopping import until_signal
from tidemill.connect.cdc.topics import SOURCES

BOARDS = Boards("source", SOURCES, ("kind",))


def run(
    names: Names = None,
    every: Every = False,
    declared: Declared = None,
    brokers: Brokers = LOCAL,
) -> None:
    """Run sources in this process, until Ctrl-C or SIGTERM.

    The worker of 'tidemill dev' and 'tidemill serve' is 'tidemill source run --all --declared
    FILE', with their settings file. A source has one worker: a second one fences the first, which
    then ends with an error.
    """
    from tidemill.connect.cdc.definition import Definition
    from tidemill.connect.cdc.manager import Manager

    kafka = BOARDS.begin_run(Definition, Definition.decode, names, every, declared, brokers)
    # A batch is thousands of small objects without cycles: collections would only look at them.
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    until_signal(Manager(kafka, None if every else names).run)
