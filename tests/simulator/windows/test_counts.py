"""Count windows number each row once, under moves, changes of cores, losses and checkpoints; mutants are found."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from count_scenario import CountScenario

from dask_elastic.executor.recovery import Recovery
from dask_elastic.executor.windows.count_logic import CountLogic
from dask_elastic.executor.windows.row_slices import Ring, RowSlices
from dask_elastic.state import stored_keys
from dask_elastic.state.disk import DiskStorage, UnnamedFiles
from dask_elastic.state.session import Session
from dask_elastic.topology.aggregates.grouping import Grouping

SEEDS = 6
MOST_SEEDS = 60

TRIED_FIRST = (45, 50, 9)
"""Seeds in which replays find what most others do not."""


@pytest.mark.parametrize("outages", [0.0, 0.25])
def test_each_complete_instance_has_one_result(outages):
    happened = Counter()
    for seed in range(SEEDS):
        happened += CountScenario(seed, outages).check().happened()
    for what in ("checkpoints", "moves across nodes"):
        assert happened[what] > SEEDS // 4, what
    assert not outages or happened["losses with replay"] > SEEDS // 2


def test_rows_are_counted_once_with_state_on_disk(monkeypatch, tmp_path):
    files = UnnamedFiles(tmp_path, resident=lambda: 1, most=-1)
    monkeypatch.setattr(stored_keys, "Storage", lambda make_index: DiskStorage(files))
    for seed in range(6):
        CountScenario(seed).check()


def numbers_begin_again_in_each_batch(monkeypatch):
    """The number of a key's rows is not read from the state."""
    real = RowSlices.__init__

    def init(self, window, before, grouping):
        real(self, window, np.zeros_like(before), grouping)

    monkeypatch.setattr(RowSlices, "__init__", init)


def rows_of_a_batch_are_numbered_in_any_order(monkeypatch):
    """The rows of a key are numbered from the last to the first of a batch."""
    real = RowSlices.__init__

    def init(self, window, before, grouping):
        turned = Grouping(grouping.ordinals, grouping.count)
        turned._order = np.lexsort((-np.arange(len(grouping)), grouping.ordinals))
        real(self, window, before, turned)

    monkeypatch.setattr(RowSlices, "__init__", init)


def replayed_rows_are_numbered_twice(monkeypatch):
    """What the primary copy of a shard has is replayed as well."""
    real = Recovery._lacking

    def lacking(self, task, sent, now):
        left, task.pending.left = task.pending.left, {}
        try:
            yield from list(real(self, task, sent, now))
        finally:
            task.pending.left = left

    monkeypatch.setattr(Recovery, "_lacking", lacking)


def counter_is_not_flushed(monkeypatch):
    """A place whose slice stays as it is keeps its mark, though the number of the key's rows in it has changed."""
    real = Session.scatter

    def scatter(self, located, values, where=None):
        tracked = self._store.track_dirty
        ends = values[-2] if where is not None else None
        unchanged = None if where is None else where & (ends == self.gather(located)[-2])
        real(self, located, values, where if unchanged is None else where & ~unchanged)
        if unchanged is not None and unchanged.any():
            self._store.track_dirty = False
            real(self, located, values, unchanged)
            self._store.track_dirty = tracked

    monkeypatch.setattr(Session, "scatter", scatter)


def needed_slice_is_emptied(monkeypatch):
    """A slice is emptied when the first instance that contains it is complete."""
    real = Ring.obsolete
    monkeypatch.setattr(
        Ring, "obsolete", lambda self, slices: real(self, slices) | (self.newest == slices.needed[self.keys])
    )


def obsolete_slice_stays(monkeypatch):
    monkeypatch.setattr(Ring, "obsolete", lambda self, slices: np.zeros(len(self.newest), np.bool_))


def places_share_an_identity(monkeypatch):
    """The slices of a key are one slot."""
    real = CountLogic._located
    monkeypatch.setattr(
        CountLogic, "_located", lambda self, rows, hashes, checks, places: real(self, rows, hashes, checks, 0)
    )


MUTANTS = [
    numbers_begin_again_in_each_batch,
    rows_of_a_batch_are_numbered_in_any_order,
    replayed_rows_are_numbered_twice,
    counter_is_not_flushed,
    needed_slice_is_emptied,
    obsolete_slice_stays,
    places_share_an_identity,
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_mutant_is_found(mutant, monkeypatch):
    mutant(monkeypatch)
    for seed in [*TRIED_FIRST, *range(MOST_SEEDS)]:
        if CountScenario(seed, 0.25).fails():
            return
    pytest.fail(f"{MOST_SEEDS} seeds do not find that {mutant.__name__}")
