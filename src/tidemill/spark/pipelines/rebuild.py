"""Rebuild the sink of a query: write it again from the beginning, beside the old one, and switch.

The query runs alone, with a checkpoint of its own and with the sink that ``Sink.beside`` returns,
until it has read all that is there. Meanwhile the pipeline may run. Then the sink is switched and
the query gets the new checkpoint, so that its next run continues where the rebuild has ended. A
file in the query's folder says that the switch has begun; each of its steps can be repeated, so the
same command completes a rebuild that was killed at any point. Must not know: the command line, any
one sink.
"""

from __future__ import annotations

import threading
from copy import copy
from dataclasses import dataclass, replace

from tidemill.errors import TidemillError
from tidemill.spark.errors import PipelineError, PipelineRunningError
from tidemill.spark.pipelines.checkpoint import Checkpoint, PipelineLock
from tidemill.spark.pipelines.declared import Pipeline, Query
from tidemill.spark.pipelines.progress import QueryStatus
from tidemill.spark.pipelines.runner import Runner, RunOptions, Warner, find_error
from tidemill.spark.pipelines.sql import suggestion
from tidemill.spark.pipelines.status_topic import Listener, delete_statuses
from tidemill.spark.sinks.base import Sink

SUFFIX = ".rebuild"
"""Added to the name of the pipeline for the folder and the statuses of its rebuilds."""


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """The result of a rebuild.

    Attributes:
        is_switched: whether the sink was switched; if not, the rebuild was stopped before.
        statuses: the last status of the rebuilding query; empty if only the switch was left to do.
    """

    is_switched: bool
    statuses: tuple[QueryStatus, ...] = ()


class Rebuild:
    """A rebuild of the sink of one query.

    Args:
        options: how to run it; it always runs until it has caught up, from the beginning.
        listener: called with each status that has changed.

    Raises:
        PipelineError: the pipeline does not have the query, or its sink can't be rebuilt.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        query: str,
        options: RunOptions,
        listener: Listener | None = None,
        warn: Warner | None = None,
    ) -> None:
        self._pipeline = pipeline
        self._query = _query(pipeline, query)
        self._beside = _beside(self._query)
        self._options = replace(options, until_caught_up=True, starting="earliest")
        self._listener = listener
        self._warn = warn
        self._alone = _alone(pipeline, self._query, self._beside)
        self._new = Checkpoint(options.state, self._alone.name, query)
        self._old = Checkpoint(options.state, pipeline.name, query)

    def run(self, stop: threading.Event | None = None) -> Rebuilt:
        """Rebuild the sink and switch it; continue a rebuild that was interrupted.

        Args:
            stop: ends the run before the switch when it is set by another thread.

        Raises:
            PipelineRunningError: the sink is rebuilt, but the pipeline runs, so it can't be
                switched.
            PipelineError: the query failed, or there was nothing to read.
            TidemillError: as ``Runner.run``, or the sink can't be switched.
        """
        stop = stop or threading.Event()
        if self._old.is_switching:
            self._switch()
            return Rebuilt(is_switched=True)
        if self._new.is_fresh:
            self._query.sink.discard()
        statuses = Runner(self._alone, self._options, self._listener, self._warn).run(stop)
        if error := find_error(statuses):
            raise error
        if stop.is_set():
            return Rebuilt(is_switched=False, statuses=tuple(statuses))
        if self._new.is_fresh:
            raise PipelineError(
                f"query {self._query.name} found nothing to read, so its sink is left as it is",
                hint="Check the topics: tidemill topic describe.",
            )
        self._switch()
        return Rebuilt(is_switched=True, statuses=tuple(statuses))

    def _switch(self) -> None:
        try:
            with PipelineLock(self._options.state, self._pipeline.name):
                self._old.begin_switch()
                self._query.sink.switch()
                self._old.adopt(self._new)
        except PipelineRunningError as error:
            raise PipelineRunningError(
                f"{self._beside.target} is rebuilt, but {error}",
                hint="Stop the pipeline, and run this command again: it continues, and switches.",
            ) from error
        kafka = {
            **self._pipeline.kafka,
            **self._options.kafka,
            "bootstrap.servers": self._options.bootstrap_servers,
        }
        try:
            delete_statuses(kafka, [f"{self._alone.name}/{self._query.name}"])
        except TidemillError as error:  # the rebuild is complete all the same
            if self._warn is not None:
                self._warn(f"The status of the rebuild stays in 'pipeline list': {error}.")


def _query(pipeline: Pipeline, name: str) -> Query:
    found = next((each for each in pipeline.queries if each.name == name), None)
    if found is None:
        names = [each.name for each in pipeline.queries]
        raise PipelineError(
            f"pipeline {pipeline.name} has no query {name}",
            hint=suggestion(name, names) or f"Its queries are {', '.join(names)}.",
        )
    return found


def _beside(query: Query) -> Sink:
    made = query.sink.beside()
    if made is None:
        raise PipelineError(
            f"query {query.name}: {type(query.sink).__name__} can't be rebuilt beside itself",
            hint="Declare the query with another sink and another name, and remove the old one "
            "when the new one has caught up.",
        )
    return made


def _alone(pipeline: Pipeline, query: Query, sink: Sink) -> Pipeline:
    """Return a pipeline with one query, which writes to another sink."""
    made = copy(pipeline)
    made.name = f"{pipeline.name}{SUFFIX}"
    made.queries = [replace(query, sink=sink)]
    made.writes_dead_letters = False
    return made
