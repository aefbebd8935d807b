from __future__ import annotations

import numpy as np
import pytest

from dask_elastic.control.overload import backlog_seconds, overloaded, utilisation
from dask_elastic.control.settings import ControlSettings
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.snapshot import ExecutorSnapshot

SETTINGS = ControlSettings(saturation=0.85, backlog=0.05)


def executor(throughput=0.0, queue=0, service=1000.0, cores=None, **more):
    return ExecutorSnapshot(
        ExecutorId("op", 0), 0, {0: 2} if cores is None else cores, throughput, service, throughput, queue=queue, **more
    )


def test_overloaded_with_busy_cores_and_backlog_is_true():
    assert overloaded(executor(1900, queue=150), SETTINGS)


def test_overloaded_with_busy_cores_without_backlog_is_false():
    assert not overloaded(executor(1900, queue=10), SETTINGS)


def test_overloaded_with_backlog_at_idle_cores_is_false():
    assert not overloaded(executor(900, queue=500), SETTINGS)


def test_overloaded_before_requires_half_of_the_backlog():
    assert not overloaded(executor(1900, queue=60), SETTINGS)
    assert overloaded(executor(1900, queue=60), SETTINGS, before=True)
    assert not overloaded(executor(1900, queue=40), SETTINGS, before=True)


@pytest.mark.parametrize("unknown", [executor(100, 100, service=None), executor(100, 100, cores={})])
def test_overloaded_without_measurements_is_false(unknown):
    assert utilisation(unknown) == backlog_seconds(unknown) == 0
    assert not overloaded(unknown, SETTINGS)


def test_heaviest_shard_is_a_fraction_of_the_load():
    assert executor().heaviest_shard == 0
    assert executor(shard_load=np.zeros(4)).heaviest_shard == 0
    assert executor(shard_load=np.array([0.5, 1.0, 0.5])).heaviest_shard == 0.5


def test_cores_that_do_not_speed_an_executor_up_are_no_capacity():
    idle = {"cores": {0: 2, 1: 1}, "enough_cores": 1}
    assert executor(1900, **idle).working_cores == 2
    assert utilisation(executor(1900, **idle)) == pytest.approx(0.95)
    assert backlog_seconds(executor(1900, queue=200, **idle)) == pytest.approx(0.1)
    assert overloaded(executor(1900, queue=150, **idle), SETTINGS)
    assert executor(1900, cores={0: 2, 1: 1}).working_cores == 3
