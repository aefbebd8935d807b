"""Checkpoints that are taken on request, and awaited until all sinks have committed them."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

from dask_elastic.runtime.protocol.job_status import Status
from dask_elastic.runtime.scheduler.checkpoints import LONGEST_SECONDS, first_of, taken_by
from dask_elastic.runtime.scheduler.job_record import JobRecord
from dask_elastic.vocab.checkpoint import CheckpointDescription
from dask_elastic.vocab.errors import CheckpointError, JobEnded

LOOK_SECONDS = 0.1
"""Seconds between two looks whether the job has restarted."""


async def take_committed(
    take: Callable[[JobRecord], Awaitable[CheckpointDescription]],
    record: JobRecord,
    longest: float = LONGEST_SECONDS,
) -> tuple[CheckpointDescription, int]:
    """Have a checkpoint taken that begins from now on, and return it when all sinks have committed it.

    Parameters
    ----------
    take : callable
        `Checkpoints.take`.
    record : JobRecord
        The job, which takes checkpoints. If it restarts meanwhile, it takes another one.
    longest : float
        Seconds.

    Returns
    -------
    tuple of CheckpointDescription and int
        The checkpoint, and the generation that took it.

    Raises
    ------
    CheckpointError
        If the checkpoint is given up, or is not committed in time.
    JobEnded
        If the job ends without committing it.
    """
    state = taken_by(record)
    deadline = time.monotonic() + longest
    while time.monotonic() < deadline:
        generation = record.spec.generation
        try:
            taken = await take(record)
        except CheckpointError:
            if record.runs(generation) or not record.live:
                raise
            continue  # the job is restarted, and takes another one then
        while record.runs(generation) and record.live and time.monotonic() < deadline:
            if state.committed >= taken.number:
                return taken, generation
            await first_of(state.next_commit(), record.ended(), timeout=LOOK_SECONDS)
        if record.status is Status.FINISHED:
            return taken, generation
        if not record.live:
            raise JobEnded(f"job {record.name!r} has {record.status.value}: its sinks commit no more checkpoints")
    raise CheckpointError(
        f"job {record.name!r}: its sinks have not committed a checkpoint within {longest:g} s. See the workers' logs "
        "for what they wait for, then try again."
    )
