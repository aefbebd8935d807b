from __future__ import annotations

import pytest

from dask_elastic.control.decision_log import DecisionLog
from dask_elastic.vocab.cores.core_change import CoreChange
from dask_elastic.vocab.errors import PlanningError
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.plan import Decision
from dask_elastic.vocab.snapshot import JobSnapshot, Snapshot

CHANGE = CoreChange("job", 1, ExecutorId("op", 0), {0: 1}, {0: 2})


def decision(number, time, job="job", generation=1, applied=True):
    return Decision(number, time, job, generation, 0.1, 0.2, 0.05, True, {}, (CHANGE,), applied, "because")


def snapshot_at(now, latency=0.05, job="job", generation=1):
    return Snapshot(now, (), (JobSnapshot(job, generation, (), latency=latency),))


def observed(log, job="job"):
    return [each.observed for each in log.of(job)]


def test_decision_log_observes_effect_after_delay():
    log = DecisionLog(after=5.0)
    log.add([decision(1, 10.0)])
    log.observe(snapshot_at(14.0, 0.2))
    assert observed(log) == [None]
    log.observe(snapshot_at(15.0, 0.06))
    log.observe(snapshot_at(16.0, 0.9))
    assert observed(log) == [0.06]


def test_decision_log_observes_effect_at_first_snapshot_after_next_change():
    log = DecisionLog(after=5.0)
    log.add([decision(1, 10.0)])
    log.observe(snapshot_at(12.0, 0.07))
    log.add([decision(2, 12.0)])
    log.observe(snapshot_at(13.0, 0.08))
    assert observed(log) == [0.08, None]
    log.observe(snapshot_at(17.0, 0.09))
    assert observed(log) == [0.08, 0.09]


def test_decision_log_ignores_decisions_that_were_not_applied():
    log = DecisionLog(after=5.0)
    log.add([decision(1, 10.0), decision(2, 11.0, applied=False)])
    log.observe(snapshot_at(12.0))
    assert observed(log) == [None, None]


def test_decision_log_observes_effect_although_the_clock_was_set_back():
    log = DecisionLog(after=5.0)
    log.add([decision(1, 12.0), decision(2, 3_610.0, applied=False)])
    log.observe(snapshot_at(11.0, 0.07))
    assert observed(log) == [None, 0.07], "a decision of the same moment is not due yet"


def test_decision_log_waits_for_a_measured_latency():
    log = DecisionLog(after=5.0)
    log.add([decision(1, 10.0)])
    log.observe(snapshot_at(15.0, None))
    log.observe(snapshot_at(16.0, 0.3))
    assert observed(log) == [0.3]


def test_decision_log_does_not_observe_earlier_generation():
    log = DecisionLog(after=5.0)
    log.add([decision(1, 10.0)])
    log.observe(snapshot_at(15.0, generation=2))
    log.observe(snapshot_at(16.0))
    assert observed(log) == [None]


def test_decision_log_returns_decisions_by_job():
    log = DecisionLog()
    log.add([decision(1, 0.0, "a"), decision(2, 0.0, "b"), decision(3, 1.0, "a")])
    assert [each.number for each in log.of("a")] == [1, 3]
    assert [each.number for each in log.all()] == [1, 2, 3]
    assert log.of("c") == []


def test_decision_log_drops_oldest_decisions():
    log = DecisionLog(length=3)
    log.add(decision(number, float(number)) for number in range(10))
    assert [each.number for each in log.of("job")] == [7, 8, 9]
    assert len(log) == 3
    log.observe(snapshot_at(100.0))
    assert None not in observed(log)


@pytest.mark.parametrize("wrong", [{"length": 0}, {"after": 0.0}])
def test_decision_log_with_invalid_length_raises(wrong):
    with pytest.raises(PlanningError, match="give numbers above 0"):
        DecisionLog(**wrong)
