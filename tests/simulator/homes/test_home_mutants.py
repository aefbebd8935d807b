"""Mutants of the move of a home: the checks must find each injected fault."""

from __future__ import annotations

from dataclasses import replace

import pytest
from home_scenario import (
    CheckpointedHomeScenario,
    HomeScenario,
    TimedHomeScenario,
    TimerHomeScenario,
    first_failure,
)

from dask_elastic.executor.control_records.cuts import Cuts
from dask_elastic.executor.control_records.inputs import Inputs
from dask_elastic.executor.drivers.home_driver import DEPARTURE, HomeDriver
from dask_elastic.executor.events import EndMark
from dask_elastic.executor.homes.arrival import Arrival
from dask_elastic.executor.homes.handover import Handover
from dask_elastic.executor.link import Links
from dask_elastic.migration.home_move import HomeAction, HomeMove, HomePhase
from dask_elastic.routing.versioned_sends import MarkDue, VersionedSends
from dask_elastic.simulator.homes.first_tier import FirstTier
from dask_elastic.simulator.homes.home_moves import HomeMoves
from dask_elastic.vocab.barrier import Barrier

SEEDS = range(30)
"""Tried if the scenario of a mutant does not find it any more."""


MOST_STEPS = 2_000
"""A mutant waits for no more steps of its fiber, so that it ends if what it waits for never comes."""


def end_mark_overtakes_sends_in_progress(monkeypatch):
    def due(self):
        marks = []
        while len(self._in_use) > 1:
            old, new = self._in_use.popleft(), self._in_use[0]
            new.sends += old.sends
            marks += [MarkDue(e, old.table.homes[e], new.table.version) for e in new.table.differences(old.table)]
        return [] if self._finished else marks

    def end(self, table):
        self._in_use[-1].sends -= 1
        return due(self)

    monkeypatch.setattr(VersionedSends, "_due", due)
    monkeypatch.setattr(VersionedSends, "end", end)


def end_mark_follows_the_end(monkeypatch):
    monkeypatch.setattr(VersionedSends, "finish", lambda self: None)


def instance_without_sends_is_not_switched(monkeypatch):
    """An instance that has not sent anything yet begins with the new table, and owes no end mark."""
    real = HomeMoves._switch

    def switch(self, node, component, table):
        self.world.tier.set_table(node, component, table)
        return real(self, node, component, table)

    monkeypatch.setattr(HomeMoves, "_switch", switch)


def first_end_mark_is_enough(monkeypatch):
    """The executor leaves although other inputs have not switched."""

    def handle_record(self, origin, record):
        if isinstance(record, EndMark):
            yield from self._begin(DEPARTURE)
            self._alignment.barrier(Barrier(origin, DEPARTURE))
            yield from self._aligned(DEPARTURE)
        else:
            yield from super(HomeDriver, self)._handle_record(origin, record)

    monkeypatch.setattr(HomeDriver, "_handle_record", handle_record)


def executor_leaves_before_it_is_drained(monkeypatch):
    real = Cuts.flush_due
    monkeypatch.setattr(Cuts, "flush_due", lambda self, rows: real(self, 0 if self.checkpoint == DEPARTURE else rows))


def remote_tasks_do_not_flush_before_the_hand_over(monkeypatch):
    real = HomeDriver._aligned

    def aligned(self, checkpoint):
        yield from real(self, checkpoint)
        if checkpoint == DEPARTURE:
            for _ in range(MOST_STEPS):
                if self.executor.pending_rows:
                    yield lambda: None
            yield from self._run_cut(DEPARTURE)

    monkeypatch.setattr(HomeDriver, "_aligned", aligned)
    monkeypatch.setattr(Cuts, "flushed", lambda self, token: None)


def checkpoint_goes_on_during_a_move(monkeypatch):
    real = HomeMoves.request

    def request(self, executor, target):
        self.begins = lambda: None
        real(self, executor, target)

    monkeypatch.setattr(HomeMoves, "request", request)


def new_home_does_not_hold(monkeypatch):
    monkeypatch.setattr(Arrival, "admit", lambda self, item: True)


def held_items_are_overtaken(monkeypatch):
    """What arrives while held items are handled is handled at once."""

    def released(self):
        held, self._held = self._held, None
        yield from held

    monkeypatch.setattr(Arrival, "released", released)


def hand_over_waits_for_one_fence(monkeypatch):
    def passed(self, node):
        if self.phase is not HomePhase.FENCING:
            return HomeAction.WAIT
        self.phase = HomePhase.HANDING_OVER
        return HomeAction.HAND_OVER

    monkeypatch.setattr(HomeMove, "passed", passed)


def credit_returns_to_the_old_home(monkeypatch):
    monkeypatch.setattr(FirstTier, "set_emitter", lambda self, node, origin, home: None)


def new_home_does_not_know_earlier_moves(monkeypatch):
    monkeypatch.setattr(HomeMoves, "_inform", lambda self, node: None)


def watermarks_of_inputs_are_not_handed_over(monkeypatch):
    monkeypatch.setattr(Inputs, "resume", lambda self, standing: setattr(self, "open", set(standing.open)))


def ends_of_inputs_are_not_handed_over(monkeypatch):
    real = Inputs.resume

    def resume(self, standing):
        before = set(self.open)
        real(self, standing)
        self.open = before

    monkeypatch.setattr(Inputs, "resume", resume)


def incarnations_begin_anew(monkeypatch):
    monkeypatch.setattr(Links, "resume", lambda self, incarnations: None)


def requested_flushes_are_forgotten(monkeypatch):
    real = Handover.of.__func__
    monkeypatch.setattr(Handover, "of", classmethod(lambda cls, *given: replace(real(cls, *given), flushes=())))


MUTANTS = {
    end_mark_overtakes_sends_in_progress: TimerHomeScenario(0, outages=0.25, pauses=0.05),
    end_mark_follows_the_end: HomeScenario(3),
    instance_without_sends_is_not_switched: CheckpointedHomeScenario(0, outages=0.0),
    first_end_mark_is_enough: TimedHomeScenario(4, outages=0.0),
    executor_leaves_before_it_is_drained: TimerHomeScenario(0, outages=0.0),
    remote_tasks_do_not_flush_before_the_hand_over: CheckpointedHomeScenario(0, outages=0.0),
    checkpoint_goes_on_during_a_move: CheckpointedHomeScenario(16, outages=0.25, pauses=0.05),
    new_home_does_not_hold: CheckpointedHomeScenario(0, outages=0.0),
    held_items_are_overtaken: TimedHomeScenario(0, outages=0.0),
    hand_over_waits_for_one_fence: CheckpointedHomeScenario(1, outages=0.0, pauses=0.05),
    credit_returns_to_the_old_home: TimedHomeScenario(2, outages=0.0),
    new_home_does_not_know_earlier_moves: HomeScenario(14),
    watermarks_of_inputs_are_not_handed_over: TimedHomeScenario(2, outages=0.0),
    ends_of_inputs_are_not_handed_over: TimedHomeScenario(5, outages=0.0, pauses=0.05),
    incarnations_begin_anew: CheckpointedHomeScenario(0, outages=0.0),
    requested_flushes_are_forgotten: HomeScenario(14),
}
"""Each with a scenario that finds it, so that the test is short."""


@pytest.mark.parametrize("mutate", MUTANTS, ids=lambda mutate: mutate.__name__)
def test_home_mutant_is_found(monkeypatch, mutate):
    mutate(monkeypatch)
    assert MUTANTS[mutate].fails() or first_failure(SEEDS), f"{len(SEEDS)} seeds found nothing"
