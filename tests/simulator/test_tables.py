"""Simulated jobs take only the steps that the tables of moves and tasks allow, and take every one of them."""

from __future__ import annotations

import pytest
from scenario import Scenario

from dask_elastic.executor import task_status
from dask_elastic.executor.task import Task
from dask_elastic.executor.task_status import TaskEvent, TaskStatus
from dask_elastic.migration import labelled
from dask_elastic.migration.labelled import Action, LabelledMove, MoveEvent, Phase

SEEDS = [*range(50), 56, 99, 117, 186]
"""With these every row is taken; see `RARE`."""

RARE = {
    (Phase.WAITING, MoveEvent.SOURCE_LOST, Action.GRANT),
    (Phase.WAITING, MoveEvent.SOURCE_LOST, Action.INSTALL),
    (Phase.WAITING, MoveEvent.FLUSH_ARRIVED, Action.RESUME),
    (Phase.WAITING, MoveEvent.FLUSH_ARRIVED, Action.GRANT),
    (Phase.WAITING, MoveEvent.FLUSH_ARRIVED, Action.INSTALL),
    (Phase.LABELLED, MoveEvent.FLUSH_ARRIVED, Action.INSTALL),
    (Phase.INSTALLING, MoveEvent.FLUSH_ARRIVED, Action.GRANT),
    (Phase.INSTALLING, MoveEvent.FLUSH_ARRIVED, Action.INSTALL),
}
"""Rows that hardly any seed takes; tests/executor/test_moves.py takes them one by one."""


@pytest.fixture
def taken(monkeypatch):
    """The rows of both tables that were taken."""
    rows = set()
    move_handle, task_handle = LabelledMove.handle, Task.handle

    def handle_move(self, event):
        row = self.phase, event, self.route.next_action
        action = move_handle(self, event)
        rows.add(row)
        return action

    def handle_task(self, event):
        row = self.status, event
        task_handle(self, event)
        rows.add(row)

    monkeypatch.setattr(LabelledMove, "handle", handle_move)
    monkeypatch.setattr(Task, "handle", handle_task)
    return rows


def test_simulated_jobs_take_every_row_of_the_tables(taken):
    for seed in SEEDS:
        Scenario(seed, outages=0.3).check()
    rows = {*labelled.TABLE, *task_status.TABLE}
    assert taken <= rows
    assert rows - taken <= RARE


def test_fault_in_a_table_is_found(taken, monkeypatch):
    monkeypatch.delitem(task_status.TABLE, (TaskStatus.DRAINING, TaskEvent.NODE_LOST))
    errors = [error for seed in SEEDS if (error := Scenario(seed, outages=0.3).failure()) is not None]
    assert any("illegal in status 'draining'" in str(error) for error in errors)
