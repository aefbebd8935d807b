"""Mutants of changes between slices and instances: the checks must find each injected fault."""

from __future__ import annotations

import numpy as np
import pytest
from sharing_scenario import SharingScenario

from dask_elastic.executor import events
from dask_elastic.executor.control_records.sharing import Sharing
from dask_elastic.executor.executor import ElasticExecutor
from dask_elastic.executor.piece import Receipt
from dask_elastic.executor.windows import added_rows, closing
from dask_elastic.executor.windows.partials import Partials
from dask_elastic.executor.windows.slice_places import SlicePlaces
from dask_elastic.executor.windows.window_logic import WindowLogic

MOST_SEEDS = 60


def change_misses_an_executor(monkeypatch):
    """The first executor goes on as before."""
    real = ElasticExecutor._handle

    def handle(self, event, now):
        missed = isinstance(event, events.ChangeSharing) and self.identity.index == 0
        return [] if missed else real(self, event, now)

    monkeypatch.setattr(ElasticExecutor, "_handle", handle)


def change_is_made_on_arrival(monkeypatch):
    """Each executor changes when it gets the command, not at the event time."""
    real = Sharing.change
    monkeypatch.setattr(Sharing, "change", lambda self, separate, since: real(self, separate, None))


def change_is_made_one_record_late(monkeypatch):
    real = Sharing.separate
    monkeypatch.setattr(Sharing, "separate", lambda self, time: real(self, None if time is None else time - 1))


def only_the_last_change_is_kept(monkeypatch):
    """A change in the future takes the place of the one before it."""
    real = Sharing.change

    def change(self, separate, since):
        self._changes.clear()
        real(self, separate, since)

    monkeypatch.setattr(Sharing, "change", change)


def rows_count_for_both_plans(monkeypatch):
    """Rows of instances are added to their slices as well."""
    real = WindowLogic.process

    def process(self, rows, hashes, *args, separate=False, **options):
        outputs = real(self, rows, hashes, *args, separate=separate, **options)
        return outputs + (real(self, rows, hashes, *args, **options | {"settled": True}) if separate else [])

    monkeypatch.setattr(WindowLogic, "process", process)


def partial_of_an_instance_counts_for_longer_ones(monkeypatch):
    """The partial of an instance is taken for a slice."""
    monkeypatch.setattr(closing, "has_mark", lambda starts: np.zeros(len(starts), np.bool_))


def instances_are_stored_without_marks(monkeypatch):
    monkeypatch.setattr(added_rows, "marked", lambda starts: starts)


def instances_lack_what_came_before_the_change(monkeypatch):
    """Slices are left out of instances that have a partial of their own."""
    real = Partials.within

    def within(self, begin, end):
        groups = real(self, begin, end)
        if self._of_instances is None or not len(groups.lengths):
            return groups
        owners = np.repeat(np.arange(len(groups.lengths)), groups.lengths)
        own = np.isin(groups.partials, self._order[self._of_instances[0]])
        has_own = np.bincount(owners, own, minlength=len(groups.lengths)) > 0
        kept = own | ~has_own[owners]
        return groups._replace(partials=groups.partials[kept], lengths=np.bincount(owners[kept]))

    monkeypatch.setattr(Partials, "within", within)


def instances_close_by_the_places_of_slices(monkeypatch):
    """A task that has added rows to instances closes only what is in the places of slices."""
    monkeypatch.setattr(SlicePlaces, "added_apart", lambda self: None)


def replay_forgets_the_choice(monkeypatch):
    """Rows that were added to instances before a loss are added to slices in the replay."""
    real = Receipt.for_replay.__func__

    def for_replay(cls, origin, nbytes, batch, now):
        return real(cls, origin, nbytes, batch._replace(separate=False), now)

    monkeypatch.setattr(Receipt, "for_replay", classmethod(for_replay))


MUTANTS = [
    value
    for name, value in dict(globals()).items()
    if callable(value) and getattr(value, "__module__", "") == __name__ and not name.startswith("_")
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_mutant_is_found(mutant, monkeypatch):
    mutant(monkeypatch)
    for seed in (50, *range(MOST_SEEDS)):
        if SharingScenario(seed).fails():
            return
    pytest.fail(f"{MOST_SEEDS} seeds do not find that {mutant.__name__}")
