"""Sessions are corrected and withdrawn under moves, changes of cores, losses and checkpoints; mutants are found."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from session_scenario import SessionScenario

from dask_elastic.executor.windows import session_logic
from dask_elastic.executor.windows.amended_sessions import Amended
from dask_elastic.executor.windows.session_logic import SessionLogic
from dask_elastic.state import stored_keys
from dask_elastic.state.disk import DiskStorage, UnnamedFiles
from dask_elastic.state.session import Session
from dask_elastic.state.window_fields import NO_END

SEEDS = 6
MOST_SEEDS = 60


@pytest.mark.parametrize("outages", [0.0, 0.25])
def test_results_that_stay_are_the_sessions_of_all_rows(outages):
    happened = Counter()
    for seed in range(SEEDS):
        happened += SessionScenario(seed, outages).check().happened()
    for what in ("records", "checkpoints", "moves across nodes", "corrected", "late", "withdrawn"):
        assert happened[what] > SEEDS // 4, what
    assert not outages or happened["losses with replay"] > SEEDS // 2


def test_sessions_are_corrected_with_state_on_disk(monkeypatch, tmp_path):
    files = UnnamedFiles(tmp_path, resident=lambda: 1, most=-1)
    monkeypatch.setattr(stored_keys, "Storage", lambda make_index: DiskStorage(files))
    for seed in range(4):
        SessionScenario(seed).check()


def replaced_result_is_not_withdrawn(monkeypatch):
    monkeypatch.setattr(session_logic._Bound, "withdrawals", lambda self, keys, amended: [])


def closed_session_is_forgotten(monkeypatch):
    """Sessions are removed when they close, though late rows may correct them."""
    real = SessionLogic._closing

    def closing(self, bound, found, until):
        partials, amended, _ = real(self, bound, found, until)
        chains = self._chained(bound, found.values)[1]
        expired = np.zeros(len(found.slots), np.bool_)
        expired[chains.groups.chosen(chains.ends <= until).partials] = True
        return partials, amended, expired

    monkeypatch.setattr(SessionLogic, "_closing", closing)


def session_is_never_removed(monkeypatch):
    real = SessionLogic._closing

    def closing(self, bound, found, until):
        partials, amended, expired = real(self, bound, found, until)
        return partials, amended, np.zeros_like(expired)

    monkeypatch.setattr(SessionLogic, "_closing", closing)


def only_cells_with_new_rows_are_looked_at(monkeypatch):
    """A session is taken to consist of the cells that the rows of a batch are in."""
    monkeypatch.setattr(SessionLogic, "_others", lambda self, bound, found, identity: np.empty(0, np.intp))


def what_was_emitted_is_not_flushed(monkeypatch):
    """The result that a session has had is known to its task only."""
    real = Session.rewrite

    def rewrite(self, found, chosen, values):
        tracked, self._store.track_dirty = self._store.track_dirty, False
        try:
            return real(self, found, chosen, values)
        finally:
            self._store.track_dirty = tracked

    monkeypatch.setattr(Session, "rewrite", rewrite)


def joined_session_replaces_one_result_only(monkeypatch):
    real = Amended.of

    def of(chains, shown, *others):
        cells, lengths = chains.groups
        sessions = np.empty(len(cells), np.intp)
        sessions[cells] = np.repeat(np.arange(len(lengths)), lengths)
        known = np.flatnonzero(shown.ends != NO_END)
        _, first = np.unique(sessions.take(known), return_index=True)
        ends = shown.ends.copy()
        ends[np.delete(known, first)] = NO_END
        return real(chains, shown._replace(ends=ends), *others)

    monkeypatch.setattr(session_logic.Amended, "of", of)


MUTANTS = [
    replaced_result_is_not_withdrawn,
    closed_session_is_forgotten,
    session_is_never_removed,
    only_cells_with_new_rows_are_looked_at,
    what_was_emitted_is_not_flushed,
    joined_session_replaces_one_result_only,
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_mutant_is_found(mutant, monkeypatch):
    mutant(monkeypatch)
    for seed in range(MOST_SEEDS):
        if SessionScenario(seed, 0.25).fails():
            return
    pytest.fail(f"{MOST_SEEDS} seeds do not find that {mutant.__name__}")
