from __future__ import annotations

import numpy as np
import pytest

from dask_elastic.control.overload import backlog_seconds, overloaded, utilisation
from dask_elastic.control.settings import ControlSettings
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.snapshot import ExecutorSnapshot, JobSnapshot

SETTINGS = ControlSettings(saturation=0.85, backlog=0.05)


def executor(throughput=0.0, queue=0, service=1000.0, cores=None, **more):
    return ExecutorSnapshot(
        ExecutorId("op", 0), 0, {0: 2} if cores is None else cores, throughput, service, throughput, queue=queue, **more
    )


def is_overloaded(one, before=False):
    job = JobSnapshot("job", 1, (executor(), one, executor(100)))
    found = overloaded(job, SETTINGS, np.array([False, before, False]))
    assert not found[[0, 2]].any()
    return bool(found[1])


def test_overloaded_with_busy_cores_and_backlog_is_true():
    assert is_overloaded(executor(1900, queue=150))


def test_overloaded_with_busy_cores_without_backlog_is_false():
    assert not is_overloaded(executor(1900, queue=10))


def test_overloaded_with_backlog_at_idle_cores_is_false():
    assert not is_overloaded(executor(900, queue=500))


def test_overloaded_before_requires_half_of_the_backlog():
    assert not is_overloaded(executor(1900, queue=60))
    assert is_overloaded(executor(1900, queue=60), before=True)
    assert not is_overloaded(executor(1900, queue=40), before=True)


@pytest.mark.parametrize("unknown", [executor(100, 100, service=None), executor(100, 100, cores={})])
def test_overloaded_without_measurements_is_false(unknown):
    assert utilisation(unknown) == backlog_seconds(unknown) == 0
    assert not is_overloaded(unknown)


def test_heaviest_shard_is_a_fraction_of_the_load():
    assert executor().heaviest_shard == 0
    assert executor(shard_load=np.zeros(4)).heaviest_shard == 0
    assert executor(shard_load=np.array([0.5, 1.0, 0.5])).heaviest_shard == 0.5


def test_heaviest_shards_of_a_job_are_those_of_its_executors():
    loads = [None, np.array([0.5, 1.0, 0.5]), np.zeros(4), np.zeros(0), np.array([3.0, 1.0]), np.zeros(2)]
    job = JobSnapshot("job", 1, tuple(executor(shard_load=load) for load in loads))
    assert job.heaviest_shards.tolist() == [0, 0.5, 0, 0, 0.75, 0]
    assert job.heaviest_shards.tolist() == [one.heaviest_shard for one in job.executors]
    assert JobSnapshot("job", 1, (executor(),)).heaviest_shards.tolist() == [0]


def test_cores_that_do_not_speed_an_executor_up_are_no_capacity():
    idle = {"cores": {0: 2, 1: 1}, "enough_cores": 1}
    assert executor(1900, **idle).working_cores == 2
    assert utilisation(executor(1900, **idle)) == pytest.approx(0.95)
    assert backlog_seconds(executor(1900, queue=200, **idle)) == pytest.approx(0.1)
    assert is_overloaded(executor(1900, queue=150, **idle))
    assert executor(1900, cores={0: 2, 1: 1}).working_cores == 3
