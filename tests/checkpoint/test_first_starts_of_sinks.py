"""A job that is lost before its first checkpoint treats what a directory holds as its sink's mode demands, once."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dask_elastic as de
from dask_elastic.checkpoint.file_ref import FileRef
from dask_elastic.executor.control_records.inputs import Inputs
from dask_elastic.runtime.protocol.checkpoint_calls import SinkOpened
from dask_elastic.runtime.protocol.job_spec import CheckpointPlan, JobGeneration
from dask_elastic.runtime.scheduler.checkpoints import Checkpoints
from dask_elastic.runtime.scheduler.job_checkpoints import JobCheckpoints
from dask_elastic.runtime.worker.job_threads import JobThreads
from dask_elastic.runtime.worker.part_checkpoints import PartCheckpoints
from dask_elastic.runtime.worker.sink_thread import SinkThread
from dask_elastic.vocab.identity import ExecutorId

OUT = ExecutorId("out", 0)


class Scheduler:
    """Takes what workers say about a job, which restarts."""

    def __init__(self, folder):
        self.folder, self.restarts = folder, 0
        self.state = JobCheckpoints(str(folder), FileRef("topology/1", 10, "ab"))
        record = SimpleNamespace(checkpoints=self.state, spec=SimpleNamespace(generation=1), live=True, halted=True)
        self.record = record
        self.handler = Checkpoints({"job": record}, None)

    def ask(self, call):
        assert isinstance(call, SinkOpened)
        asyncio.run(self.handler.sink_opened(call))

    def open_sink(self, sink):
        """Start the sink as a generation of the job does; returns the error."""
        errors = []
        threads = JobThreads("job", errors.append)
        generation = self.record.spec.generation
        spec = SimpleNamespace(
            job="job", run="0123456789ab", generation=generation, generation_id=JobGeneration("job", generation),
            summaries=(), homes={},
        )  # fmt: skip
        plan = CheckpointPlan(str(self.folder), 0, self.restarts, tuple(sorted(self.state.opened)))
        part = PartCheckpoints(spec, plan, threads, self.ask, None)
        thread = SinkThread(
            spec, OUT, sink, Inputs(OUT, []), threads, None, None, lambda sink: None, part.keeper, part.recovered(OUT)
        )
        thread.start()
        # Without inputs, it waits for the checkpoint behind its last row.
        deadline = time.monotonic() + 100
        while not (errors or thread._waiting._idle):
            assert time.monotonic() < deadline
            time.sleep(0.001)
        threads.end()
        thread.abort()
        threads.join(100)
        self.restarts += 1
        self.record.spec.generation += 1
        return errors


@pytest.fixture
def earlier(tmp_path):
    """A directory with a file of an earlier job."""
    directory = tmp_path / "out"
    writer = de.sinks.Parquet(directory).open(de.topology.SinkContext("earlier", "out", run="ba9876543210"))
    writer.write(pa.record_batch({"n": [1]}))
    writer.close()
    return directory


def test_mode_is_applied_by_the_first_writer_that_opens_also_after_a_restart(tmp_path, earlier):
    scheduler = Scheduler(tmp_path / "checkpoints")
    # The first start was lost before its sink opened.
    scheduler.restarts = 1
    assert scheduler.open_sink(de.sinks.Parquet(earlier, mode="overwrite")) == []
    assert list(earlier.iterdir()) == []
    # What other jobs write from then on stays.
    pq.write_table(pa.table({"n": [2]}), earlier / "other.parquet")
    for mode in ("overwrite", "error"):
        assert scheduler.open_sink(de.sinks.Parquet(earlier, mode=mode)) == []
    assert [path.name for path in earlier.iterdir()] == ["other.parquet"]


def test_job_whose_first_start_was_lost_fails_if_the_directory_holds_files(tmp_path, earlier):
    scheduler = Scheduler(tmp_path / "checkpoints")
    scheduler.restarts = 1
    [error] = scheduler.open_sink(de.sinks.Parquet(earlier))
    assert "already holds 1 Parquet files" in str(error)
    assert scheduler.state.opened == set()
