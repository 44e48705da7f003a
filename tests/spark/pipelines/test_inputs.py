"""Building queries when Spark itself fails, without Spark."""

from __future__ import annotations

from typing import Any

import pytest

from tidemill.spark import Pipeline, TopicSink
from tidemill.spark.pipelines.declared import Query
from tidemill.spark.pipelines.inputs import BUILD_ATTEMPTS, Builder, Built
from tidemill.spark.pipelines.problems import Problem

BUSY = RuntimeError("Python worker failed to connect back.")


class Scripted(Builder):
    """Raises the given errors, one in each attempt, and then succeeds."""

    def __init__(self, pipeline: Pipeline, errors: list[Exception]) -> None:
        spark: Any = None
        super().__init__(spark, pipeline, {})
        self.errors = errors
        self.attempts = 0

    def build(self, query: Query) -> Built:
        self.attempts += 1
        if self.errors:
            raise self.errors.pop(0)
        df: Any = None
        return Built(query, df)


@pytest.fixture
def query() -> Query:
    pipeline = Pipeline("p")
    return pipeline.sql("q", "SELECT * FROM a", sink=TopicSink("b"))


def test_a_query_is_built_again_if_a_python_process_started_too_slowly(query: Query) -> None:
    builder = Scripted(Pipeline("p"), [BUSY] * (BUILD_ATTEMPTS - 1))

    assert isinstance(builder.try_build(query), Built)
    assert builder.attempts == BUILD_ATTEMPTS


def test_python_that_never_starts_is_reported_with_a_hint(query: Query) -> None:
    builder = Scripted(Pipeline("p"), [BUSY] * BUILD_ATTEMPTS)
    problem = builder.try_build(query)

    assert isinstance(problem, Problem)
    assert "failed to connect back" in problem.message
    assert "too busy" in problem.hint


def test_other_errors_are_reported_after_one_attempt(query: Query) -> None:
    builder = Scripted(Pipeline("p"), [ValueError("no such column")])

    assert isinstance(builder.try_build(query), Problem)
    assert builder.attempts == 1
