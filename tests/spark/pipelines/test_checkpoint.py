"""A query's folder: its identity, its fingerprint, its lock."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tidemill.spark.errors import PipelineError, PipelineRunningError
from tidemill.spark.pipelines.checkpoint import (
    Checkpoint,
    Fingerprint,
    Identity,
    PipelineLock,
    queries_of,
)

FINGERPRINT = Fingerprint(
    ("topic a",), "update", ("aggregate count(1) by id", "  topic a with id string"), "1"
)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    return Checkpoint(tmp_path, "flights", "hourly")


@pytest.fixture
def used(checkpoint: Checkpoint) -> Checkpoint:
    """A checkpoint with which a query of FINGERPRINT has run."""
    checkpoint.begin(FINGERPRINT)
    begin_a_batch(checkpoint)
    return checkpoint


def begin_a_batch(checkpoint: Checkpoint) -> None:
    """Write what Spark writes before it runs the first batch."""
    offsets = checkpoint.spark_folder / "offsets"
    offsets.mkdir(parents=True)
    (offsets / "0").write_text("v1\n")


def set_clock(monkeypatch: pytest.MonkeyPatch, ms: int) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: ms * 1_000_000)


def test_the_identity_lasts_as_long_as_spark_s_checkpoint(used: Checkpoint, tmp_path: Path) -> None:
    made = used.begin(FINGERPRINT)
    again = Checkpoint(tmp_path, "flights", "hourly").begin(FINGERPRINT)

    assert made == again
    assert Checkpoint(tmp_path, "flights", "other").begin(FINGERPRINT).id != made.id


def test_the_shape_of_the_last_run_is_remembered_with_the_identity(used: Checkpoint) -> None:
    before = used.begin(FINGERPRINT)
    later = replace(FINGERPRINT, made_by="2")

    assert used.begin(later) == Identity(before.id, before.created_ms, later)
    assert used.begin(later) == Identity(before.id, before.created_ms, later)


def forget_by_command(used: Checkpoint) -> None:
    used.begun_file.touch()
    assert used.remove()
    assert not used.begun_file.exists()


def forget_spark_s_folder(used: Checkpoint) -> None:
    shutil.rmtree(used.spark_folder)


def forget_what_is_in_spark_s_folder(used: Checkpoint) -> None:
    forget_spark_s_folder(used)
    used.spark_folder.mkdir()


def forget_spark_s_batches(used: Checkpoint) -> None:
    shutil.rmtree(used.spark_folder / "offsets")


def forget_but_be_killed_in_the_middle(used: Checkpoint) -> None:
    remove = shutil.rmtree

    def killed(folder: Path, **options: Any) -> None:
        if not used.spark_folder.exists():
            raise KeyboardInterrupt
        remove(folder, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            used.remove()


@pytest.mark.parametrize("clock", [-3_600_000, 0, 3_600_000])
@pytest.mark.parametrize(
    "forget",
    [
        forget_by_command,
        forget_spark_s_folder,
        forget_what_is_in_spark_s_folder,
        forget_spark_s_batches,
        forget_but_be_killed_in_the_middle,
    ],
)
def test_a_checkpoint_that_is_reset_is_another_one_and_younger_whatever_the_clock_says(
    used: Checkpoint,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    forget: Callable[[Checkpoint], None],
    clock: int,
) -> None:
    """Sinks would take what it writes for what they have."""
    before = used.begin(FINGERPRINT)
    set_clock(monkeypatch, before.created_ms + clock)
    for _ in range(3):
        forget(used)
        fresh = Checkpoint(tmp_path, "flights", "hourly")
        assert fresh.is_fresh
        fresh.check(replace(FINGERPRINT, sources=("topic b",)))
        after = fresh.begin(FINGERPRINT)

        assert after.id != before.id
        assert after.created_ms // 1000 > before.created_ms // 1000  # versions know seconds
        shutil.rmtree(used.spark_folder, ignore_errors=True)
        begin_a_batch(used)
        before = used.begin(FINGERPRINT)
        assert before == after


def test_a_first_checkpoint_is_as_old_as_the_clock_says(checkpoint: Checkpoint) -> None:
    before = time.time_ns() // 1_000_000
    made = checkpoint.begin(FINGERPRINT)

    assert before <= made.created_ms <= time.time_ns() // 1_000_000


def test_removing_what_is_not_there_does_nothing(checkpoint: Checkpoint, used: Checkpoint) -> None:
    assert used.remove()
    assert not used.remove()
    assert not Checkpoint(used.folder.parent, "x", "y").remove()
    assert not (used.folder.parent / "x").exists()
    assert queries_of(used.folder.parent.parent, "flights") == []


def test_what_a_killed_removal_left_behind_is_removed_by_the_next(
    used: Checkpoint,
) -> None:
    forget_but_be_killed_in_the_middle(used)
    begin_a_batch(used)
    forget_by_command(used)

    assert [each.name for each in used.folder.iterdir()] == ["earlier.json"]


def test_a_folder_that_can_t_be_removed_is_reported(
    used: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(PipelineError, match=r"hourly can't be removed: Permission denied"):
        used.remove()


def test_what_was_damaged_can_be_removed(used: Checkpoint) -> None:
    (used.folder / "identity.json").write_text("{")

    assert used.remove()
    assert used.is_fresh
    assert used.begin(FINGERPRINT).fingerprint == FINGERPRINT


def test_the_same_query_continues(used: Checkpoint) -> None:
    used.check(FINGERPRINT)


def test_looking_makes_nothing(checkpoint: Checkpoint) -> None:
    checkpoint.check(FINGERPRINT)

    assert checkpoint.is_fresh
    assert not checkpoint.folder.exists()


CHANGES = [
    (
        replace(FINGERPRINT, sources=("topic b",)),
        "it read topic a, and now reads topic b",
    ),
    (
        replace(FINGERPRINT, sources=()),
        "it read topic a, and now reads nothing",
    ),
    (
        replace(FINGERPRINT, state=("aggregate sum(n) by id", "  topic a with id string")),
        "what it keeps in its state has changed; before: aggregate count(1) by id; now: aggregate "
        "sum(n) by id",
    ),
    (
        replace(
            FINGERPRINT, state=("aggregate count(1) by id", "  where (n > 1)", FINGERPRINT.state[1])
        ),
        "what it keeps in its state has changed; now: where (n > 1)",
    ),
    (
        replace(
            FINGERPRINT, state=(*FINGERPRINT.state, "with window of at: 5400000000, 7 microseconds")
        ),
        "what it keeps in its state has changed; now: with window of at: 90 minutes, 7 "
        "microseconds",
    ),
    (replace(FINGERPRINT, state=()), "it kept state, and now keeps none"),
    (replace(FINGERPRINT, mode="append"), "its output mode was update, and now is append"),
]


@pytest.mark.parametrize(("now", "message"), CHANGES, ids=[m[:50] for _, m in CHANGES])
def test_a_changed_query_is_reported_with_what_changed(
    used: Checkpoint, now: Fingerprint, message: str
) -> None:
    with pytest.raises(PipelineError) as caught:
        used.check(now)

    assert str(caught.value) == f"it can't continue from its checkpoint: {message}"
    assert caught.value.hint == (
        "Undo the change, give the query a new name, or reset it: "
        "tidemill pipeline reset flights --query hourly"
    )


def test_long_plans_are_cut(used: Checkpoint) -> None:
    with pytest.raises(PipelineError) as caught:
        used.check(replace(FINGERPRINT, state=("with " + "x" * 5000,)))
    assert len(str(caught.value)) < 600


def test_what_spark_allows_is_not_refused(checkpoint: Checkpoint) -> None:
    stateless = replace(FINGERPRINT, state=())
    checkpoint.begin(stateless)
    begin_a_batch(checkpoint)

    checkpoint.check(replace(stateless, mode="append"))


def test_plans_that_another_version_wrote_are_left_to_spark(used: Checkpoint) -> None:
    used.check(replace(FINGERPRINT, state=("other words",), made_by="2"))


def test_a_query_that_never_ran_may_change(checkpoint: Checkpoint) -> None:
    checkpoint.begin(FINGERPRINT)

    checkpoint.check(replace(FINGERPRINT, sources=("topic b",)))


@pytest.mark.parametrize("content", ["", "[]", "{}", '"text"', '{"id": "x", "shape": {}}', "\0"])
def test_a_damaged_identity_is_reported(used: Checkpoint, content: str) -> None:
    (used.folder / "identity.json").write_text(content)

    with pytest.raises(PipelineError, match=r"identity\.json can't be read") as caught:
        used.begin(FINGERPRINT)
    assert caught.value.hint.endswith("tidemill pipeline reset flights --query hourly")


def test_a_lost_identity_is_not_replaced_by_another(used: Checkpoint, tmp_path: Path) -> None:
    """Sinks would write everything again."""
    (used.folder / "identity.json").unlink()

    with pytest.raises(PipelineError, match=r"holds a checkpoint, but no identity\.json"):
        used.begin(FINGERPRINT)
    with pytest.raises(PipelineError, match=r"holds a checkpoint, but no identity\.json"):
        used.check(FINGERPRINT)
    assert queries_of(tmp_path, "flights") == ["hourly"]  # so that it can be reset


def test_a_folder_that_can_t_be_written_is_reported(tmp_path: Path) -> None:
    (tmp_path / "flights").write_text("a file in the way")

    with pytest.raises(PipelineError, match=r"can't be (read|written)"):
        Checkpoint(tmp_path, "flights", "hourly").begin(FINGERPRINT)


def test_identities_are_plain_json(used: Checkpoint) -> None:
    content = json.loads((used.folder / "identity.json").read_text())

    assert content["shape"]["sources"] == ["topic a"]


def test_queries_of_a_pipeline(used: Checkpoint, tmp_path: Path) -> None:
    Checkpoint(tmp_path, "flights", "a").begin(FINGERPRINT)
    (tmp_path / "flights" / "spark.log").write_text("")
    (tmp_path / "flights" / "notes").mkdir()

    assert queries_of(tmp_path, "flights") == ["a", "hourly"]
    assert queries_of(tmp_path, "unknown") == []


def test_one_process_at_a_time(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path\n"
        "from tidemill.spark.pipelines.checkpoint import PipelineLock\n"
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
            pytest.raises(PipelineRunningError, match="another process runs pipeline flights"),
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


WRITTEN_BY_0_1_0 = (
    '{"id": "0123456789ab", "created_ms": 1772366400000, "shape": {"sources": ["topic a"], '
    '"mode": "update", "state": ["aggregate count(1) by id", "  topic a with id string"], '
    '"made_by": "1"}}'
)


def test_a_checkpoint_of_the_first_release_is_continued(checkpoint: Checkpoint) -> None:
    begin_a_batch(checkpoint)
    file = checkpoint.folder / "identity.json"
    file.write_text(WRITTEN_BY_0_1_0)

    checkpoint.check(FINGERPRINT)
    assert checkpoint.begin(FINGERPRINT) == Identity("0123456789ab", 1772366400000, FINGERPRINT)
    assert file.read_text() == WRITTEN_BY_0_1_0
    later = replace(FINGERPRINT, made_by="2")
    checkpoint.begin(later)
    assert json.loads(file.read_text()) == {
        **json.loads(WRITTEN_BY_0_1_0),
        "shape": {**json.loads(WRITTEN_BY_0_1_0)["shape"], "made_by": "2"},
    }
