"""The share of a task in a batch, and the marker that says that it was written.

Must not know: clients, Spark.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from tidemill.kafka_client.producing.transactional import Marker
from tidemill.spark.errors import CheckpointRestoredError, DeliveryError


@dataclass(frozen=True, slots=True)
class Share:
    """The part of a batch that one task writes.

    Attributes:
        sink_id: Name of the output of one query. Two checkpoints must not share it.
        task: Number of the task within the batch, from 0.
        batch_id: Number of the batch. A later batch has a greater number.
        owner: Id of the query, which its checkpoint keeps; empty if there is none.
        run: Identifies the run of the query and the attempt of the task. A batch may have been
            tried before in another run or attempt.
        fingerprint: Fingerprint of what the batch reads; empty if it is not known.
    """

    sink_id: str
    task: int
    batch_id: int
    owner: str = ""
    run: str = ""
    fingerprint: str = ""

    @property
    def name(self) -> str:
        """Transactional id and consumer group of all shares with this task number."""
        return f"{self.sink_id}-{self.task}"


def marker_of(share: Share) -> Marker:
    """Return the marker that says that a share was written, and by which query."""
    content = {"sink": share.sink_id, "task": share.task, "batch": share.batch_id}
    plan = {"plan": share.fingerprint} if share.fingerprint else {}
    return Marker(share.batch_id + 1, json.dumps({**content, "query": share.owner, **plan}))


def check_marker(marker: Marker, share: Share, marker_topic: str) -> None:
    """Check that a marker was written by this query, because its rows would be skipped otherwise.

    Spark runs only the last batch of a checkpoint again, so a marker of a later batch is foreign.
    A marker of the same batch is foreign if the fingerprint differs: the checkpoint was restored
    from a backup and planned the batch again.

    Raises:
        DeliveryError: Another query or checkpoint wrote the marker.
        CheckpointRestoredError: The marker has another fingerprint.
    """
    content = _content_of(marker)
    owner, fingerprint = content.get("query", ""), content.get("plan", "")
    of_another = bool(owner and share.owner and owner != share.owner)
    if of_another or marker.offset > share.batch_id + 1:
        raise DeliveryError(
            f"the query of another checkpoint wrote batch {marker.offset - 1} to "
            f"{marker_topic} with sink id {share.sink_id!r}, and batch {share.batch_id} would "
            "be skipped",
            hint="Use a new sinkId for a new checkpoint.",
        )
    is_same_batch = marker.offset == share.batch_id + 1
    if is_same_batch and fingerprint and share.fingerprint not in ("", fingerprint):
        raise CheckpointRestoredError(
            f"batch {share.batch_id} was already written to {marker_topic} with sink id "
            f"{share.sink_id!r}, and the checkpoint has planned it again: it was restored from "
            "a backup, or copied",
            hint="Start the query with a new checkpoint (tidemill pipeline reset) and a new "
            "sinkId.",
        )


def _content_of(marker: Marker) -> dict[str, str]:
    """Return the metadata of a marker: who wrote it, and the fingerprint of the batch."""
    try:
        content = json.loads(marker.metadata or "{}")
    except (ValueError, RecursionError):  # another program has written it
        return {}
    return {key: str(content[key]) for key in content} if isinstance(content, dict) else {}


def timed_out(share: Share, timeout_s: float) -> DeliveryError:
    """Return the error for a transaction that the broker aborted because it was open too long."""
    return DeliveryError(
        f"task {share.task} of batch {share.batch_id} took longer than the transaction timeout "
        f"of {timeout_s:g} s, so the broker aborted its transaction",
        hint="A restart runs the same batch again: set kafka.transaction.timeout.ms to more, "
        "900000 at most by default. Set maxOffsetsPerTrigger (max_offsets_per_trigger of a "
        "stream) so that later batches are smaller.",
    )
