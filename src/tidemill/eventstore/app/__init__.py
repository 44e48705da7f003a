"""Applications over an event store: aggregates, process managers, projections, tests.

An aggregate is a plain class: its methods return events, and its ``apply…`` methods change it.
Nothing is inherited. Works on any store with the methods of ``events.Events``. Must not know:
brokers, the store's files.
"""

from tidemill.eventstore.app.async_repository import AsyncRepository
from tidemill.eventstore.app.codec import Codec
from tidemill.eventstore.app.context import Context
from tidemill.eventstore.app.history import MISSING, Change, Entry, audit, diff
from tidemill.eventstore.app.process import Cancel, Refused, Send, Timeout
from tidemill.eventstore.app.projections.contract import Projection, Rows
from tidemill.eventstore.app.projections.runner import ProjectionRunner
from tidemill.eventstore.app.repository import Done, Loaded, Repository, Retries
from tidemill.eventstore.app.snapshots import SnapshotFile, SnapshotPolicy
from tidemill.eventstore.app.worker import ProcessWorker

__all__ = [
    "MISSING",
    "AsyncRepository",
    "Cancel",
    "Change",
    "Codec",
    "Context",
    "Done",
    "Entry",
    "Loaded",
    "ProcessWorker",
    "Projection",
    "ProjectionRunner",
    "Refused",
    "Repository",
    "Retries",
    "Rows",
    "Send",
    "SnapshotFile",
    "SnapshotPolicy",
    "Timeout",
    "audit",
    "diff",
]
