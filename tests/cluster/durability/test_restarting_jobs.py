"""What a job answers while it restarts and no worker is left."""

from __future__ import annotations

import pytest
from counting_jobs import SCHEMA
from distributed import Client, LocalCluster

import dask_elastic as de
from dask_elastic.vocab.errors import MoveRefused, PlanningError


def test_changes_of_cores_and_shards_are_refused_while_a_job_restarts(wait_until, tmp_path):
    topology = de.Topology("count")
    rows = topology.source("rows", de.sources.Push(SCHEMA))
    rows.key_by("k").compute({"n": de.aggregate.Count()}, name="counted")
    with (
        LocalCluster(n_workers=1, threads_per_worker=2, processes=False, dashboard_address=None) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        job = de.submit(topology, client, checkpoint=tmp_path / "checkpoints")
        cluster.sync(cluster.workers[0].close)
        wait_until(lambda: job.status == "restarting", "the job waits for a worker")
        with pytest.raises(PlanningError, match="is restarting: its cores change only while it is running"):
            job.set_cores("counted", 1)
        with pytest.raises(MoveRefused, match="is restarting: its shards move only while it is running"):
            job.move_shard("counted", 0, task=0)
        job.set_cores("counted", "auto")
        job.stop()
