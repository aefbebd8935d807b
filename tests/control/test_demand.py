from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from dask_elastic.control.calibration import ENOUGH
from dask_elastic.control.demand import CALM, JobModel
from dask_elastic.control.queues import NO_LIMIT
from dask_elastic.control.settings import ControlSettings
from dask_elastic.model.queueing import mmk_sojourn
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.snapshot import ExecutorSnapshot, JobSnapshot

SETTINGS = ControlSettings(headroom=0.1, release_headroom=0.2, release_after=10.0, yield_after=3.0, growth=1.5)
MANY = 100


def executor(index=0, cores=2, arrival=1000.0, service=1000.0, operator="op", **more):
    done = more.pop("throughput", min(arrival, cores * (service or 0.0)))
    return ExecutorSnapshot(ExecutorId(operator, index), 0, {0: cores}, arrival, service, done, **more)


def job(*executors, target=0.05, **more):
    return JobSnapshot("job", 1, executors, target, **more)


def demand(model, measured, now=0.0, available=MANY, most=None):
    return model.demand(
        measured, now, available, np.full(len(measured.executors), NO_LIMIT) if most is None else np.array(most)
    )


def overloaded(index=0, cores=2, **more):
    return executor(index, cores, arrival=1000.0 * cores, queue=100 * cores, **more)


def test_job_that_meets_its_target_keeps_its_cores():
    found = demand(JobModel(SETTINGS), job(executor(cores=4)))
    assert found.satisfied
    assert found.keep.tolist() == [4]
    assert found.needed.tolist() == [4], "the surplus has not lasted long enough"


def test_surplus_is_yielded_to_other_jobs_before_it_is_released():
    model, measured = JobModel(SETTINGS), job(executor(cores=6))
    seen = [demand(model, measured, float(second)) for second in range(11)]
    assert [found.needed.tolist() for found in (seen[2], seen[3])] == [[6], [2]]
    assert [found.keep.tolist() for found in (seen[9], seen[10])] == [[6], [2]]


@pytest.mark.parametrize("target", [0.05, None])
def test_cores_that_bring_nothing_are_not_kept(target):
    found = demand(JobModel(ControlSettings()), job(executor(cores=3, arrival=300.0, enough_cores=1), target=target))
    assert found.keep.tolist() == [1]
    kept = demand(JobModel(ControlSettings()), job(executor(cores=3, arrival=300.0), target=target))
    assert kept.keep.tolist() == [3]


def with_pinned(cores, **more):
    """Return what the model makes of a pinned executor, nine tenths of one core busy, that another one follows."""
    pinned = executor(0, cores, 900.0, entry=True, pinned=True, sojourn=0.010, **more)
    measured = job(pinned, executor(1, 1, 900.0, 2_000.0, operator="next", sojourn=0.001), latency=0.012)
    model = JobModel(SETTINGS)
    for second in range(20):
        found = demand(model, measured, float(second))
    return found.error, found.target, model.predicted(measured, np.array([cores, 1])), model


def test_cores_that_bring_nothing_are_not_modelled():
    error, target, predicted, model = with_pinned(4, enough_cores=1)
    assert (error, target, predicted) == with_pinned(1)[:3]
    assert error == pytest.approx(1, abs=0.1)
    more = job(executor(0, 2, 900.0, enough_cores=1, entry=True))
    assert model.predicted(more, np.array([1])) == model.predicted(more, np.array([2]))
    assert model.predicted(more, np.array([3])) < model.predicted(more, np.array([2]))


def test_surplus_without_target_is_only_yielded_to_other_jobs():
    model, measured = JobModel(SETTINGS), job(executor(cores=6), target=None)
    seen = [demand(model, measured, float(second)) for second in range(30)]
    assert seen[-1].needed.tolist() == [2]
    assert seen[-1].keep.tolist() == [6]
    assert seen[-1].feasible


def test_load_between_headrooms_neither_adds_nor_releases_cores():
    """Cores sufficient for 10 % more load, but not for 20 % more, are neither added nor released."""
    measured = job(executor(cores=3, arrival=2600.0), target=None)
    model = JobModel(SETTINGS)
    for second in range(20):
        found = demand(model, replace(measured, latency_target=1.0), float(second))
    assert found.satisfied
    assert found.keep.tolist() == [3]
    assert demand(JobModel(SETTINGS), job(executor(cores=3, arrival=2800.0))).needed.tolist() == [4]


def test_overloaded_demand_takes_proportions_from_arrivals_and_level_from_throughput():
    """One executor drains its queue, so its throughput exceeds its arrivals and does not show its share of the load."""
    first = executor(0, cores=4, arrival=3000.0, throughput=4000.0, queue=400)
    second = executor(1, cores=4, arrival=3000.0, throughput=2600.0)
    found = demand(JobModel(SETTINGS), job(first, second, target=None))
    assert found.can_relieve
    assert found.queues.loads.tolist() == pytest.approx([1.5 * 3.3, 1.5 * 3.3])


def test_overloaded_job_demands_growth_for_all_executors():
    measured = job(overloaded(0, cores=4), executor(1, cores=4, arrival=2000.0), target=None)
    found = demand(JobModel(SETTINGS), measured)
    assert found.overloaded == (0,)
    assert found.can_relieve
    assert not found.satisfied
    assert found.queues.loads == pytest.approx([6.0, 3.0])
    assert found.needed.tolist() == [7, 4]


def test_overloaded_job_grows_by_factor_each_period_until_backlog_is_drained():
    model, cores, seen = JobModel(SETTINGS), 2, []
    for second in range(6):
        found = demand(model, job(overloaded(cores=cores), target=None), float(second))
        cores = int(found.needed[0])
        seen.append(cores)
    assert all(later >= 1.5 * earlier for earlier, later in zip([2, *seen], seen, strict=False))
    calm = demand(model, job(executor(cores=cores, arrival=3000.0), target=None), 6.0)
    assert calm.satisfied


def test_backlog_adds_cores_to_drain_it_in_time():
    """A backlog of a third of a second beyond the allowed one, drained in 3 s, needs a ninth more cores."""
    quiet = executor(cores=10, arrival=5000.0)
    waiting = replace(quiet, queue=round(10_000 * (0.05 + 1 / 3)))
    loads = [demand(JobModel(SETTINGS), job(one, target=None)).queues.loads[0] for one in (quiet, waiting)]
    assert loads[1] - loads[0] == pytest.approx(10 / 9, rel=1e-3)


def test_demand_covers_only_measured_unpinned_executors():
    measured = job(executor(0, service=None), executor(1, pinned=True), executor(2), executor(3, cores=3))
    found = demand(JobModel(SETTINGS), measured)
    assert found.indices == (2, 3)
    assert len(found.needed) == len(found.keep) == len(found.current) == 2


def test_target_is_reduced_by_sojourn_in_pinned_executors():
    free = executor(0, cores=1, arrival=800.0)
    alone = demand(JobModel(SETTINGS), job(free, target=0.02))
    pinned = executor(1, cores=1, arrival=900.0, operator="next", entry=False, pinned=True)
    with_pinned = demand(JobModel(SETTINGS), job(free, pinned, target=0.02))
    spent = 900 * mmk_sojourn(900.0, 1000.0, 1) / 800
    assert alone.target - with_pinned.target == pytest.approx(spent)
    overfull = replace(pinned, arrival_rate=1500.0, throughput=1000.0)
    assert demand(JobModel(SETTINGS), job(free, overfull, target=0.02)).target == alone.target


def test_overloaded_pinned_executor_does_not_raise_demand_of_others():
    found = demand(JobModel(SETTINGS), job(overloaded(0, pinned=True), executor(1, cores=4), target=None))
    assert found.overloaded == (0,)
    assert not found.can_relieve
    assert found.satisfied


def calibrated(hop, error, target=0.05, arrival=1000.0, cores=2):
    model, modelled = JobModel(SETTINGS), mmk_sojourn(arrival, 1000.0, cores)
    measured = job(
        executor(cores=cores, arrival=arrival, sojourn=error * modelled), target=target, latency=hop + error * modelled
    )
    for second in range(ENOUGH + 4):
        found = demand(model, measured, float(second))
    return model, measured, found, modelled


def test_target_is_corrected_by_hop_and_model_error():
    _, _, found, _ = calibrated(hop=0.02, error=2.0)
    assert found.hop == pytest.approx(0.02)
    assert found.error == pytest.approx(2.0)
    assert found.target == pytest.approx((0.05 - 0.02) / 2)


def test_predicted_latency_without_change_equals_measured_latency():
    model, measured, _, modelled = calibrated(hop=0.02, error=1.5)
    assert model.predicted(measured, np.array([2])) == pytest.approx(0.02 + 1.5 * modelled)
    assert model.predicted(measured, np.array([4])) < 0.02 + 1.5 * modelled
    assert model.predicted(measured, np.array([1])) == math.inf


def test_prediction_without_measurements_or_under_overload_is_none():
    model = JobModel(SETTINGS)
    for measured in (job(executor(service=None)), job(executor(arrival=0.0)), job(overloaded())):
        demand(model, measured)
        assert model.predicted(measured, np.array([2])) is None


def test_calibration_ignores_measurements_shortly_after_overload_or_change():
    model = JobModel(SETTINGS)
    calm = job(executor(cores=4, sojourn=0.001), latency=0.4)
    demand(model, job(overloaded(cores=4)), 0.0)
    for now in (0.5, 1.0, 1.5, 2.0):
        assert demand(model, calm, now).hop == 0.0
    for second in range(ENOUGH):
        found = demand(model, calm, CALM + second)
    assert found.hop == pytest.approx(0.399)
    changed = replace(calm, executors=(executor(cores=3, sojourn=0.001),), latency=9.0)
    for now in (10.0, 10.5, 11.0, 11.5, 12.0):
        assert demand(model, changed, now).hop == pytest.approx(0.399)


def test_hop_above_target_gives_best_effort_with_few_cores():
    _, _, found, _ = calibrated(hop=0.2, error=1.0)
    assert not found.feasible
    assert found.keep.max() <= 5


def test_demand_above_available_cores_is_not_feasible():
    measured = job(executor(cores=2, arrival=9000.0, throughput=2000.0))
    found = demand(JobModel(SETTINGS), measured, available=8)
    assert not found.feasible
    assert found.needed.sum() > 8
    assert demand(JobModel(SETTINGS), measured, available=12).feasible


def test_limit_below_load_is_respected():
    found = demand(JobModel(SETTINGS), job(executor(0, cores=2, arrival=5000.0), executor(1)), most=[3, 9])
    assert found.needed.tolist()[0] == 3
    assert not found.feasible


def test_newly_measured_executor_starts_its_own_release_time():
    model = JobModel(SETTINGS)
    for second in range(12):
        demand(model, job(executor(0, cores=6), executor(1, cores=6, service=None)), float(second))
    found = demand(model, job(executor(0, cores=6), executor(1, cores=6)), 12.0)
    assert found.keep.tolist() == [2, 6]


def test_demand_with_idle_sources_is_satisfied():
    found = demand(JobModel(SETTINGS), job(executor(arrival=0.0), executor(1, arrival=50.0, entry=False)))
    assert found.satisfied
    assert demand(JobModel(SETTINGS), job(executor(service=None))).indices == ()


LAGGING = {"cores": 5, "arrival": 3900.0, "queue": 30, "sojourn": 0.002}


def test_source_lag_raises_demand():
    """Credits keep excess tuples at the source, where no executor's queue shows them."""
    found = demand(JobModel(SETTINGS), job(executor(**LAGGING), latency=0.9))
    assert found.source_lag == pytest.approx(0.9 - 0.002 - SETTINGS.backlog)
    assert not found.overloaded
    assert found.needed.tolist() == [6]
    in_time = demand(JobModel(SETTINGS), job(executor(**LAGGING), latency=0.03))
    assert in_time.satisfied
    assert in_time.source_lag == 0


def test_demand_for_source_lag_is_limited_by_growth():
    found = demand(JobModel(SETTINGS), job(executor(**LAGGING), latency=60.0))
    assert found.queues.arrival.sum() == pytest.approx(3900 * (SETTINGS.headroom + SETTINGS.growth))


@pytest.mark.parametrize(
    ("lagging", "available"),
    [
        (executor(**LAGGING | {"arrival": 2000.0}), MANY),  # its cores are not busy
        (executor(**LAGGING), 5),  # it has all available cores
        (executor(**LAGGING | {"sojourn": None}), MANY),
    ],
)
def test_source_lag_without_lack_of_cores_is_ignored(lagging, available):
    assert demand(JobModel(SETTINGS), job(lagging, latency=0.9), available=available).source_lag == 0


def test_growing_source_lag_scales_arrivals_to_offered_rate():
    """Credits admit 300 tuples/s and the lag grows by 0.25 s per second, so the offered rate is 400 tuples/s."""
    model = JobModel(SETTINGS)
    measured = job(executor(cores=4, arrival=300.0, service=100.0, sojourn=0.02), target=0.1)
    for second in range(15):
        steady = demand(model, replace(measured, latency=0.02), float(second))
    assert steady.source_lag == 0
    assert steady.queues.arrival.tolist() == pytest.approx([330.0])
    demand(model, replace(measured, latency=0.12), 15.0)
    found = demand(model, replace(measured, latency=0.37), 16.0)
    assert found.source_lag == pytest.approx(0.3)
    assert found.queues.arrival.tolist() == pytest.approx([400 * (1.1 + 0.3 / SETTINGS.drain_within)])
    shrinking = demand(model, replace(measured, latency=0.3), 17.0)
    assert shrinking.queues.arrival.tolist() == pytest.approx([300 * (1.1 + 0.23 / SETTINGS.drain_within)])


def test_source_lag_within_a_short_burst_is_ignored():
    model = JobModel(SETTINGS)
    measured = job(executor(cores=4, arrival=300.0, service=100.0, sojourn=0.02), target=0.1)
    for second, latency in enumerate([0.02, 0.02, 0.02, 0.02, 0.065]):
        found = demand(model, replace(measured, latency=latency), float(second))
    assert found.queues.arrival.tolist() == pytest.approx([330.0])


@pytest.mark.parametrize("held", [1, 21])
def test_a_hot_key_makes_no_other_executor_want_cores(held):
    model, most = JobModel(SETTINGS), (3, NO_LIMIT)
    hot = executor(0, 3, arrival=9_000.0, queue=5_000)
    light = executor(1, held, arrival=200.0, operator="light")
    found = [demand(model, job(hot, light), float(second), most=most) for second in range(14)][-1]
    assert found.needed.tolist() == [3, 1]
    assert found.keep.tolist() == [3, 1]
    assert not found.satisfied


@pytest.mark.parametrize("target", [0.05, 1e-9, None])
@pytest.mark.parametrize("others", [0, 1])
def test_an_idle_executor_without_cores_demands_one(target, others):
    lost = replace(executor(arrival=0.0), cores={})
    measured = job(lost, *(executor(1 + index, arrival=10.0) for index in range(others)), target=target)
    found = demand(JobModel(SETTINGS), measured)
    assert not found.satisfied
    assert found.needed[0] == found.keep[0] == 1
