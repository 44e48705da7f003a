"""A query's folder: its identity, its shape, its lock."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tidemill.errors import PipelineError, PipelineRunningError
from tidemill.spark.checkpoint import Checkpoint, Identity, PipelineLock, Shape, queries_of

SHAPE = Shape(("topic a",), "update", ("aggregate count(1) by id", "  topic a with id string"), "1")


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    return Checkpoint(tmp_path, "flights", "hourly")


@pytest.fixture
def used(checkpoint: Checkpoint) -> Checkpoint:
    """One that a query of SHAPE has run with."""
    checkpoint.adopt(SHAPE)
    checkpoint.spark_folder.mkdir()
    return checkpoint


def test_the_identity_lasts(checkpoint: Checkpoint, tmp_path: Path) -> None:
    made = checkpoint.identity()
    again = Checkpoint(tmp_path, "flights", "hourly").identity()

    assert made == again
    assert made.shape is None
    assert Checkpoint(tmp_path, "flights", "other").identity().id != made.id


def test_an_adopted_shape_is_remembered_with_the_identity(checkpoint: Checkpoint) -> None:
    before = checkpoint.identity()
    checkpoint.adopt(SHAPE)
    checkpoint.adopt(SHAPE)

    assert checkpoint.identity() == Identity(before.id, before.created_ms, SHAPE)


def test_a_new_identity_is_younger(used: Checkpoint) -> None:
    before = used.identity()
    assert not used.is_fresh
    assert used.remove()
    after = used.identity()

    assert used.is_fresh
    assert after.id != before.id
    assert after.created_ms >= before.created_ms
    assert after.shape is None


def test_removing_what_is_not_there_does_nothing(checkpoint: Checkpoint) -> None:
    assert not checkpoint.remove()


def test_the_same_query_goes_on(used: Checkpoint) -> None:
    used.check(SHAPE)


def test_looking_makes_nothing(checkpoint: Checkpoint) -> None:
    checkpoint.check(SHAPE)

    assert checkpoint.is_fresh
    assert not checkpoint.folder.exists()


CHANGES = [
    (
        replace(SHAPE, sources=("topic b",)),
        "it read topic a, and now reads topic b",
    ),
    (
        replace(SHAPE, sources=()),
        "it read topic a, and now reads nothing",
    ),
    (
        replace(SHAPE, state=("aggregate sum(n) by id", "  topic a with id string")),
        "what it keeps in its state has changed; before: aggregate count(1) by id; now: aggregate "
        "sum(n) by id",
    ),
    (
        replace(SHAPE, state=("aggregate count(1) by id", "  where (n > 1)", SHAPE.state[1])),
        "what it keeps in its state has changed; now: where (n > 1)",
    ),
    (replace(SHAPE, state=()), "it kept state, and now keeps none"),
    (replace(SHAPE, mode="append"), "its output mode was update, and is append"),
]


@pytest.mark.parametrize(("now", "message"), CHANGES, ids=[m[:50] for _, m in CHANGES])
def test_a_changed_query_is_told_what_changed(used: Checkpoint, now: Shape, message: str) -> None:
    with pytest.raises(PipelineError) as caught:
        used.check(now)

    assert str(caught.value) == f"it can't go on from its checkpoint: {message}"
    assert caught.value.hint == (
        "Change it back, give it a new name, or start it afresh: "
        "tidemill pipeline reset flights --query hourly"
    )


def test_long_plans_are_cut(used: Checkpoint) -> None:
    with pytest.raises(PipelineError) as caught:
        used.check(replace(SHAPE, state=("with " + "x" * 5000,)))
    assert len(str(caught.value)) < 600


def test_what_spark_allows_is_not_refused(checkpoint: Checkpoint) -> None:
    stateless = replace(SHAPE, state=())
    checkpoint.adopt(stateless)
    checkpoint.spark_folder.mkdir()

    checkpoint.check(replace(stateless, mode="append"))


def test_plans_that_another_version_wrote_are_left_to_spark(used: Checkpoint) -> None:
    used.check(replace(SHAPE, state=("other words",), made_by="2"))


def test_a_query_that_never_ran_may_change(checkpoint: Checkpoint) -> None:
    checkpoint.adopt(SHAPE)

    checkpoint.check(replace(SHAPE, sources=("topic b",)))


@pytest.mark.parametrize("content", ["", "[]", "{}", '"text"', '{"id": "x", "shape": {}}', "\0"])
def test_a_damaged_identity_is_told(used: Checkpoint, content: str) -> None:
    (used.folder / "identity.json").write_text(content)

    with pytest.raises(PipelineError, match=r"identity\.json can't be read") as caught:
        used.identity()
    assert caught.value.hint.endswith("tidemill pipeline reset flights --query hourly")


def test_a_lost_identity_is_not_replaced_by_another(used: Checkpoint, tmp_path: Path) -> None:
    """Sinks would write everything again."""
    (used.folder / "identity.json").unlink()

    with pytest.raises(PipelineError, match=r"holds a checkpoint, but no identity\.json"):
        used.identity()
    assert queries_of(tmp_path, "flights") == ["hourly"]  # so that it can be reset


def test_a_folder_that_can_t_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "flights").write_text("a file in the way")

    with pytest.raises(PipelineError, match=r"can't be (read|written)"):
        Checkpoint(tmp_path, "flights", "hourly").identity()


def test_identities_are_plain_json(used: Checkpoint) -> None:
    content = json.loads((used.folder / "identity.json").read_text())

    assert content["shape"]["sources"] == ["topic a"]


def test_queries_of_a_pipeline(used: Checkpoint, tmp_path: Path) -> None:
    Checkpoint(tmp_path, "flights", "a").identity()
    (tmp_path / "flights" / "spark.log").write_text("")
    (tmp_path / "flights" / "notes").mkdir()

    assert queries_of(tmp_path, "flights") == ["a", "hourly"]
    assert queries_of(tmp_path, "unknown") == []


def test_one_process_at_a_time(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from tidemill.spark.checkpoint import PipelineLock\n"
        "with PipelineLock(Path(sys.argv[1]), 'flights'):\n"
        "    print('mine', flush=True); sys.stdin.read()"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == "mine\n"
        with (
            pytest.raises(PipelineRunningError, match="flights is being run by another process"),
            PipelineLock(tmp_path, "flights"),
        ):
            pass
        with PipelineLock(tmp_path, "another"):
            pass
    finally:
        other.kill()
        other.communicate()
    with PipelineLock(tmp_path, "flights"):  # a process that died holds nothing
        pass
