"""``tidemill webhook run``: delivers webhooks in this process."""

from __future__ import annotations

import gc

from tidemill.cli.boards import Boards, Declared, Every, Names, until_signal
from tidemill.cli.options import BOOTSTRAP_DEFAULT, Bootstrap, Property
from tidemill.connect.webhooks.topics import WEBHOOKS

BOARDS = Boards("webhook", WEBHOOKS)


def run(
    names: Names = None,
    every: Every = False,
    declared: Declared = None,
    servers: Bootstrap = BOOTSTRAP_DEFAULT,
    properties: Property = None,
) -> None:
    """Deliver webhooks in this process, until Ctrl-C or SIGTERM.

    The worker of 'tidemill dev' and 'tidemill serve' is 'tidemill webhook run --all --declared
    FILE', with their settings file. A webhook has one worker: a second one takes over, and the
    first stops delivering it.
    """
    from tidemill.connect.webhooks.definition import Webhook
    from tidemill.connect.webhooks.manager import manager

    kafka = BOARDS.begin_run(Webhook, Webhook.decode, names, every, declared, servers, properties)
    # What waits is many small objects without cycles: collections would only look at them.
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    until_signal(manager(kafka, None if every else names).run)
