"""Mutants of the move of groups: the checks must find each injected fault."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from durable_group_scenario import DurableGroupScenario
from group_scenario import (
    CheckpointedGroupScenario,
    GroupScenario,
    TimedGroupScenario,
    TimerGroupScenario,
    first_failure,
)
from merged_group_scenario import WindowGroups

from dask_elastic.executor.groups import traffic_sampler
from dask_elastic.executor.groups.exchange import Exchange
from dask_elastic.executor.groups.group_executor import GroupExecutor
from dask_elastic.executor.groups.handed_groups import HandedGroups
from dask_elastic.executor.groups.incoming_groups import IncomingGroups
from dask_elastic.executor.groups.outgoing_groups import OutgoingGroups
from dask_elastic.executor.piece import Piece
from dask_elastic.executor.routes import Routes
from dask_elastic.executor.task_queue import TaskQueue
from dask_elastic.migration.group_move import GroupEvent, GroupMove
from dask_elastic.routing.group_table import GroupTable
from dask_elastic.routing.mark_due import MarkDue
from dask_elastic.routing.versioned_sends import VersionedSends
from dask_elastic.simulator.deliveries import Deliveries
from dask_elastic.simulator.groups.group_moves import GroupMoves
from dask_elastic.state.outgoing_rows import OutgoingRows
from dask_elastic.state.slots import SlotArrays
from dask_elastic.state.store import KeyedStore

SEEDS = range(40)
"""Tried if the scenario of a mutant does not find it any more."""


def batches_are_not_split_again(monkeypatch):
    """What waited for credit goes where an older table said."""
    monkeypatch.setattr(Deliveries, "_split_again", lambda self, origin, left: None)


def end_mark_overtakes_sends_in_progress(monkeypatch):
    def due(self):
        marks = []
        while len(self._in_use) > 1:
            old, new = self._in_use.popleft(), self._in_use[0]
            new.sends += old.sends
            marks += new.table.marks_since(old.table)
        return [] if self._finished else marks

    def end(self, table):
        self._in_use[-1].sends -= 1
        return due(self)

    monkeypatch.setattr(VersionedSends, "_due", due)
    monkeypatch.setattr(VersionedSends, "end", end)


def first_end_mark_is_enough(monkeypatch):
    monkeypatch.setattr(Exchange, "awaits_marks_of", lambda self, inputs: not self.switched or not self.marked)


def only_losers_get_end_marks(monkeypatch):
    """An executor resumes groups before it knows that it is not behind their event time."""
    real = Exchange.awaits_marks_of
    monkeypatch.setattr(Exchange, "awaits_marks_of", lambda self, inputs: bool(self.loses) and real(self, inputs))


def groups_leave_before_their_queued_rows_are_processed(monkeypatch):
    real = Routes.hasten
    monkeypatch.setattr(Routes, "hasten", lambda self, shards: 0 * real(self, shards))


def groups_leave_before_their_rows_in_flight_are_settled(monkeypatch):
    monkeypatch.setattr(GroupExecutor, "_leaving_in_flight", lambda self, exchange: 0)


def groups_leave_without_a_fence(monkeypatch):
    """Outputs of the next executor overtake those of the earlier one."""

    def fence(self, executor, version):
        yield None

    monkeypatch.setattr(GroupMoves, "await_fence", fence)


def groups_to_come_do_not_wait(monkeypatch):
    real = GroupExecutor._hold

    def hold(self, event):
        done = real(self, event)
        for group in event.gains:
            owner = int(self.routes.table.owner[group])
            self.routes.resume(group, owner)
            self.store.grant(group, owner)
        return done

    monkeypatch.setattr(GroupExecutor, "_hold", hold)
    monkeypatch.setattr(GroupExecutor, "_continue", lambda self, *args: None)


def state_stays_behind(monkeypatch):
    real = HandedGroups.take_out.__func__
    monkeypatch.setattr(HandedGroups, "take_out", classmethod(lambda cls, *args: replace(real(cls, *args), rest=())))


def changes_behind_the_copy_stay_behind(monkeypatch):
    monkeypatch.setattr(OutgoingGroups, "rest", lambda self, target: iter(()))


def writes_behind_the_copy_are_not_noted(monkeypatch):
    real = SlotArrays.write

    def write(self, slots, values, mark):
        uncopied, self.uncopied = self.uncopied, None
        real(self, slots, values, mark)
        self.uncopied = uncopied

    monkeypatch.setattr(SlotArrays, "write", write)


def state_of_groups_that_stay_is_copied_as_well(monkeypatch):
    real = OutgoingRows.sweep
    monkeypatch.setattr(OutgoingRows, "sweep", lambda self, shards=None: real(self))


def copied_state_of_a_cancelled_move_is_kept(monkeypatch):
    monkeypatch.setattr(IncomingGroups, "drop", lambda self: None)


def groups_leave_with_what_was_copied_when_the_move_began(monkeypatch):
    """The rest is taken before the last rows are processed."""
    real, taken = OutgoingGroups.round, {}

    def round_(self):
        yield from real(self)
        if not self.goes_on:
            taken[self.version, self._source] = {target: [*rest(self, target)] for target in self._groups}

    rest = OutgoingGroups.rest
    monkeypatch.setattr(OutgoingGroups, "round", round_)
    monkeypatch.setattr(OutgoingGroups, "rest", lambda self, target: taken[self.version, self._source][target])


def left_state_is_kept(monkeypatch):
    monkeypatch.setattr(KeyedStore, "remove", lambda self, shards: None)


def gained_state_is_not_marked_as_changed(monkeypatch):
    def install(self, rows):
        stores = self._store.stores(self._executor.component)
        for part in rows:
            stores[part.operator].install(part.rows)

    monkeypatch.setattr(IncomingGroups, "_install", install)


def records_do_not_wait_for_groups_to_come(monkeypatch):
    real = GroupExecutor._enter

    def enter(self, record, now):
        exchange = self.exchange
        missing = {} if exchange is None else dict(exchange.missing)
        if exchange is not None:
            exchange.missing.clear()
        try:
            return real(self, record, now)
        finally:
            if exchange is not None:
                exchange.missing.update(missing)

    monkeypatch.setattr(GroupExecutor, "_enter", enter)


def end_fires_the_timers_of_groups_that_leave(monkeypatch):
    monkeypatch.setattr(GroupExecutor, "_leaving", property(lambda self: frozenset()))


def task_does_not_learn_of_gained_timers(monkeypatch):
    real = GroupExecutor._gain

    def gain(self, exchange, handed, now):
        version = self.store.owner_version
        changes = self.store.changes.copy()
        done = real(self, exchange, handed, now)
        self.store.owner_version = version
        self.store.changes[:] = changes
        return done

    monkeypatch.setattr(GroupExecutor, "_gain", gain)


def waiting_records_lack_the_schema(monkeypatch):
    monkeypatch.setattr(GroupExecutor, "_described", lambda self, piece: piece)


def executor_ends_before_its_groups_have_come(monkeypatch):
    monkeypatch.setattr(GroupExecutor, "_finish", lambda self: super(GroupExecutor, self)._finish())


def cancelled_move_forgets_the_end(monkeypatch):
    real = GroupExecutor._forget

    def forget(self, version, now):
        real_ended = self.records.ended
        self.records = _Silent(self.records)
        try:
            return real(self, version, now)
        finally:
            self.records = self.records.records
            assert self.records.ended == real_ended

    monkeypatch.setattr(GroupExecutor, "_forget", forget)


class _Silent:
    def __init__(self, records):
        self.records = records

    def __getattr__(self, name):
        return getattr(self.records, name)

    def ended(self):
        return None


def checkpoint_goes_on_during_a_move(monkeypatch):
    real = GroupMoves.request

    def request(self, *args):
        self.begins, self.is_quiet = (lambda: None), (lambda: True)
        real(self, *args)

    monkeypatch.setattr(GroupMoves, "request", request)


def upstream_does_not_pause(monkeypatch):
    """A synchronised move asks for the state before the rows that are still sent are processed."""
    monkeypatch.setattr(Deliveries, "_may_send", lambda self, origin, target: self._credit(origin, target).has_room())
    monkeypatch.setattr(GroupTable, "marks_since", lambda self, before: [])
    monkeypatch.setattr(Exchange, "awaits_marks_of", lambda self, inputs: not self.switched)


def move_does_not_wait_for_the_last_answer(monkeypatch):
    def answered(self, who, refuses=False):
        self.unanswered.discard(who)
        self.refused |= refuses
        if len(self.unanswered) > 1:
            return None
        self.unanswered.clear()
        return self.handle(GroupEvent.REFUSED if self.refused else GroupEvent.ALL_ANSWERED)

    monkeypatch.setattr(GroupMove, "answered", answered)


def restart_forgets_which_groups_have_moved(monkeypatch):
    monkeypatch.setattr(
        GroupTable, "of_parts", classmethod(lambda cls, groups, homes, parts: cls.initial(groups, homes))
    )


def gaining_executors_get_no_end_mark(monkeypatch):
    monkeypatch.setattr(
        GroupTable, "marks_since",
        lambda self, before: [
            MarkDue(e, before.homes[e], self.version)
            for e in self.marked
            if e in np.unique(before.owners[before.owners != self.owners])
        ],
    )  # fmt: skip


def rest_of_a_sampled_batch_is_not_processed(monkeypatch):
    real = traffic_sampler._part
    monkeypatch.setattr(traffic_sampler, "_part", lambda batch, chosen: real(batch, chosen if chosen[0] else ~chosen))


def sampled_group_is_processed_again_with_the_rest(monkeypatch):
    monkeypatch.setattr(traffic_sampler, "_part", lambda batch, chosen: batch)


def hastened_rows_are_reversed(monkeypatch):
    real = TaskQueue.put_first
    monkeypatch.setattr(TaskQueue, "put_first", lambda self, pieces: real(self, reversed([*pieces])))


def hastened_rows_overtake_their_state_records(monkeypatch):
    real = Piece.divided

    def divided(self, chosen):
        return (self, None) if self.block.record is not None else real(self, chosen)

    monkeypatch.setattr(Piece, "divided", divided)


def rows_of_other_groups_are_lost_when_some_are_hastened(monkeypatch):
    real = Piece.divided
    monkeypatch.setattr(Piece, "divided", lambda self, chosen: (None, real(self, chosen)[1]))


MUTANTS = {
    hastened_rows_are_reversed: TimerGroupScenario(0, outages=0.0, pauses=0.05),
    hastened_rows_overtake_their_state_records: TimerGroupScenario(10, outages=0.0, pauses=0.05),
    rows_of_other_groups_are_lost_when_some_are_hastened: CheckpointedGroupScenario(2, outages=0.0, pauses=0.05),
    rest_of_a_sampled_batch_is_not_processed: GroupScenario(1, outages=0.0, pauses=0.05),
    sampled_group_is_processed_again_with_the_rest: GroupScenario(1, outages=0.0, pauses=0.05),
    batches_are_not_split_again: CheckpointedGroupScenario(2, outages=0.0),
    end_mark_overtakes_sends_in_progress: DurableGroupScenario(23),
    first_end_mark_is_enough: CheckpointedGroupScenario(4, outages=0.0, pauses=0.05),
    only_losers_get_end_marks: CheckpointedGroupScenario(6, outages=0.0),
    groups_leave_before_their_queued_rows_are_processed: WindowGroups(0, outages=0.0, pauses=0.05),
    groups_leave_before_their_rows_in_flight_are_settled: TimedGroupScenario(4, outages=0.0, pauses=0.05),
    groups_leave_without_a_fence: CheckpointedGroupScenario(151, outages=0.0, pauses=0.15),
    groups_to_come_do_not_wait: GroupScenario(0, outages=0.0, pauses=0.05),
    state_stays_behind: GroupScenario(6, outages=0.0, pauses=0.05),
    changes_behind_the_copy_stay_behind: GroupScenario(0, outages=0.0, pauses=0.05),
    writes_behind_the_copy_are_not_noted: GroupScenario(0, outages=0.0, pauses=0.05),
    state_of_groups_that_stay_is_copied_as_well: GroupScenario(3, outages=0.0),
    copied_state_of_a_cancelled_move_is_kept: GroupScenario(3, outages=0.0, pauses=0.05),
    groups_leave_with_what_was_copied_when_the_move_began: GroupScenario(0, outages=0.0, pauses=0.05),
    left_state_is_kept: GroupScenario(0, outages=0.0, pauses=0.05),
    gained_state_is_not_marked_as_changed: CheckpointedGroupScenario(21, outages=0.0, pauses=0.05),
    records_do_not_wait_for_groups_to_come: TimerGroupScenario(0, outages=0.0, pauses=0.05),
    end_fires_the_timers_of_groups_that_leave: WindowGroups(1, outages=0.0, pauses=0.05),
    task_does_not_learn_of_gained_timers: GroupScenario(0, outages=0.0, pauses=0.05),
    waiting_records_lack_the_schema: WindowGroups(33, outages=0.0),
    executor_ends_before_its_groups_have_come: GroupScenario(0, outages=0.0, pauses=0.05),
    cancelled_move_forgets_the_end: TimerGroupScenario(353, outages=0.0),
    checkpoint_goes_on_during_a_move: TimerGroupScenario(1, outages=0.0, pauses=0.05),
    upstream_does_not_pause: TimerGroupScenario(0, outages=0.0, pauses=0.05),
    move_does_not_wait_for_the_last_answer: GroupScenario(0, outages=0.0, pauses=0.05),
    restart_forgets_which_groups_have_moved: TimerGroupScenario(6, outages=0.0),
    gaining_executors_get_no_end_mark: TimerGroupScenario(0, outages=0.0, pauses=0.05),
}
"""Each with a scenario that finds it, so that the test is short."""


def found(scenario) -> bool:
    return scenario.fails()


@pytest.mark.parametrize("mutate", MUTANTS, ids=lambda mutate: mutate.__name__)
def test_group_mutant_is_found(monkeypatch, mutate):
    mutate(monkeypatch)
    others = (WindowGroups(seed, outages=0.0) for seed in SEEDS)
    assert found(MUTANTS[mutate]) or first_failure(SEEDS) or any(map(found, others)), f"{SEEDS} found nothing"
