"""Explanations of errors in the words of Spark 4.3."""

from __future__ import annotations

import pytest
from pyspark.errors import AnalysisException

from tidemill.errors import UnreachableError
from tidemill.spark.base.explain import cause_of, explain, hint_for, spark_message, with_hint
from tidemill.spark.errors import DataLossError, DeliveryError, OtherTopicError, PipelineError

BEFORE = (
    "[STREAM_FAILED] Query [id = 13bdd6c8-3b1c-492d-8bf8-85be9fe1a50a, runId = "
    "0e541f82-1630-447d-a55a-107c44d75670] terminated with exception: "
)
AFTER = """ SQLSTATE: XXKST
=== Streaming Query ===
Identifier: [id = 13bdd6c8-3b1c-492d-8bf8-85be9fe1a50a, runId = 0e541f82-1630-447d]
Current Committed Offsets: {}

Logical Plan:
WriteToMicroBatchDataSource noop-table
ValueError: this is not the error, but a plan
"""


def failed(text: str) -> str:
    return f"{BEFORE}{text}{AFTER}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "[STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE] Provided value schema does not match "
            "existing state value schema.\nPlease check number and type of fields.\nExisting "
            "value_schema=StructType(StructField(count,LongType,true)) and new ... SQLSTATE: XXKST",
            "the query keeps other columns in its state than its checkpoint has (Spark: Provided "
            "value schema does not match existing state value schema.)",
        ),
        (
            "[STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE] Provided key schema does not match existing "
            "state key schema.\nPlease check number and type of fields.",
            "the query keeps other columns in its state than its checkpoint has (Spark: Provided "
            "key schema does not match existing state key schema.)",
        ),
        (
            "[STREAMING_STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA] Streaming stateful operator "
            "name does not match with the operator in state metadata. This likely to happen when "
            "user adds/removes/changes stateful operator of existing streaming query.\nStateful "
            "operators in the metadata: [(OperatorId: 0 -> OperatorName: stateStoreSave)]; Stateful"
            " operators in current batch: []. SQLSTATE: 42K03",
            "the query keeps another kind of state than its checkpoint has (Spark: Streaming",
        ),
        (
            "assertion failed: There are [1] sources in the checkpoint offsets and now there are "
            "[2] sources requested by the query. Cannot continue.",
            "the query reads another number of topics than its checkpoint has (Spark: assertion",
        ),
        (
            "Checksum error: file:/data/offsets/0 at 0 exp: 1925678874 got: -808146341",
            "the query's checkpoint is damaged (Spark: Checksum error: file:/data/offsets/0",
        ),
        (
            "[CONCURRENT_STREAM_LOG_UPDATE] Concurrent update to the log. Multiple streaming jobs "
            "detected for 3.\nPlease make sure only one streaming job runs.",
            "another process runs this query: two can't share a checkpoint (Spark: Concurrent",
        ),
    ],
)
def test_what_can_t_be_helped_by_trying_again(text: str, message: str) -> None:
    found = explain(failed(text))

    assert found.message.startswith(message)
    assert found.is_final
    assert found.hint
    assert "SQLSTATE" not in found.message
    assert "\n" not in found.message


WORKER = """[PYTHON_EXCEPTION] An exception was thrown from the Python worker: Traceback (most \
recent call last):
  File "/home/me/flights.py", line 57, in minutes
    def minutes(x): raise ValueError("no good")
                    ^^^^^^^^^^^^^^^^^^^^^^^^^^^
ValueError: no good
 SQLSTATE: 38000"""

FOREACH = """[FOREACH_BATCH_USER_FUNCTION_ERROR] An error occurred in the user provided function \
in foreach batch sink. Reason: An exception was raised by the Python Proxy. Return Message: \
Traceback (most recent call last):
  File "/venv/lib/python3.11/site-packages/py4j/clientserver.py", line 644, in _call_proxy
    return_value = getattr(self.pool[obj_id], method)(*params)
  File "/home/me/flights.py", line 60, in upsert
    index(df)
  File "/venv/lib/python3.11/site-packages/search/client.py", line 7, in index
KeyError: 'mine'
 SQLSTATE: 39000"""

OURS = """[PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR] Failed when Python streaming data source \
perform latestOffset: Traceback (most recent call last):
  File "/venv/lib/python3.11/site-packages/tidemill/spark/planner.py", line 282, in _lost
    raise DataLossError(message)
tidemill.spark.errors.DataLossError: topic a is gone, or no longer subscribed to
hint: Set failOnDataLoss to false to go on without them, or start with a new checkpoint.
 SQLSTATE: 38000"""

NO_KEY = FOREACH.replace(
    "KeyError: 'mine'", "tidemill.spark.errors.RowError: 1 of 2 rows have no id"
)

RESTORED = FOREACH.replace(
    "KeyError: 'mine'", "tidemill.spark.errors.CheckpointRestoredError: batch 6 is planned again"
)

NO_ROW = WORKER.replace(
    "ValueError: no good",
    "tidemill.spark.errors.RecordError: topic t: the record at offset 2 of partition 0 can't be "
    "parsed: id is not INT: OutOfMemoryError\nhint: from the source",
)

UNREACHABLE = """[PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR] Failed: Traceback:
tidemill.errors.UnreachableError: no broker answers at localhost:9092
 SQLSTATE: 38000"""

CAST = """[CAST_INVALID_INPUT] The value 'x' of the type "STRING" cannot be cast to "INT" because \
it is malformed. SQLSTATE: 22018
== SQL (line 1, position 1) ==
cast(string(value) as int)"""


@pytest.mark.parametrize(
    ("text", "message", "is_final"),
    [
        (WORKER, "ValueError: no good (/home/me/flights.py:57)", False),
        (FOREACH, "KeyError: 'mine' (/home/me/flights.py:60)", False),
        (OURS, "topic a is gone, or no longer subscribed to", True),
        (UNREACHABLE, "no broker answers at localhost:9092", False),
        (NO_KEY, "1 of 2 rows have no id", True),
        (RESTORED, "batch 6 is planned again", True),
        (
            NO_ROW,
            "topic t: the record at offset 2 of partition 0 can't be parsed: id is not INT: "
            "OutOfMemoryError",
            True,
        ),
        (
            CAST,
            'The value \'x\' of the type "STRING" cannot be cast to "INT" because it is malformed',
            False,
        ),
        (
            "Python worker exited unexpectedly (crashed)",
            "Python worker exited unexpectedly (crashed)",
            False,
        ),
    ],
)
def test_errors_of_python_and_of_rows(text: str, message: str, is_final: bool) -> None:
    found = explain(failed(text))

    assert found.message == message
    assert found.is_final == is_final


def test_our_own_hint_comes_through() -> None:
    text = UNREACHABLE.replace(":9092", ":9092\nhint: Start one.")

    assert explain(failed(text)).hint == "Start one."


@pytest.mark.parametrize("error", [failed(OURS), DataLossError("topic a is gone")])
def test_a_lost_topic_comes_with_what_can_be_done_in_a_pipeline(error: str | Exception) -> None:
    found = explain(error, "tidemill pipeline reset flights --query late")

    assert found.hint == (
        "Reset the query to continue with the records that exist now: "
        "tidemill pipeline reset flights --query late"
    )


@pytest.mark.parametrize(
    ("message", "hint", "line"),
    [
        ("it was changed", "Reset it.", "it was changed. Reset it."),
        ("it was changed.", "Reset it.", "it was changed. Reset it."),
        ("it was changed", "", "it was changed"),
    ],
)
def test_a_message_and_its_hint_are_two_sentences(message: str, hint: str, line: str) -> None:
    assert with_hint(message, hint) == line


def test_memory_that_ran_out_comes_with_what_to_do() -> None:
    found = explain(failed("java.lang.OutOfMemoryError: Java heap space"))

    assert found.message.startswith("Spark ran out of memory")
    assert "max_offsets_per_trigger" in found.hint


@pytest.mark.parametrize(
    ("error", "is_final"),
    [
        (PipelineError("it was changed", hint="Reset it."), True),
        (UnreachableError("nobody there"), False),
        (DeliveryError("not accepted"), False),
    ],
)
def test_typed_errors_are_told_as_they_are(error: PipelineError, is_final: bool) -> None:
    found = explain(error)

    assert (found.message, found.hint, found.is_final) == (str(error), error.hint, is_final)


def test_what_spark_refuses_as_such_it_refuses_again() -> None:
    text = "[COLUMN_ALREADY_EXISTS] The column `id` already exists. SQLSTATE: 42711"

    found = explain(AnalysisException(text))

    assert (found.message, found.is_final) == ("The column `id` already exists", True)


def test_what_python_says_while_spark_plans_may_pass() -> None:
    text = UNREACHABLE.replace("STREAMING_DATA_SOURCE_RUNTIME", "DATA_SOURCE")

    found = explain(AnalysisException(text))

    assert (found.message, found.is_final) == ("no broker answers at localhost:9092", False)


def test_nothing_said_is_unknown() -> None:
    assert explain("").message == "unknown"
    assert spark_message(failed("")) == "unknown"


def test_an_unknown_column_without_codes_and_plan() -> None:
    text = (
        "[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column, variable, or function parameter with name "
        "`idd` cannot be resolved. Did you mean one of the following? [`id`, `n`]. SQLSTATE: 42703;"
        "\n'Project ['idd]\n+- LocalRelation"
    )
    assert spark_message(text) == (
        "A column, variable, or function parameter with name `idd` cannot be resolved. Did you mean"
        " one of the following? [`id`, `n`]"
    )


def test_spark_s_own_source_without_its_jar() -> None:
    text = "[KAFKA_DATA_SOURCE_NOT_ENABLED] Failed to find data source: kafka. SQLSTATE: 42K02"

    assert "spark-sql-kafka" in hint_for(text)
    assert hint_for("something else") == ""


@pytest.mark.parametrize(
    "text",
    [
        "org.apache.spark.SparkException: Python worker failed to connect back.",
        "Timed out while waiting for the Python worker to connect back after 10000 ms",
    ],
)
def test_a_python_process_that_did_not_answer_is_the_machine_s_fault(text: str) -> None:
    found = explain(failed(text))

    assert found.is_busy
    assert not found.is_final
    assert "did not answer Spark within its 10 seconds" in found.message
    assert "more cores" in found.hint
    assert "10 seconds" in hint_for(text)


@pytest.mark.parametrize(
    "error", [failed(OURS.replace("DataLossError", "OtherTopicError")), OtherTopicError("topic a")]
)
def test_another_topic_of_the_same_name_has_a_hint_about_moving(error: str | Exception) -> None:
    found = explain(error, "tidemill pipeline reset flights --query late")

    assert found.is_final
    assert "'Move a pipeline' in the guide to pipelines" in found.hint
    assert found.hint.endswith(": tidemill pipeline reset flights --query late")


def test_an_error_in_a_notebook_begins_with_its_cause() -> None:
    text = cause_of(failed(OURS))

    assert text.splitlines()[:4] == [
        "topic a is gone, or no longer subscribed to",
        "hint: Set failOnDataLoss to false to go on without them, or start with a new checkpoint.",
        "",
        "Spark's message:",
    ]
    assert text.endswith(failed(OURS))
    assert cause_of(text) == text


@pytest.mark.parametrize("text", [WORKER, FOREACH, OURS, UNREACHABLE, NO_KEY, NO_ROW])
def test_the_cause_before_an_error_changes_nothing_for_a_pipeline(text: str) -> None:
    shown = cause_of(failed(text))

    assert explain(shown) == explain(failed(text))
    assert spark_message(shown) == spark_message(failed(text))
    assert shown.startswith(explain(failed(text)).message)


def test_what_spark_says_first_is_not_said_twice() -> None:
    text = "[UNRESOLVED_COLUMN] A column with name `x` cannot be resolved. SQLSTATE: 42703"

    assert cause_of(text) == text


def test_a_notebook_gets_no_commands_for_pipelines() -> None:
    for known in ("OutOfMemoryError: heap", "Checksum error: file:/data/offsets/0", BUSY):
        assert "tidemill pipeline" not in cause_of(failed(known)).partition("Spark's message")[0]
    assert "is started again" not in cause_of(failed(BUSY))


@pytest.mark.parametrize("module", ["tidemill", "tidemill.spark", "confluent_kafka", "pyarrow"])
def test_a_worker_with_another_python_is_explained(module: str) -> None:
    text = f"Traceback:\nModuleNotFoundError: No module named '{module}'"

    assert "set PYSPARK_PYTHON" in explain(failed(text)).hint
    assert cause_of(failed(text)).splitlines()[1].startswith("hint: Spark's Python workers run")
    assert explain(failed(text.replace(module, "mine"))).hint == ""


def test_a_data_source_that_another_python_does_not_have_is_explained() -> None:
    text = (
        "[DATA_SOURCE_NOT_FOUND] Failed to find the data source: tidemill. Make sure the provider"
    )

    assert "set PYSPARK_PYTHON" in hint_for(text)
    assert hint_for(text.replace("tidemill", "delta")) == ""


BUSY = "Python worker failed to connect back."
