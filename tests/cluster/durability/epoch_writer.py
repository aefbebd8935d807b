"""A writer that sends micro-batches by the handoff as Spark's tasks and driver do, without Spark."""

from __future__ import annotations

import uuid

from dask_elastic.runtime.protocol.handoff_calls import CommitEpoch, HandoffPlaces
from dask_elastic.runtime.protocol.job_calls import Describe
from dask_elastic.spark.staged_partition import stage
from dask_elastic.spark.staging_connection import call_scheduler
from dask_elastic.spark.target import Target
from dask_elastic.vocab.epoch import AttemptId, EpochKind, EpochOrigin

PARTITIONS = 3
BATCHES = 4


class EpochWriter:
    """A streaming query that writes to the only source for Spark of a job.

    Parameters
    ----------
    client : distributed.Client
        A client of the job's cluster.
    job : str
        The job.
    query, checkpoint : str
        The query's id, and its checkpoint.
    """

    def __init__(self, client, job, query="q", checkpoint="/checkpoint"):
        self.target = Target(client.scheduler.address, job)
        self.query, self.origin = query, EpochOrigin(EpochKind.STREAM, checkpoint)

    def staged(self, epoch, rows, after_batch=lambda number: None):
        """Stage the rows of an epoch; return what `commit` takes."""
        places = call_scheduler(self.target, HandoffPlaces(self.target.job, None, self.query, epoch))
        parts = []
        for partition in range(PARTITIONS):
            attempt = AttemptId(self.query, epoch, partition, uuid.uuid4().hex)
            begin, end = (rows.num_rows * number // PARTITIONS for number in (partition, partition + 1))
            own = rows.slice(begin, end - begin)

            def batches(own=own, partition=partition):
                size = max(1, own.num_rows // BATCHES)
                for number, batch in enumerate(own.combine_chunks().to_batches(max_chunksize=size)):
                    yield batch
                    after_batch(partition * BATCHES + number)

            parts.append(stage(self.target, attempt, places, batches()))
        return places, parts

    def commit(self, epoch, places, parts):
        """Commit an epoch, waiting for room."""
        while not self.committed(epoch, places, parts):
            pass

    def committed(self, epoch, places, parts, wait=2.0):
        """Commit an epoch; return False if there is no room for so many seconds."""
        run = places.run if places.spooled else ""
        return call_scheduler(
            self.target,
            CommitEpoch(
                self.target.job, places.generation, run, places.source, self.query, epoch, self.origin, tuple(parts),
                wait,
            ),
        )  # fmt: skip

    def send(self, epoch, rows, after_batch=lambda number: None):
        """Stage and commit an epoch."""
        self.commit(epoch, *self.staged(epoch, rows, after_batch))

    def run(self):
        """The run of the job."""
        return call_scheduler(self.target, Describe(self.target.job)).run

    def generation(self):
        """The generation of the job."""
        return call_scheduler(self.target, Describe(self.target.job)).generation
