"""Finds out whether the addresses that brokers give to clients can be reached from here.

A client connects to an address of ``bootstrap.servers``, and then to those that the metadata names.
If the names are wrong, librdkafka tries them until its timeout, without a word. Must not know:
librdkafka, how its users name their settings.
"""

from __future__ import annotations

import socket
import time

from tidemill.kafka_client.brokers import Brokers
from tidemill.kafka_client.settings import Address, ConnectionSettings
from tidemill.kafka_codec.declared import METADATA, needs

MOST_TRIED = 3
"""Addresses of a cluster that are tried: if one of them answers, the names are right."""


def unreachable_names(settings: ConnectionSettings, timeout_s: float) -> tuple[Address, str] | None:
    """Return an address that clients get, and why it can't be reached; None if one can be.

    Args:
        timeout_s: how long a broker can take to accept a connection, and to answer.

    Raises:
        ConnectionFailedError: no broker answers at the addresses of the settings.
        ConnectionRejectedError: the broker rejects the login, or TLS fails.
        OSError: a certificate or key can't be read.
    """
    brokers = Brokers(settings, {})
    try:
        connection = brokers.any(time.monotonic() + timeout_s)
        connection.agree(needs(METADATA))
        tree = {"topics": [], "allow_auto_topic_creation": False}
        found = connection.request(METADATA, tree, timeout_s)
    finally:
        brokers.close()
    named = [Address(each.host, each.port) for each in found.brokers]
    if not named or set(named) & set(settings.servers):
        return None
    reasons = {each: why_unreachable(each, timeout_s) for each in named[:MOST_TRIED]}
    if not all(reasons.values()):
        return None
    return named[0], reasons[named[0]]


def why_unreachable(address: Address, timeout_s: float) -> str:
    """Return why no connection to an address is possible; an empty text if it is."""
    try:
        socket.create_connection(address, timeout_s).close()
    except (OSError, UnicodeError) as error:  # a name can be no name at all
        return str(getattr(error, "strerror", None) or error).lower()
    return ""
