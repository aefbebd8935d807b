from __future__ import annotations

import pytest

from dask_elastic.executor.control_records.inputs import Inputs
from dask_elastic.executor.control_records.state_records import StateRecords
from dask_elastic.executor.groups.exchange import Exchange
from dask_elastic.executor.groups.group_executor import GroupExecutor
from dask_elastic.routing.keyspace import KeySpace
from dask_elastic.vocab.errors import PlanningError
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.watermark import Watermark

NORTH, SOUTH = ExecutorId("readings", 0), ExecutorId("readings", 1)


def an_exchange(gains=(), loses=(), drains=False):
    inputs = Inputs(ExecutorId("per_key", 0), [NORTH, SOUTH], timed=[NORTH, SOUTH])
    records = StateRecords(KeySpace(2, 4), {"event"})
    missing = dict.fromkeys(gains, records)
    return inputs, Exchange(1, missing, dict.fromkeys(loses, 1), drains, inputs, records, event_time=None)


def test_leaving_groups_follow_only_watermarks_of_the_old_version():
    inputs, exchange = an_exchange(loses=[2])
    for origin, time, version in ((NORTH, 10, 0), (SOUTH, 20, 0), (NORTH, 50, 1), (SOUTH, 40, 0)):
        inputs.advance(Watermark(origin, time))
        exchange.advance(Watermark(origin, time), version)
    assert (exchange.inputs.time, inputs.time) == (10, 40)


def test_leaving_groups_are_not_held_up_by_an_input_that_has_ended_before_the_switch():
    _, exchange = an_exchange(loses=[2])
    exchange.advance(Watermark(NORTH, 10), 0)
    exchange.advance(Watermark(SOUTH, 20), 0)
    exchange.end(NORTH, version=0)
    assert exchange.inputs.time == 20
    exchange.end(SOUTH, version=1)
    assert exchange.inputs.open == {SOUTH}


def test_exchange_is_complete_when_groups_are_given_and_got():
    _, exchange = an_exchange(gains=[3], loses=[2])
    assert not exchange.is_complete
    exchange.given = True
    assert not exchange.is_complete
    exchange.missing.clear()
    assert exchange.is_complete


def test_executor_that_only_drains_has_given_nothing_until_it_is_asked():
    assert an_exchange()[1].is_complete
    assert not an_exchange(drains=True)[1].is_complete


def test_marks_are_awaited_of_open_inputs_only():
    _, exchange = an_exchange(loses=[2])
    exchange.marked.add(NORTH)
    assert exchange.awaits_marks_of({NORTH})
    exchange.switched = True
    assert exchange.awaits_marks_of({NORTH, SOUTH})
    assert not exchange.awaits_marks_of({NORTH})


@pytest.mark.parametrize("cores", [{0: 2}, {1: 1}, {0: 1, 1: 1}])
def test_executor_whose_groups_move_has_one_core_at_its_home(cores):
    with pytest.raises(PlanningError, match=r"per_key\[0\] has cores on nodes .* one core, at its home, node 0"):
        GroupExecutor(ExecutorId("per_key", 0), KeySpace(2, 4), 0, cores, [NORTH], groups=[0, 1])
