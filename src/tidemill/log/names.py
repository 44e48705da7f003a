"""What topics, partitions and a segment's files are called, in memory and on disk.

Knows the naming rules only, which are Apache Kafka's; reads no files, knows no settings.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from tidemill.errors import InvalidTopicError

MAX_TOPIC_NAME = 249
"""Longest legal topic name in characters (Kafka: leaves room for the folder's suffixes)."""

LOG = ".log"
INDEX = ".index"
TIME_INDEX = ".timeindex"
TXN_INDEX = ".txnindex"
"""Aborted transactions of a segment; only where there are any."""
SNAPSHOT = ".snapshot"
DELETED = ".deleted"
CLEANED = ".cleaned"
SWAP = ".swap"
SEGMENT_SUFFIXES = (LOG, INDEX, TIME_INDEX, TXN_INDEX)

_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")
_FOLDER = re.compile(r"(?P<topic>[a-zA-Z0-9._-]+)-(?P<partition>[0-9]+)")


class TopicPartition(NamedTuple):
    """One partition of a topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def check_topic_name(name: str) -> None:
    """Apply Kafka's rules for topic names.

    Raises:
        InvalidTopicError: the name is empty, ``.``, ``..``, too long or has other characters than
            ASCII letters, digits, ``.``, ``_`` and ``-``.
    """
    if not name:
        raise InvalidTopicError("a topic name must not be empty")
    if name in (".", ".."):
        raise InvalidTopicError(f"a topic can't be called {name!r}")
    if len(name) > MAX_TOPIC_NAME:
        raise InvalidTopicError(
            f"topic name of {len(name)} characters: at most {MAX_TOPIC_NAME} are allowed"
        )
    if not _LEGAL.fullmatch(name):
        raise InvalidTopicError(
            f"topic name {name!r} has characters other than ASCII letters, digits, '.', '_', '-'"
        )


def folder_name(tp: TopicPartition) -> str:
    """The partition's folder below the data folder, as Kafka names it."""
    return f"{tp.topic}-{tp.partition}"


def parse_folder_name(name: str) -> TopicPartition | None:
    """The partition that a folder holds, or None where the name is not a partition's."""
    match = _FOLDER.fullmatch(name)
    if match is None:
        return None
    return TopicPartition(match["topic"], int(match["partition"]))


def file_name(offset: int, suffix: str) -> str:
    """A segment's or snapshot's file: ``00000000000000000042.log``."""
    return f"{offset:020d}{suffix}"
