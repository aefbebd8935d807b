"""Instances that are merged from shorter ones have the state of their slices, and few are kept."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_elastic.executor.windows import complete_instances
from dask_elastic.executor.windows.complete_instances import CompleteInstances
from dask_elastic.executor.windows.running_merges import Merged
from dask_elastic.topology.aggregate import Sum
from dask_elastic.topology.aggregates.bundle import Bundle
from dask_elastic.topology.aggregates.grouping import Grouping
from dask_elastic.topology.windowing import EventWindow

BUNDLE = Bundle({"total": Sum("value")}, pa.schema({"value": pa.int64()}))
KEYS = 3


class Slices:
    """Slices of some keys, which have the sums of their rows."""

    def __init__(self, random):
        self.values = {number: random.integers(0, 100, KEYS) for number in range(-50, 200)}
        self.present = {number: random.random(KEYS) < 0.7 for number in self.values}
        self.reads = 0

    def read(self, number):
        self.reads += 1
        rows = pa.record_batch({"value": self.values[number]})
        columns = BUNDLE.update(BUNDLE.initial(KEYS), rows, Grouping(np.arange(KEYS), KEYS))
        return Merged(columns, self.present[number].copy())

    def total(self, begin, end):
        present = np.logical_or.reduce([self.present[number] for number in range(begin, end)])
        sums = sum(np.where(self.present[number], self.values[number], 0) for number in range(begin, end))
        return present, sums


def ended(windows, time):
    """The instances that end at a time, shorter ones first."""
    found = {
        (time - window.length, time)
        for window in windows
        if (time - window.length - window.start) % window.frequency == 0
    }
    return sorted(found, reverse=True)


def close(instances, slices, windows, until, check=True):
    for begin, end in ended(windows, until):
        merged = instances.form(BUNDLE, begin, end, slices.read)
        present, sums = slices.total(begin, end)
        if check:
            assert merged.present.tolist() == present.tolist()
            assert BUNDLE.results(merged.values)["total"].to_numpy()[present].tolist() == sums[present].tolist()
        instances.keep(begin, end, merged, int(merged.present.sum()))
    instances.closed(until)


WINDOWS = st.lists(
    st.builds(EventWindow, st.integers(-3, 3), st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=4
)


@settings(max_examples=60, deadline=None)
@given(WINDOWS, st.integers(0, 2**32), st.lists(st.tuples(st.integers(1, 40), st.integers(0, 8)), max_size=6))
def test_instances_have_the_state_of_their_slices_also_after_late_rows(windows, seed, late):
    random = np.random.default_rng(seed)
    slices, instances = Slices(random), CompleteInstances(windows, 1, 0)
    for until in range(0, 40):
        for number in [until - back for at, back in late if at == until]:
            # A row that is late for the instances that have closed, but not for longer ones.
            slices.values[number] = slices.values[number] + 1
            slices.present[number][:] = True
            instances.changed(number)
        close(instances, slices, windows, until)
    needed = {span for span in instances._complete for window in windows if window.length > span[1] - span[0]}
    assert set(instances._complete) <= needed


@pytest.mark.parametrize(("lengths", "most"), [((1, 2, 6, 12), 5), ((5, 10, 15, 20), 8)])
def test_windows_of_each_other_read_each_slice_about_once_and_keep_few(lengths, most):
    windows = [EventWindow(0, length, length) for length in lengths]
    slices, instances = Slices(np.random.default_rng(1)), CompleteInstances(windows, 1, 0)
    kept = 0
    for until in range(0, 121):
        close(instances, slices, windows, until)
        kept = max(kept, len(instances._complete))
    assert slices.reads <= 1.5 * 130
    assert kept <= most


def test_late_row_that_is_not_noted_is_found():
    # A mutant: without `changed`, the test above would see the state before the row.
    windows = [EventWindow(0, 2, 2), EventWindow(0, 4, 4)]
    slices, instances = Slices(np.random.default_rng(2)), CompleteInstances(windows, 1, 0)
    close(instances, slices, windows, 2)
    slices.present[0][:], slices.values[0] = True, slices.values[0] + 1
    with pytest.raises(AssertionError):
        close(instances, slices, windows, 4)


def test_too_many_keys_are_not_kept(monkeypatch):
    monkeypatch.setattr(complete_instances, "MOST_KEPT", KEYS)
    windows = [EventWindow(0, 1, 1), EventWindow(0, 8, 8)]
    slices, instances = Slices(np.random.default_rng(3)), CompleteInstances(windows, 1, 0)
    for until in range(0, 17):
        close(instances, slices, windows, until)
        assert len(instances._complete) <= 1


def test_overlapping_instances_of_many_slices_are_merged_running():
    instances = CompleteInstances([EventWindow(0, 60, 10), EventWindow(0, 240, 240)], 10, 0)
    assert instances.merges_running(0, 6)
    assert not instances.merges_running(0, 24)
