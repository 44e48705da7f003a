"""Run the syncs of many partitions together. Knows tickets only, and not who waits for them."""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.log.partition.sync import SyncTicket

MANY_FOLDERS = 8
"""Number of new folders from which one sync of the whole file system is cheaper."""


def run_tickets(tickets: Sequence[SyncTicket]) -> None:
    """Run many tickets; blocks. Can run in any thread.

    Each sync of a folder flushes the disk, and creating a topic can create a thousand partitions.
    So many new folders share one sync of the whole file system.

    Raises:
        SyncFailedError, StorageError: see ``SyncTicket.run``.
    """
    new = [ticket for ticket in tickets if ticket.new_folder]
    if len(new) >= MANY_FOLDERS:
        env, parent = new[0].environment, new[0].folder.rpartition("/")[0]
        with env.pool.sync_errors(parent):
            all_synced = env.fs.sync_all(parent)
        for ticket in new:
            ticket.folder_done = all_synced
    for ticket in tickets:
        ticket.run()
