"""Mutants of functions over windows: the checks must find each injected fault."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from function_scenario import FunctionScenario

from dask_elastic.executor.windows import window_functions
from dask_elastic.executor.windows.instance_rows import InstanceRows
from dask_elastic.executor.windows.row_instances import RowInstances
from dask_elastic.executor.windows.window_functions import WindowFunctions
from dask_elastic.state.slot_search import SlotSearch
from dask_elastic.state.slots import LIVE

MOST_SEEDS = 60


def instance_closes_before_its_end(monkeypatch):
    """A watermark closes instances that end one microsecond later."""
    real = WindowFunctions.fire

    def fire(self, batch, policy):
        record = batch.record
        return real(self, batch._replace(record=record._replace(event=min(record.event + 1, 2**63 - 1))), policy)

    monkeypatch.setattr(WindowFunctions, "fire", fire)


def numbers_begin_again_with_each_batch(monkeypatch):
    """Rows of a key take the slots of earlier ones."""
    real = WindowFunctions._keep

    def keep(self, bound, part, reached):
        first = real(self, bound, part, reached)
        with bound.buffer.open() as arrays:
            marks = bound.buffer.marks[bound.buffer.marks >= 0]
            values = bound.buffer.unchanged()
            values[window_functions.NUMBER] = np.zeros(len(marks), np.int64)
            arrays.write(marks, values, bound.buffer.mark)
        return first

    monkeypatch.setattr(WindowFunctions, "_keep", keep)


def mark_is_not_flushed(monkeypatch):
    """Where the next rows continue is known to the task only, and lost with it."""
    real = WindowFunctions._keep

    def keep(self, bound, part, reached):
        first = real(self, bound, part, reached)
        with bound.buffer.open() as arrays:
            arrays.marks[bound.buffer.marks[bound.buffer.marks >= 0]] = LIVE
        return first

    monkeypatch.setattr(WindowFunctions, "_keep", keep)


def row_is_dropped_with_its_first_instance(monkeypatch):
    monkeypatch.setattr(RowInstances, "expired", lambda self, begins, ends, reached: begins < reached)


def row_is_never_dropped(monkeypatch):
    monkeypatch.setattr(RowInstances, "expired", lambda self, begins, ends, reached: np.zeros(len(begins), np.bool_))


def removed_row_leaves_no_tombstone(monkeypatch):
    """The removal of rows is not flushed."""
    real = SlotSearch.remove

    def remove(self, found, chosen):
        tracked, self._store.track_dirty = self._store.track_dirty, False
        try:
            return real(self, found, chosen)
        finally:
            self._store.track_dirty = tracked

    monkeypatch.setattr(SlotSearch, "remove", remove)


def rows_come_in_the_order_of_slots(monkeypatch):
    """The order in which rows came is lost."""
    real = InstanceRows.__init__

    def init(self, begins, ends, numbers, hashes, checks):
        real(self, begins, ends, -numbers, hashes, checks)

    monkeypatch.setattr(InstanceRows, "__init__", init)


def correction_repeats_the_revision_before(monkeypatch):
    monkeypatch.setattr(
        window_functions, "_revisions", lambda found, gathered, reached: pa.array(np.zeros(len(gathered), np.int64))
    )


MUTANTS = [
    value
    for name, value in dict(globals()).items()
    if callable(value) and getattr(value, "__module__", "") == __name__ and not name.startswith("_")
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_mutant_is_found(mutant, monkeypatch):
    mutant(monkeypatch)
    for seed in range(MOST_SEEDS):
        if FunctionScenario(seed, 0.25 * (seed % 2)).fails():
            return
    pytest.fail(f"{MOST_SEEDS} seeds do not find that {mutant.__name__}")
