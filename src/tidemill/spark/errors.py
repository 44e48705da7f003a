"""Errors of the Spark floor.

An error that crosses from a Python worker through the JVM arrives as the text of its traceback,
which has the hint as a note. This module must not know: Spark, Kafka clients, pipelines.
"""

from __future__ import annotations

from tidemill.errors import DataLossError as DataLossError
from tidemill.errors import OptionError as OptionError
from tidemill.errors import ParseLimitError as ParseLimitError
from tidemill.errors import SchemaError as SchemaError
from tidemill.errors import TidemillError
from tidemill.extras import how_to_install


class JavaNotFoundError(TidemillError):
    """Spark needs Java 17 or newer, and this machine has none."""

    default_hint = f"Install Java 17 or newer, or the package of one: {how_to_install('jre')}."


class JvmStartError(TidemillError):
    """Spark's JVM did not start, although Java was found."""


class OtherTopicError(DataLossError):
    """A topic has the name of the one that a checkpoint has read, and is another one."""

    default_hint = (
        "Use the brokers that the checkpoint belongs to, or start with a new checkpoint. Set "
        "failOnDataLoss to false to read the other topic from its beginning."
    )


class DeliveryError(TidemillError):
    """The broker did not accept records, so the batch is incomplete in the topic."""


class WindowError(TidemillError):
    """A window is malformed, or is used where none is allowed."""


class OutputModeError(TidemillError):
    """A streaming query can't run in its output mode with its windows and watermarks."""


class RecordError(TidemillError):
    """A record can't be parsed, and the query has no place for such records."""

    default_hint = (
        "Set the option mode to DROPMALFORMED to leave such records out. In a pipeline, declare "
        'the stream with dead_letters="TOPIC": they are then written to that topic.'
    )


class JoinError(TidemillError):
    """A join is malformed, or its inputs can't be joined."""


class PipelineError(TidemillError):
    """A pipeline can't be loaded, found or run."""


class MissingPackageError(PipelineError, ImportError):
    """A pipeline needs a Python package that is not installed.

    It is an ImportError, too, for programs that try whether an import works.
    """


class SinkError(TidemillError):
    """A database rejected a batch, or the rows of the batch are not valid for its table."""


class CheckpointRestoredError(TidemillError):
    """A checkpoint was restored from a backup, or copied, and the sink already holds the batch.

    Spark planned the batch again, possibly with other records.
    """


class RowError(SinkError):
    """A row has no key, or two rows of a batch have the same key."""


class PipelineRunningError(PipelineError):
    """Another process runs the pipeline."""

    default_hint = "Stop the other process first."
