from __future__ import annotations

import numpy as np
import pytest

from dask_elastic.control.overload import overloaded, utilisation, waiting_seconds
from dask_elastic.control.settings import ControlSettings
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.snapshot import ExecutorSnapshot

SETTINGS = ControlSettings(saturation=0.85, backlog=0.05)


def executor(throughput=0.0, queue=0, service=1000.0, cores=None, **more):
    return ExecutorSnapshot(
        ExecutorId("op", 0), 0, {0: 2} if cores is None else cores, throughput, service, throughput, queue=queue, **more
    )


def test_busy_cores_and_a_queue_are_an_overload():
    assert overloaded(executor(1900, queue=150), SETTINGS)


def test_busy_cores_without_a_queue_are_just_enough():
    assert not overloaded(executor(1900, queue=10), SETTINGS)


def test_a_queue_at_idle_cores_is_the_fault_of_whoever_takes_the_outputs():
    assert not overloaded(executor(900, queue=500), SETTINGS)


def test_what_was_overloaded_needs_half_of_the_queue():
    assert not overloaded(executor(1900, queue=60), SETTINGS)
    assert overloaded(executor(1900, queue=60), SETTINGS, before=True)
    assert not overloaded(executor(1900, queue=40), SETTINGS, before=True)


@pytest.mark.parametrize("unknown", [executor(100, 100, service=None), executor(100, 100, cores={})])
def test_what_is_not_measured_is_no_overload(unknown):
    assert utilisation(unknown) == waiting_seconds(unknown) == 0
    assert not overloaded(unknown, SETTINGS)


def test_the_heaviest_shard_is_a_part_of_the_load():
    assert executor().heaviest_shard == 0
    assert executor(shard_load=np.zeros(4)).heaviest_shard == 0
    assert executor(shard_load=np.array([0.5, 1.0, 0.5])).heaviest_shard == 0.5
