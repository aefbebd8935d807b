"""Mutants of the copy of state before a home moves: the checks must find each injected fault.

Simulated rows are rarely deleted: mutants of deletions are in ``tests/state/test_outgoing_rows.py``.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from home_scenario import (
    CheckpointedHomeScenario,
    HomeScenario,
    first_failure,
)

from dask_elastic.executor.homes.incoming_copy import IncomingCopy
from dask_elastic.executor.homes.outgoing_copy import OutgoingCopy
from dask_elastic.state.outgoing_rows import OutgoingRows
from dask_elastic.state.slots import SlotArrays

SEEDS = range(30)
"""Tried if the scenario of a mutant does not find it any more."""


def changes_behind_the_copy_are_not_sent(monkeypatch):
    monkeypatch.setattr(OutgoingCopy, "rest", lambda self: iter(()))


def writes_are_not_noted(monkeypatch):
    real = SlotArrays.write

    def write(self, slots, values, mark):
        uncopied, self.uncopied = self.uncopied, None
        real(self, slots, values, mark)
        self.uncopied = uncopied

    monkeypatch.setattr(SlotArrays, "write", write)


def marks_of_changes_are_not_copied(monkeypatch):
    real = IncomingCopy.install

    def install(self, number, position, portion):
        real(self, number, position, [replace(part, changed=False) for part in portion])

    monkeypatch.setattr(IncomingCopy, "install", install)


def delta_is_applied_twice(monkeypatch):
    """Behind newer rows, as if a portion was sent again."""
    real = IncomingCopy.install

    def install(self, number, position, portion):
        real(self, number, position, [*portion, *self.__dict__.get("first", portion)])
        self.__dict__.setdefault("first", portion)

    monkeypatch.setattr(IncomingCopy, "install", install)


def rows_that_were_sent_are_sent_no_more(monkeypatch):
    """A row that changes after it was sent is left out of later rounds."""
    real = OutgoingRows._portion

    def portion(self, slots):
        sent = self.__dict__.setdefault("sent", set())
        kept = np.array([slot for slot in slots.tolist() if slot not in sent], np.intp)
        sent.update(slots.tolist())
        self._store.slots.uncopied[slots] = False
        made = real(self, kept)
        if len(slots):
            self._next = int(slots[-1]) + 1
        return made

    monkeypatch.setattr(OutgoingRows, "_portion", portion)


MUTANTS = {
    changes_behind_the_copy_are_not_sent: CheckpointedHomeScenario(0, outages=0.25, pauses=0.05),
    writes_are_not_noted: CheckpointedHomeScenario(0, outages=0.25, pauses=0.05),
    marks_of_changes_are_not_copied: CheckpointedHomeScenario(0, outages=0.25, pauses=0.05),
    delta_is_applied_twice: HomeScenario(2, outages=0.25),
    rows_that_were_sent_are_sent_no_more: HomeScenario(2, outages=0.25),
}
"""Each with a scenario that finds it, so that the test is short."""


@pytest.mark.parametrize("mutate", MUTANTS, ids=lambda mutate: mutate.__name__)
def test_copy_mutant_is_found(monkeypatch, mutate):
    mutate(monkeypatch)
    assert MUTANTS[mutate].fails() or first_failure(SEEDS), f"{len(SEEDS)} seeds found nothing"
