"""The names of topics, partitions, and the files of a partition.

The naming rules are Apache Kafka's. Reads no files and knows no settings.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from tidemill.log.errors import InvalidTopicError

MAX_TOPIC_NAME = 249
"""Longest valid topic name in characters. It leaves space for the suffixes of the folder name."""

LOG = ".log"
INDEX = ".index"
TIME_INDEX = ".timeindex"
TXN_INDEX = ".txnindex"
"""The index of aborted transactions. A segment without any has no such file."""
SNAPSHOT = ".snapshot"
DELETED = ".deleted"
"""Ending of files that retention or DeleteRecords has removed from the log."""
REPLACED = ".replaced"
"""Ending of files that compaction has replaced. ``DELETED`` shows recovery how the log's start
moved, so these files need another ending."""
CLEANED = ".cleaned"
SWAP = ".swap"
CUT_SUFFIX = "-cut"
"""Ending of a folder with bytes that were taken out of a partition. The broker never deletes it."""
SEGMENT_SUFFIXES = (LOG, INDEX, TIME_INDEX, TXN_INDEX)

_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")
_FILE = re.compile(r"(?P<offset>[0-9]{20})(?P<suffix>(\.[a-z]+)+)")
_FOLDER = re.compile(r"(?P<topic>[a-zA-Z0-9._-]+)-(?P<partition>[0-9]+)")


class TopicPartition(NamedTuple):
    """One partition of a topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def check_topic_name(name: str) -> None:
    """Check a topic name with Kafka's rules.

    Raises:
        InvalidTopicError: the name is empty, ``.``, ``..``, too long, or has characters other than
            ASCII letters, digits, ``.``, ``_`` and ``-``.
    """
    if not name:
        raise InvalidTopicError("invalid topic name '': it must not be empty")
    if name in (".", ".."):
        raise InvalidTopicError(f"invalid topic name {name!r}: it must not be '.' or '..'")
    if len(name) > MAX_TOPIC_NAME:
        raise InvalidTopicError(
            f"invalid topic name of {len(name)} characters: the limit is {MAX_TOPIC_NAME}"
        )
    if not _LEGAL.fullmatch(name):
        raise InvalidTopicError(
            f"invalid topic name {name!r}: use ASCII letters, digits, '.', '_' and '-'"
        )


def folder_name(tp: TopicPartition) -> str:
    """Return the name of a partition's folder in the data folder."""
    return f"{tp.topic}-{tp.partition}"


def parse_folder_name(name: str) -> TopicPartition | None:
    """Return the partition of a folder name, or None if it is not the name of a partition."""
    match = _FOLDER.fullmatch(name)
    if match is None:
        return None
    return TopicPartition(match["topic"], int(match["partition"]))


def parse_file_name(name: str) -> tuple[int, str] | None:
    """Return offset and suffix of a file name, or None if it is not one of ``file_name``."""
    match = _FILE.fullmatch(name)
    return None if match is None else (int(match["offset"]), match["suffix"])


def offsets_of(names: Iterable[str], suffix: str) -> list[int]:
    """Return the offsets of the files with a suffix, ascending."""
    return sorted(each[0] for each in map(parse_file_name, names) if each and each[1] == suffix)


def file_name(offset: int, suffix: str) -> str:
    """Return the name of a segment's or snapshot's file, like ``00000000000000000042.log``."""
    return f"{offset:020d}{suffix}"
