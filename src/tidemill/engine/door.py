"""The engine as one principal sees it: all parts, each with its access checks.

A protocol gets a door for each connection and calls ``door.records.append(...)``,
``door.topics.get(...)`` and so on. There is no other way into the engine. Knows no protocol.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidemill.clock import Clock
from tidemill.engine.authorize import Access
from tidemill.engine.groups.groups import Groups, GroupServices
from tidemill.engine.queues.core import QueueCore
from tidemill.engine.queues.queues import Queues
from tidemill.engine.records.records import Records, RecordServices
from tidemill.engine.shares.shares import Shares, ShareServices
from tidemill.engine.storage import Storage, StorageServices
from tidemill.engine.topics.admin import TopicAdmin
from tidemill.engine.topics.configs import Configs
from tidemill.engine.topics.topics import Topics
from tidemill.engine.transactions.transactions import Transactions, TransactionServices
from tidemill.settings import Settings


@dataclass(frozen=True, slots=True)
class Services:
    """The objects behind all parts of a door, shared by all principals."""

    settings: Settings
    clock: Clock
    records: RecordServices
    topics: TopicAdmin
    groups: GroupServices
    transactions: TransactionServices
    storage: StorageServices
    queues: QueueCore
    shares: ShareServices


class Door:
    """The parts of the engine for one principal.

    Attributes:
        access: answers whether the principal may do something. Every part asks it first. A protocol
            asks it for operations that only the protocol has.
        settings: the broker's settings.
        clock: the broker's time.
        records: append and read.
        topics: look up, create and delete topics.
        configs: read and change configs.
        groups: consumer groups and committed offsets.
        transactions: producers and transactions.
        storage: the data folder.
        queues: queues, exchanges and bindings.
        shares: records of share groups.
    """

    __slots__ = (
        "access",
        "clock",
        "configs",
        "groups",
        "queues",
        "records",
        "settings",
        "shares",
        "storage",
        "topics",
        "transactions",
    )

    def __init__(self, services: Services, access: Access) -> None:
        self.access = access
        self.settings = services.settings
        self.clock = services.clock
        self.records = Records(services.records, access)
        self.topics = Topics(services.topics, access)
        self.configs = Configs(services.topics, access)
        self.groups = Groups(services.groups, access)
        self.transactions = Transactions(services.transactions, access)
        self.storage = Storage(services.storage, access)
        self.queues = Queues(services.queues, access)
        self.shares = Shares(services.shares, access)
