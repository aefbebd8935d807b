from __future__ import annotations

import gc
import pickle
from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_elastic.control.decision_log import DecisionLog
from dask_elastic.control.recording import decision_from_dict, decision_to_dict
from dask_elastic.vocab.cores.change_columns import ChangeColumns
from dask_elastic.vocab.cores.core_change import CoreChange
from dask_elastic.vocab.cores.small_integers import small_integers
from dask_elastic.vocab.cores.wanted_cores import WantedCores
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.plan import Decision

CORES = st.dictionaries(st.integers(0, 2_000), st.integers(1, 64) | st.integers(1, 2**40), max_size=4)
CHANGES = st.lists(
    st.builds(
        CoreChange,
        st.sampled_from(["flights", "orders"]),
        st.integers(1, 2**40),
        st.builds(ExecutorId, st.sampled_from(["a", "b"]), st.integers(0, 5_000)),
        CORES,
        CORES,
        st.floats(0, 1e15),
    ),
    max_size=20,
)


def decision(number, executors, cores=3, job="job"):
    wanted = {ExecutorId("op", index): 1 + (index + number) % 7 for index in range(executors)}
    changes = [CoreChange(job, 1, ExecutorId("op", i), {i: 1}, {i: cores, i + 1: 1}, 1e6) for i in range(executors)]
    return Decision(number, float(number), job, 1, 0.1, 0.2, 0.05, True, wanted, changes, True, "because")


@given(CHANGES)
def test_changes_in_columns_are_the_changes(changes):
    columns = ChangeColumns.of(changes)
    assert list(columns) == changes
    assert columns == tuple(changes)
    assert tuple(changes) == columns
    assert columns[1:-1] == tuple(changes[1:-1])
    assert [columns[place] for place in range(-len(changes), 0)] == changes
    assert [list(one.after) for one in columns] == [list(one.after) for one in changes], "the order of nodes stays"
    assert repr(columns) == repr(tuple(changes))
    assert deepcopy(columns) == pickle.loads(pickle.dumps(columns)) == columns
    assert ChangeColumns.of(columns) is columns
    for beyond in (len(changes), -len(changes) - 1):
        with pytest.raises(IndexError):
            columns[beyond]


EXECUTORS = st.builds(ExecutorId, st.sampled_from(["a", "b"]), st.integers(0, 9))


@given(st.dictionaries(EXECUTORS, st.integers(0, 500) | st.integers(0, 2**40)))
def test_wanted_cores_in_a_column_are_the_mapping(cores):
    wanted = WantedCores.of(cores)
    assert wanted == cores
    assert [*wanted.items()] == [*cores.items()]
    assert [*wanted.values()] == [*cores.values()]
    assert {executor: wanted[executor] for executor in wanted} == cores
    assert repr(wanted) == repr(cores)
    assert deepcopy(wanted) == pickle.loads(pickle.dumps(wanted)) == cores
    with pytest.raises(KeyError):
        wanted[ExecutorId("c", 0)]


def test_decision_is_the_same_after_a_recording():
    first = decision(1, 5)
    assert decision_from_dict(decision_to_dict(first)) == first
    assert replace(first, number=2).changes is first.changes


def test_kept_decisions_of_a_large_job_are_few_objects():
    """Each full garbage collection visits them all, and stops the scheduler meanwhile."""
    log = DecisionLog()
    log.add([decision(0, 1_000)])
    gc.collect()
    before = len(gc.get_objects())
    log.add(decision(number, 1_000) for number in range(1, 51))
    gc.collect()
    assert len(gc.get_objects()) - before < 50 * 10
    executors = {id(one.wanted.executors) for one in log.of("job")}
    assert len(executors) == 1, "decisions about the same executors share their names"
    assert [one.changes[-1].after for one in log.of("job")] == [{999: 3, 1_000: 1}] * 51


@given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(-300, 300)))
def test_small_integers_are_the_same_in_the_smallest_type(values):
    small = small_integers(values)
    assert small.tolist() == values
    for smaller in (f"{sign}int{bits}" for sign in ("u", "") for bits in (8, 16, 32) if bits < 8 * small.itemsize):
        least, most = np.iinfo(smaller).min, np.iinfo(smaller).max
        assert min(values) < least or max(values) > most


def test_integers_of_more_than_64_bits_are_refused():
    with pytest.raises(OverflowError):
        small_integers([2**64])


def test_kept_decision_of_a_large_job_takes_few_bytes():
    changes = [CoreChange("job", 1, ExecutorId("op", i), {i % 1_000: 2}, {i % 1_000: 3}, 1e6) for i in range(1_600)]
    columns = len(pickle.dumps(ChangeColumns.of(changes)))
    wanted = len(pickle.dumps(WantedCores.of({change.executor: 3 for change in changes}).counts))
    assert columns < 26 * len(changes)
    assert wanted < 1_000 + len(changes)


def test_decisions_share_names_with_the_newest_one_of_their_job_only():
    log = DecisionLog()
    log.add([decision(0, 3, job="a"), decision(1, 2, job="b"), decision(2, 3, job="a"), decision(3, 4, job="a")])
    first, second, third = [one.wanted for one in log.of("a")]
    assert first.executors is second.executors
    assert third == decision(3, 4).wanted
    assert log.of("b")[0].wanted == decision(1, 2).wanted


def test_decisions_share_names_although_moves_of_homes_come_between_them():
    log = DecisionLog()
    log.add(one for number in range(0, 8, 2) for one in (decision(number, 3), decision(number + 1, 0)))
    assert [len(one.wanted) for one in log.of("job")] == [3, 0] * 4
    assert len({id(one.wanted.executors) for one in log.of("job") if one.wanted}) == 1
