"""Simulated jobs take only rows of the tables of moves and tasks, and take every row that is not rare."""

from __future__ import annotations

import pytest
from scenario import Scenario

from dask_elastic.executor import task_status
from dask_elastic.executor.task import Task
from dask_elastic.executor.task_status import TaskEvent, TaskStatus
from dask_elastic.migration import labelled
from dask_elastic.migration.labelled import NEEDS, Action, LabelledMove, MoveEvent, Phase

SEEDS = range(40)

RARE = {
    *((Phase.WAITING, MoveEvent.FLUSH_ARRIVED, needed) for needed in NEEDS),
    *((Phase.WAITING, MoveEvent.SOURCE_LOST, needed) for needed in NEEDS),
    *((Phase.WAITING, MoveEvent.TARGET_DRAINING, needed) for needed in NEEDS),
    *((Phase.LABELLED, MoveEvent.FLUSH_ARRIVED, needed) for needed in NEEDS),
    (Phase.INSTALLING, MoveEvent.FLUSH_ARRIVED, Action.GRANT),
    (Phase.INSTALLING, MoveEvent.FLUSH_ARRIVED, Action.INSTALL),
    (Phase.WAITING, MoveEvent.TARGET_LOST, Action.INSTALL),
    (Phase.INSTALLING, MoveEvent.TARGET_LOST, Action.RESUME),
    (Phase.INSTALLING, MoveEvent.TARGET_LOST, Action.INSTALL),
    (TaskStatus.STOPPING, TaskEvent.NODE_LOST),
}
"""Rows that few seeds take; tests/executor/test_moves.py and test_recovery.py take them one by one."""


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


def test_simulated_jobs_take_every_row_that_is_not_rare(taken):
    for seed in SEEDS:
        Scenario(seed, outages=0.3).check()
    rows = {*labelled.TABLE, *task_status.TABLE}
    assert taken <= rows
    assert rows - taken <= RARE


def test_simulation_finds_missing_row(taken, monkeypatch):
    missing = TaskStatus.DRAINING, TaskEvent.NODE_LOST
    # A copy: a row that is put back into the table would be its last, and the drawing another one.
    monkeypatch.setattr(task_status, "TABLE", {row: to for row, to in task_status.TABLE.items() if row != missing})
    errors = (str(Scenario(seed, outages=0.3, explained=False).failure()) for seed in SEEDS)
    assert any("illegal in status 'draining'" in error for error in errors)
