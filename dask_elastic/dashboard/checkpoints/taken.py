"""The checkpoints of a job, as its card has them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dask_elastic.vocab.checkpoint import CheckpointDescription, CheckpointStatus


@dataclass(frozen=True)
class TakenCheckpoints:
    """The checkpoints of a job.

    Parameters
    ----------
    status : CheckpointStatus
        Where the job stands.
    newest : sequence of CheckpointDescription
        The newest checkpoints, oldest first.
    """

    status: CheckpointStatus
    newest: Sequence[CheckpointDescription] = ()
