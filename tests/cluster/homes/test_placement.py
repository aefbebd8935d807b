"""Homes that planners choose on a real cluster, the traffic that is measured there, and the moves that are planned."""

from __future__ import annotations

from itertools import pairwise

import pyarrow as pa
import pytest

import dask_elastic as de
from dask_elastic.vocab.errors import SubmitError

RUN = {"timeout": 240, "progress": False}
ROWS = pa.table({"key": [number % 100 for number in range(10_000)]})


def counted(source):
    topology = de.Topology("placed")
    first = topology.source("rows", source).key_by("key").compute({"n": de.aggregate.Count()}, name="a", executors=2)
    first.key_by("key").compute({"m": de.aggregate.Count()}, name="b", executors=2)
    return topology


def homes(job):
    [snapshot] = job.snapshots(1)
    [found] = [one for one in snapshot.jobs if one.name == job.name]
    return [executor.home for executor in found.executors]


@pytest.mark.parametrize("placement", ["cola", "ssm"])
def test_job_with_planned_homes_has_the_same_result(client, placement):
    pytest.importorskip("pymetis")
    job = de.submit(counted(de.sources.Arrow(ROWS)), client, placement=placement)
    job.wait(**RUN)
    assert job.state("a").to_arrow()["n"].to_pylist() == [100] * 100
    assert job.state("b").to_arrow().num_rows == 100


def test_traffic_of_running_job_is_measured_and_its_homes_are_planned(client, wait_until):
    job = de.submit(counted(de.sources.Push(ROWS.schema)), client, placement="ssm", latency_target=None)
    placed = wait_until(lambda: job.snapshots(1) and homes(job), "a snapshot of the job")
    assert sum(one != other for one, other in pairwise(placed)) == len(set(placed)) - 1

    def inputs():
        job.send(ROWS)
        explained = job.explain("b").to_pandas()["inputs"]
        return all(f"from a[{index}]" in " ".join(one) for index, one in enumerate(explained))

    # Both operators have the same keys, so that each executor gets the rows of one executor only.
    wait_until(inputs, "each executor of b gets rows from one of a")
    assert job.plan().homes.placement == "ssm"
    assert "placement 'ssm': load distance" in str(job.plan())
    job.stop()


def test_unknown_placement_is_refused_and_starts_nothing(client):
    with pytest.raises(SubmitError, match="did you mean 'cola'"):
        de.submit(counted(de.sources.Arrow(ROWS)), client, placement="colla")
    assert de.jobs(client) == []
