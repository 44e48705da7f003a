"""Read the topics of a pipeline's streams: records, typed rows, or the records that are refused.

The data source ``tidemill`` parses values itself. With Spark's own connector, the same parser runs
in Python workers behind it. Must not know: queries, sinks, checkpoints.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tidemill.spark.base.ddl import columns, escaped
from tidemill.spark.pipelines.check_inputs import RAW_SCHEMA, stream_columns
from tidemill.spark.pipelines.declared import Stream
from tidemill.spark.pipelines.reading.used_columns import used_columns
from tidemill.spark.source.planning.parsing import REASON, RECORD_COLUMNS, RowPlan
from tidemill.spark.source.refusals import Reports
from tidemill.spark.source.used_columns import UsedColumns

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

TIME = "_timestamp"
"""The column of typed rows with the time at which a record was appended."""

_USED = "columns.used"
"""The option with the file that names the columns of the value that have values."""
RECORDS, ROWS, REFUSED = "records", "rows", "refused"


class StreamSource:
    """Loads the topics of streams.

    Args:
        starting: where new queries begin; None leaves it to each stream.
        source_format: the data source: ``tidemill``, or Spark's own ``kafka``.
        is_local: whether tasks run on this machine, so that they can report what they refuse.
    """

    def __init__(
        self,
        spark: SparkSession,
        kafka: Mapping[str, str],
        starting: str | int | None = None,
        source_format: str = "tidemill",
        *,
        is_local: bool = False,
    ) -> None:
        self._spark = spark
        self._kafka = kafka
        self._starting = starting
        self._format = source_format
        self._is_local = is_local
        self._loaded: dict[tuple[str, str], DataFrame] = {}
        self._reports: dict[str, Reports | None] = {}
        self._used: dict[str, UsedColumns] = {}

    def records(self, stream: Stream) -> DataFrame:
        """Return the records, with the columns of the Kafka source."""
        return self._once(stream, RECORDS)

    def rows(self, stream: Stream) -> DataFrame:
        """Return the records as rows, with the columns of the schema and with ``TIME``.

        A record that can't be parsed is left out if the stream has a topic for dead letters. If
        not, it fails the query.
        """
        return self._once(stream, ROWS)

    def refused(self, stream: Stream) -> DataFrame:
        """Return the records that can't be parsed, with the columns of the source and the
        reason."""
        return self._once(stream, REFUSED)

    def _once(self, stream: Stream, what: str) -> DataFrame:
        # Spark starts a Python process to load a source, so each stream is loaded once.
        key = (stream.name, what)
        if key not in self._loaded:
            self._loaded[key] = self._load(stream, what)
        return self._loaded[key]

    def _load(self, stream: Stream, what: str) -> DataFrame:
        reader: Any = self._spark.readStream.format(self._format).options(**self.options(stream))
        if what == RECORDS:
            return _load(reader.option("includeHeaders", "true"))
        plan = row_plan(stream, refused=what == REFUSED)
        if what == ROWS and (reports := self.reports(stream)) is not None:
            plan = replace(plan, report=reports.path)
        if what == ROWS and self._is_local and self._format == "tidemill":
            with contextlib.suppress(OSError):  # then all columns have values
                used = UsedColumns()
                self._used[used.path] = used
                plan = replace(plan, used=used.path)
        if self._format == "tidemill":
            return _load(reader.options(**parsing_options(plan)))
        return parsed_in_workers(_load(reader.option("includeHeaders", "true")), plan)

    def reports(self, stream: Stream) -> Reports | None:
        """Return where tasks report what they refuse of a stream; None if they report nothing."""
        if stream.name not in self._reports:
            has_letters = stream.dead_letters is not None and self._format == "tidemill"
            made = None
            if self._is_local and has_letters:
                with contextlib.suppress(OSError):  # then all records are read a second time
                    made = Reports()
            self._reports[stream.name] = made
        return self._reports[stream.name]

    def limit_columns(self, results: Iterable[DataFrame]) -> None:
        """Give values only to the columns that queries use; the others are null.

        Args:
            results: the results of all queries that will run. None of them runs yet.
        """
        if not self._used:
            return
        found: dict[str, frozenset[str]] = {}
        for each in results:
            columns = used_columns(each, _USED)
            if columns is None:
                return
            for path, names in columns.items():
                found[path] = found.get(path, frozenset()) | names
        for path, names in found.items():
            with contextlib.suppress(OSError):
                self._used[path].write(names)

    def options(self, stream: Stream) -> dict[str, str]:
        """Return the options with which the records of a stream are read."""
        found = {f"kafka.{key}": value for key, value in self._kafka.items()}
        found["subscribe"] = stream.topic
        starting = stream.starting if self._starting is None else self._starting
        if isinstance(starting, int):
            found["startingTimestamp"] = str(starting)
            found["startingOffsetsByTimestampStrategy"] = "latest"
        else:
            found["startingOffsets"] = starting
        if stream.max_offsets_per_trigger is not None:
            found["maxOffsetsPerTrigger"] = str(stream.max_offsets_per_trigger)
        return found


def row_plan(stream: Stream, *, refused: bool = False) -> RowPlan:
    """Return how the records of a stream become rows.

    Args:
        stream: the stream; its schema is valid.
    """
    # Without NOT NULL and comments: any field of a value may be missing.
    made = stream_columns(stream)
    fields = [f"{escaped(each.name)} {each.type}" for each in made]
    if TIME not in {each.name for each in made}:
        fields.append(f"{TIME} {RECORD_COLUMNS[TIME]}")
    return RowPlan(
        schema=", ".join(fields),
        format=stream.format,
        event_time=stream.event_time,
        timestamp_format=stream.timestamp_format,
        drop_malformed=stream.dead_letters is not None,
        refused=refused,
    )


def parsing_options(plan: RowPlan) -> dict[str, str]:
    """Return a plan as options of the data source ``tidemill``."""
    options = {
        "value.format": plan.format,
        "value.schema": plan.schema,
        "timestamp.format": plan.timestamp_format,
        "mode": "DROPMALFORMED" if plan.drop_malformed else "FAILFAST",
    }
    if plan.event_time is not None:
        options["event.time"] = plan.event_time
    if plan.report is not None:
        options["refusals.report"] = plan.report
    if plan.used is not None:
        options[_USED] = plan.used
    if plan.refused:
        options |= {"rows": "refused", "includeHeaders": "true"}
    return options


def _load(reader: Any) -> DataFrame:
    loaded: DataFrame = reader.load()
    return loaded


def parsed_in_workers(records: DataFrame, plan: RowPlan) -> DataFrame:
    """Parse records in Python workers.

    Args:
        records: the records, with the columns of the Kafka source, ``headers`` among them.

    Returns:
        The rows, with the columns of the plan's schema; or the refused records, with the columns
        of the source and the reason.
    """
    picked = records.select(*[each.name for each in columns(RAW_SCHEMA)])
    made = f"{RAW_SCHEMA}, {REASON} STRING" if plan.refused else plan.schema
    return picked.mapInArrow(_parser_of(plan), made)


def _parser_of(
    plan: RowPlan,
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def parse(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from tidemill.spark.source.rows import parse_records

        return parse_records(batches, plan)

    return parse
