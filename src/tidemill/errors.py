"""The base class of all errors, the errors that every floor uses, and how they quote libraries.

Each floor has a module ``errors`` with its own errors: ``log.errors``, ``state.errors``,
``engine.errors``, ``net.errors``, ``protocols.kafka.errors`` and ``spark.errors``. This module must
not know any floor.
"""

from __future__ import annotations


def lower_first(text: str) -> str:
    """Return a library's sentence as the continuation of ours: ``Syntax error`` in lower case.

    The first word stays as it is if it is an abbreviation or a keyword: ``SSL``, ``SELECT``.
    """
    return text if text[1:2].isupper() else text[:1].lower() + text[1:]


class TidemillError(Exception):
    """Base of all errors that tidemill raises on purpose.

    The command line prints such an error as ``error:`` and ``hint:`` lines. A protocol server
    translates its type to an error code. Any other exception is a bug.

    Attributes:
        hint: what the caller can do about it, or an empty string.
        retriable: whether a producer sends a batch again that was rejected with this error. After
            all other errors it drops the batch or starts a new epoch.
    """

    default_hint = ""
    retriable = False

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = self.default_hint if hint is None else hint
        if self.hint:
            # Spark passes on nothing but the traceback of an error.
            self.add_note(f"hint: {self.hint}")


class SettingsError(TidemillError):
    """A setting is unknown, malformed or out of range. The user corrects it and starts again."""


class ExtensionError(TidemillError):
    """The compiled extension is missing, or was built from other sources. The user builds it."""

    default_hint = (
        "Compile it: in a checkout with 'python scripts/build_native.py', elsewhere with "
        "'pip install --force-reinstall --no-deps tidemill'."
    )


class UnknownTopicOrPartitionError(TidemillError):
    """The topic, or the partition of the topic, does not exist. The caller creates it first."""


class TopicExistsError(TidemillError):
    """A topic with this name already exists. The caller uses it, or another name."""


class ProtocolError(TidemillError):
    """The bytes of the other side violate the protocol. The connection is closed."""


class RequestTimedOutError(TidemillError):
    """The work was not finished in the time that the request allows. The caller can retry.

    The work possibly continues, so a retry must be safe.
    """


class UnreachableError(TidemillError):
    """No broker answers at the address. The caller checks the address, or starts a broker."""


class NotAllowedError(TidemillError):
    """The broker does not allow the user to do it. An administrator adds a rule."""


class StateConflictError(TidemillError):
    """It can't be done with what exists now, such as a group that has members."""


class OptionError(SettingsError):
    """An option of a source, a sink or a client is unknown, malformed or contradicts another."""


class DataLossError(TidemillError):
    """Records that were to be read next were removed from the log, or the topic was."""

    default_hint = (
        "Set failOnDataLoss to false to continue without them, or start with a new checkpoint."
    )


class DurationError(TidemillError):
    """A length of time is malformed, or has no fixed length."""


class ParseLimitError(TidemillError):
    """Values are too large in total to become Arrow columns in one step."""

    default_hint = "Read fewer records in one step: set maxOffsetsPerTrigger."


class SchemaError(TidemillError):
    """A schema is malformed, or rows don't match the schema of their table."""
