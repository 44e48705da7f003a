"""Errors of the Kafka side of connectors."""

from __future__ import annotations

from tidemill.errors import TidemillError

MAX_RECORD_BYTES = 16 << 20
"""The largest record that a producer sends. The topic's max.message.bytes must allow it."""


class DeliveryError(TidemillError):
    """A Kafka transaction failed and was aborted. The connector starts again from its position."""


class ProducerFencedError(TidemillError):
    """Another producer with the same transactional id has started. This one must stop."""


class TakenOverError(TidemillError):
    """Other workers have taken over all that this one was started for."""


class RecordTooLargeError(TidemillError):
    """A record is larger than the topic or the producer allows."""


class DefinitionExistsError(TidemillError):
    """A definition with this name already exists. The user takes another name, or replaces it."""


class DeclaredError(TidemillError):
    """A settings file declares it, so commands can't change it. The user edits the file."""


class RecordRefusedError(TidemillError):
    """A broker refuses a record for what is in it, for example its time."""


def fenced(transactional_id: str) -> ProducerFencedError:
    """Return the error of a producer whose transactional id another one has taken."""
    return ProducerFencedError(
        f"another producer with the transactional id {transactional_id} has started"
    )


def too_large(what: str, cause: str) -> RecordTooLargeError:
    """Return the error of a record that is larger than the producer or the topic allows.

    Args:
        what: what can't be done: a verb and its object.
        cause: the words of the broker or the client.
    """
    return RecordTooLargeError(
        f"can't {what}: {cause}",
        hint="Raise max.message.bytes of the topic (tidemill topic alter), up to "
        f"{MAX_RECORD_BYTES:,}.",
    )
